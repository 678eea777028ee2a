"""The Keras layer that gives each label of a model an output of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from twml_ops._keras import serializable


@serializable
class SplitLabels(tf.keras.layers.Layer):
    """Divides [B, L] into its columns, a dict of [B, 1] by the name of the label.

    Args:
        labels: names of the L columns.
        **kwargs: arguments of `tf.keras.layers.Layer`.

    Raises:
        ValueError: `labels` is empty or has a name twice.
    """

    def __init__(self, labels: Sequence[str], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.labels = [str(name) for name in labels]
        if not self.labels or len(set(self.labels)) < len(self.labels):
            raise ValueError(f"labels must be one or more different names, got {labels!r}")

    def call(self, inputs: Any) -> dict[str, tf.Tensor]:
        """Divides one batch.

        Args:
            inputs: float [B, L].

        Returns:
            Name of a label → [B, 1].

        Raises:
            ValueError: the input has another width.
        """
        if inputs.shape.rank != 2 or inputs.shape[1] != len(self.labels):
            raise ValueError(
                f"inputs must have the shape [B, {len(self.labels)}], got {inputs.shape}"
            )
        columns = tf.split(inputs, len(self.labels), axis=1)
        return dict(zip(self.labels, columns, strict=True))

    def compute_output_shape(self, input_shape: Any) -> dict[str, tuple[int | None, int]]:
        """[B, 1] by the name of the label."""
        return {name: (input_shape[0], 1) for name in self.labels}

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return {**super().get_config(), "labels": list(self.labels)}
