"""Several labels as one matrix, on which a model with an output for each label is trained."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from twml_ops.cli.errors import UserError


def joined_outputs(model: tf.keras.Model, labels: Sequence[str]) -> tf.keras.Model:
    """The model with one output for all labels; it has the weights of the model itself.

    Args:
        model: model that returns probabilities [B, 1]; of several labels a dict of them.
        labels: names of the labels.

    Returns:
        A model that returns [B, number of labels], in the order of `labels`. Of one label the model
        itself.

    Raises:
        UserError: the model has no output for a label.
    """
    if len(labels) == 1:
        return model
    check(model, labels)
    columns = [model.output[label] for label in labels]
    joined = tf.keras.layers.Concatenate(name="joined_labels", dtype="float32")(columns)
    return tf.keras.Model(model.input, joined, name=model.name)


def check(model: tf.keras.Model, labels: Sequence[str]) -> None:
    """Checks that a model of several labels has an output for each.

    Raises:
        UserError: it has not.
    """
    found = sorted(model.output) if isinstance(model.output, dict) else "one tensor"
    if found != sorted(labels):
        raise UserError(
            f"the model {model.name} must return a dict of probabilities for the labels "
            f"{', '.join(labels)}, it returns {found}"
        )


def joined(dataset: tf.data.Dataset, labels: Sequence[str]) -> tf.data.Dataset:
    """Batches of which the labels are one matrix [B, number of labels].

    Args:
        dataset: batches of (features, labels) or (features, labels, sample weights), in which
            several labels are a dict.
        labels: names of the labels.

    Returns:
        The batches; of one label `dataset` itself.
    """
    if len(labels) == 1:
        return dataset

    @tf.autograph.experimental.do_not_convert
    def join(features: object, by_label: dict[str, tf.Tensor], *weights: tf.Tensor) -> Any:
        return features, tf.concat([by_label[label] for label in labels], axis=1), *weights

    return dataset.map(join)


def summed_loss(labels: Sequence[str]) -> str | Callable[[Any, Any], Any]:
    """The loss of a training: the sum of the log losses of all labels.

    With the sum, and not the mean, the weights of one label are regularized as they are in a
    training on this label alone.

    Args:
        labels: names of the labels.

    Returns:
        A loss for `compile` of Keras.
    """
    if len(labels) == 1:
        return "binary_crossentropy"
    count = float(len(labels))
    return lambda y, p: count * tf.keras.losses.binary_crossentropy(y, p)
