"""The block in which layers are traced so that XLA can compile them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from twml_ops.ops._library import library
from twml_ops.ops.stock import check
from twml_ops.ops.xla import static_shapes


@contextlib.contextmanager
def xla_compatible() -> Iterator[None]:
    """Traces layers and optimizers with ops that XLA can compile, at static shapes.

    For functions with `jit_compile=True`, and for TPUs:

        @tf.function(jit_compile=True)
        def score(ids, values):
            with ops.xla_compatible():
                return model([ids, values])

    Batches must be padded pairs (ids [B, M], values [B, M]) of known shape, as `data.pad_to_static`
    makes them, and keep their shape through all layers.

    Compiled code cannot raise errors. Instead, an id out of range reads the nearest row, a value
    that is not finite counts as 0, and a discretizer passes the entries of unknown features.

    `OnlineStandardize` cannot be trained in the block: `training=True` is an error. Optimizers of
    this package update tables by sorting the batch's ids. A batch that is all padding counts as one
    that names row 0 with a gradient of 0.

    Yields:
        Nothing; the ops are active within the block and the current thread.
    """
    with check.unchecked(), library.override(static_shapes.library):
        yield
