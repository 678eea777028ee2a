"""What a training makes of labels: weights of positives, sampled negatives, several labels."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from twml_ops import layers
from twml_ops.data import Schema, Source, sample_negatives
from twml_ops.training.config import RunConfig
from twml_ops.training.errors import UserError

_NEGATIVES_SEED = 1  # unlike that of the validation data: the two choices are independent


def check_balance(config: RunConfig, schema: Schema) -> None:
    """Checks the options about the balance of the classes.

    Raises:
        UserError: an option is out of range, or used although the data have several labels.
    """
    if not 0 < config.positive_weight < math.inf:
        raise UserError(f"--positive-weight must be positive, got {config.positive_weight:g}")
    if not 0 < config.negative_rate <= 1:
        raise UserError(
            f"--negative-rate must be greater than 0 and at most 1, got {config.negative_rate:g}"
        )
    if len(schema.labels) > 1:
        labels = ", ".join(schema.labels)
        for option, used in (
            ("--positive-weight", config.positive_weight != 1),
            ("--negative-rate", config.negative_rate != 1),
        ):
            if used:
                raise UserError(
                    f"{option} needs one label, because positives of one label are negatives of "
                    f"another; the schema has {labels}"
                )


def training_examples(config: RunConfig, source: Source) -> Source:
    """The examples to train on: all of them, or with a random part of the negatives."""
    if config.negative_rate == 1:
        return source
    return sample_negatives(source, config.negative_rate, _NEGATIVES_SEED)


def weighted(dataset: tf.data.Dataset, positive_weight: float) -> tf.data.Dataset:
    """Multiplies the sample weights of the positives.

    Args:
        dataset: batches of (features, labels [B, 1]) or (features, labels, sample weights [B]).
        positive_weight: factor; 1 returns the dataset itself.

    Returns:
        Batches of (features, labels, sample weights [B]).
    """
    if positive_weight == 1:
        return dataset

    @tf.autograph.experimental.do_not_convert
    def add(features: object, labels: tf.Tensor, *weights: tf.Tensor) -> tuple[object, ...]:
        factor = tf.where(labels[:, 0] > 0, positive_weight, 1.0)
        return features, labels, factor * weights[0] if weights else factor

    return dataset.map(add)


def corrected(model: tf.keras.Model, config: RunConfig) -> tf.keras.Model:
    """The model with probabilities for all examples, if it was trained on some negatives only.

    With the share w of the negatives the odds p / (1 - p) are 1 / w times too high. The model gets
    a layer p → sigmoid(logit(p) + ln w), which equals p / (p + (1 - p) / w) (He et al., "Practical
    Lessons from Predicting Clicks on Ads at Facebook", ADKDD 2014).
    """
    if config.negative_rate == 1:
        return model
    layer = layers.PlattScaling(name="negative_sampling_correction")
    shift = math.log(config.negative_rate)
    layer.load_own_variables({"slopes": [1.0], "intercepts": [shift], "base_rates": [0.5]})
    return tf.keras.Model(model.input, layer(model.output), name=model.name)


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
    check_outputs(model, labels)
    columns = [model.output[label] for label in labels]
    joined = tf.keras.layers.Concatenate(name="joined_labels", dtype="float32")(columns)
    return tf.keras.Model(model.input, joined, name=model.name)


class JoinedModel:
    """A builder of models with one output for all labels, from a builder of models to serve.

    Args:
        build: returns a model that returns probabilities [B, 1]; of several labels a dict of them.
        labels: names of the labels.

    Attributes:
        served: the last model that `build` returned, which shares the weights of the one with one
            output.
    """

    def __init__(self, build: Callable[[], tf.keras.Model], labels: Sequence[str]) -> None:
        self._build, self._labels = build, labels
        self.served: Any = None

    def __call__(self) -> tf.keras.Model:
        """Returns the next model; see `joined_outputs`."""
        self.served = self._build()
        return joined_outputs(self.served, self._labels)


def check_outputs(model: tf.keras.Model, labels: Sequence[str]) -> None:
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
