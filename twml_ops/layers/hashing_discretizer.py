"""Discretization of continuous features into buckets with hashed ids."""

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
class HashingDiscretizer(Discretizer):
    """`PercentileDiscretizer` with ids hashed from (feature id, bucket) into [0, 2^output_bits).

    The id of a bucket does not depend on other features, so a model keeps its weights when features
    are added. Buckets may collide. `output_dim` is 2^output_bits. An entry of a feature that was
    not adapted keeps its value and gets an id hashed from the feature.

    Args:
        output_bits: Size of the id space, 1 to 62.
        num_bins: Maximum number of buckets of a feature, without its NaN bucket: one number for all
            features, or a dict feature id → number, which restricts `adapt` to these features.
        side: "left": buckets are intervals (a, b]. "right": [a, b).
        missing: "bucket": a NaN gets a bucket of its own. "drop": the entry is dropped.
        unknown: What happens to entries of features that were not adapted: "pass" keeps them,
            "drop" drops them, "error" makes the op fail.
        epsilon: Rank error of `adapt`, as a share of a feature's values; in [1e-5, 0.5].
        keep_sketch: Whether files and checkpoints also contain the sketch of the adapted data
            (`sketch`), so that it can be merged or compared with other data later.
        keep_inputs: Whether the value of an adapted feature, unless it is NaN, is kept next to its
            bucket, at the id of a passed entry.
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
        output_bits: int,
        num_bins: int | Mapping[int, int],
        side: Literal["left", "right"] = "left",
        missing: Literal["bucket", "drop"] = "bucket",
        unknown: Literal["pass", "drop", "error"] = "pass",
        epsilon: float = 1e-3,
        keep_sketch: bool = False,
        keep_inputs: bool = False,
        placement: StatePlacement = "auto",
        **kwargs: Any,
    ) -> None:
        super().__init__(
            num_bins, side, missing, unknown, epsilon, keep_sketch, keep_inputs, placement, **kwargs
        )
        self.output_bits = check_id_bits("output_bits", output_bits)

    def _id_space(self, features: int, boundaries: int) -> int:
        del features, boundaries
        return 1 << self.output_bits

    def _discretize(self, batch: SparseBatch) -> tuple[tf.Tensor, tf.Tensor | None, tf.Tensor]:
        return ops.hashing_discretize(
            *batch,
            *self.state_variables,
            output_bits=self.output_bits,
            side=self.side,
            missing=self.missing,
            unknown=self.unknown,
            keep_inputs=self.keep_inputs,
        )

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments, and the output size if the layer is adapted."""
        return {**super().get_config(), "output_bits": self.output_bits}
