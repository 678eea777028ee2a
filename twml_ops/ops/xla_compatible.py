"""Tracing layers so that XLA can compile them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from twml_ops.ops._library import library
from twml_ops.ops.stock import check
from twml_ops.ops.xla import static_shapes


@contextlib.contextmanager
def xla_compatible() -> Iterator[None]:
    """In the block, padded batches keep their static shapes and only ops that XLA knows are traced.

    For functions that are compiled (`jit_compile=True`, TPUs):

        @tf.function(jit_compile=True)
        def score(ids, values):
            with ops.xla_compatible():
                return model([ids, values])

    Batches must be padded (ids [B, M], values [B, M]) and of known shape, as `data.pad_to_static`
    makes them. Compiled code cannot refuse input: an id out of range reads the nearest row, a value
    that is not finite counts as 0, an unknown feature of a discretizer passes.

    `OnlineStandardize` learns nothing in this form (`training=True` is an error). The optimizers of
    this package update tables in it, by sorting the batch's ids; a batch of nothing but padding
    then counts as one that names row 0, with a gradient of 0.
    """
    with check.unchecked(), library.override(static_shapes.library):
        yield
