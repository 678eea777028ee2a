"""Continuous features to buckets with contiguous ids."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import tensorflow as tf

from twml_ops import ops
from twml_ops._batch import SparseBatch
from twml_ops._keras import serializable
from twml_ops.layers._arguments import check_bits
from twml_ops.layers._discretizer import Discretizer


@serializable
class PercentileDiscretizer(Discretizer):
    """Replaces each (feature, value) by (id of its bucket, 1); `adapt` finds the buckets.

    The ids of a feature's buckets follow each other, features ascend, and the pass-through space
    comes last, so `output_dim`, known after `adapt`, is exactly the number of buckets (plus
    2^pass_through_bits if `unknown` is "pass"). A bucket is what `numpy.searchsorted(boundaries,
    value, side)` says; infinities are values like any other.

    Usable in a model, where no gradient flows back through it, and in `tf.data.Dataset.map`. Takes
    and returns any batch form; a binary batch (ids alone) stays one.

    Args:
        num_bins: most buckets a feature gets, its NaN bucket not counted: one number for all, or a
            dict feature id -> number, and then only these features are adapted.
        side: "left": a bucket is an interval (a, b]. "right": [a, b).
        missing: "bucket": NaNs of an adapted feature get a bucket of their own, its last. "drop":
            an entry whose value is NaN is dropped.
        unknown: of entries whose feature `adapt` did not see (or was not to adapt). "pass": keeps
            its value at an id hashed from the feature into the pass-through space. "drop": is
            dropped. "error": the batch is refused.
        pass_through_bits: the pass-through space has 2^pass_through_bits ids, 1 to 62.
        epsilon: rank error of `adapt`, as a share of a feature's values; in [1e-5, 0.5].
        keep_sketch: whether files and checkpoints keep what `adapt` saw (`sketch`), beside the
            boundaries, so that it can be merged or compared with other data later.
        keep_inputs: an adapted feature's value, unless it is NaN, also stays beside its bucket, at
            an id of the feature behind all buckets.
        **kwargs: of `tf.keras.layers.Layer`.

    Raises:
        ValueError: an argument out of its range; called before `adapt`; an input of no batch form.
        tf.errors.InvalidArgumentError: an unknown feature where that is an error, when called.
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
        **kwargs: Any,
    ) -> None:
        super().__init__(
            num_bins, side, missing, unknown, epsilon, keep_sketch, keep_inputs, **kwargs
        )
        self.pass_through_bits = check_bits("pass_through_bits", pass_through_bits)

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
        """The constructor's arguments, and the size of the output if the layer is adapted."""
        return {**super().get_config(), "pass_through_bits": self.pass_through_bits}
