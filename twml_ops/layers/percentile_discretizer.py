"""Discretization of continuous features into buckets with contiguous ids."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import tensorflow as tf

from twml_ops import ops
from twml_ops._batch import SparseBatch
from twml_ops._keras import serializable
from twml_ops.layers._arguments import check_id_bits
from twml_ops.layers._discretizer import Discretizer
from twml_ops.placement.device import StatePlacement


@serializable
class PercentileDiscretizer(Discretizer):
    """Replaces each (feature, value) by (id of its bucket, 1); `adapt` computes the buckets.

    The buckets of a feature have consecutive ids, features are in ascending order, and the
    pass-through space comes last. `output_dim`, known after `adapt`, is exactly the number of
    buckets, plus 2^pass_through_bits if `unknown` is "pass". The bucket of a value is
    `numpy.searchsorted(boundaries, value, side)`; infinities are ordinary values.

    The layer can be used in a model, where it has no gradient, and in `tf.data.Dataset.map`. It
    takes any batch form and returns the same form; a binary batch (ids alone) stays one.

    Args:
        num_bins: Maximum number of buckets of a feature, without its NaN bucket: one number for all
            features, or a dict feature id → number, which restricts `adapt` to these features.
        side: "left": buckets are intervals (a, b]. "right": [a, b).
        missing: "bucket": NaNs of an adapted feature get a bucket of their own, its last. "drop":
            the entry is dropped.
        unknown: What happens to entries of features that were not adapted. "pass": the entry keeps
            its value and gets an id hashed from the feature into the pass-through space. "drop":
            the entry is dropped. "error": the op fails.
        pass_through_bits: Size of the pass-through space, 1 to 62; it has 2^pass_through_bits ids.
        epsilon: Rank error of `adapt`, as a share of a feature's values; in [1e-5, 0.5].
        keep_sketch: Whether files and checkpoints also contain the sketch of the adapted data
            (`sketch`), so that it can be merged or compared with other data later.
        keep_inputs: Whether the value of an adapted feature, unless it is NaN, is kept next to its
            bucket, at an id of the feature after all buckets.
        placement: "auto": the boundaries are in the memory of the host, or where a
            `placement_scope` of a `DevicePlacement` puts them. "host": in the memory of the host.
            "device": in the memory of the GPU, if there is one; this needs the library of CUDA
            kernels, and the layer cannot be used in `tf.data.Dataset.map`.
        **kwargs: Arguments of `tf.keras.layers.Layer`.

    Raises:
        ValueError: An argument is out of range. When called: the layer is not adapted, or the input
            has no batch form.
        tf.errors.InvalidArgumentError: When called, a feature is unknown and `unknown` is "error".
            With the boundaries on a GPU a later call raises it.
    """

    def __init__(
        self,
        num_bins: int | Mapping[int, int],
        side: Literal["left", "right"] = "left",
        missing: Literal["bucket", "drop"] = "bucket",
        unknown: Literal["pass", "drop", "error"] = "pass",
        pass_through_bits: int = 18,
        epsilon: float = 1e-3,
        keep_sketch: bool = False,
        keep_inputs: bool = False,
        placement: StatePlacement = "auto",
        **kwargs: Any,
    ) -> None:
        super().__init__(
            num_bins, side, missing, unknown, epsilon, keep_sketch, keep_inputs, placement, **kwargs
        )
        self.pass_through_bits = check_id_bits("pass_through_bits", pass_through_bits)

    def _id_space(self, features: int, boundaries: int) -> int:
        buckets = boundaries + features * (2 if self.missing == "bucket" else 1)
        buckets += features if self.keep_inputs else 0
        return buckets + (1 << self.pass_through_bits if self.unknown == "pass" else 0)

    def _discretize(self, batch: SparseBatch) -> tuple[tf.Tensor, tf.Tensor | None, tf.Tensor]:
        return ops.percentile_discretize(
            *batch,
            *self.state_variables,
            side=self.side,
            missing=self.missing,
            unknown=self.unknown,
            keep_inputs=self.keep_inputs,
            pass_through_bits=self.pass_through_bits,
        )

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments, and the output size if the layer is adapted."""
        return {**super().get_config(), "pass_through_bits": self.pass_through_bits}
