"""What models share for their labels: the initial bias, and one output for each label."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from twml_ops._keras import serializable

Array = npt.NDArray[Any]


def base_logits(dataset: tf.data.Dataset, labels: Sequence[str]) -> list[float]:
    """The logit of the share of positives of each label, as the initial bias of a model.

    Args:
        dataset: batches of (features, labels) or (features, labels, sample weights), as of
            `data.Source.dataset`.
        labels: names of the labels.

    Returns:
        One finite number for each label. With sample weights the share is a weighted one.
    """
    zeros = tf.zeros([len(labels)], tf.float64)

    @tf.autograph.experimental.do_not_convert
    def add(sums: Any, batch: Any) -> Any:
        _, y, *weights = batch
        columns = [y[name] for name in labels] if isinstance(y, dict) else [y]
        y = tf.cast(tf.concat([tf.reshape(c, [-1, 1]) for c in columns], axis=1), tf.float64)
        w = tf.ones_like(y[:, :1])
        if weights:
            w = tf.cast(tf.reshape(weights[0], [-1, 1]), tf.float64)
        return sums[0] + tf.reduce_sum(w * y, axis=0), sums[1] + tf.reduce_sum(w)

    positives, examples = dataset.reduce((zeros, tf.zeros([], tf.float64)), add)
    return smoothed_logits(positives.numpy().tolist(), float(examples))


def columns_of(labels: Any, weights: Sequence[Any], names: Sequence[str]) -> tuple[Array, Array]:
    """The labels and the sample weights of a batch as arrays.

    Args:
        labels: [B] or [B, 1]; of several labels a dict of them by name.
        weights: none, or one tensor [B] or [B, 1].
        names: names of the labels.

    Returns:
        (float64 [B, number of labels], float64 [B], 1 if there are no weights).
    """
    by_label = [labels[n] for n in names] if isinstance(labels, dict) else [labels]
    y = np.stack([c.numpy().reshape(-1) for c in by_label], axis=1).astype(np.float64)
    w = weights[0].numpy().astype(np.float64).reshape(-1) if weights else np.ones(len(y))
    return y, w


def smoothed_logits(positives: Sequence[float], examples: float) -> list[float]:
    """The logit of (positives + 1) / (examples + 2), which is never 0 or 1, for each label."""
    rates = [(p + 1) / (examples + 2) for p in positives]
    return [
        # The rate of weights beyond 2^53 is rounded to 1.
        math.log(rate / (1 - rate)) if rate < 1 else math.log((p + 1) / (max(examples - p, 0) + 1))
        for p, rate in zip(positives, rates, strict=True)
    ]


def probabilities(logits: Any, labels: Sequence[str]) -> Any:
    """The outputs of a model.

    Args:
        logits: [B, number of labels].
        labels: names of the labels.

    Returns:
        Probabilities [B, 1]; of several labels a dict of them by name.
    """
    result = tf.keras.layers.Activation("sigmoid", dtype="float32", name="probability")(logits)
    return result if len(labels) == 1 else SplitLabels(labels, name="labels")(result)


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
