"""The weight of positive examples, and the correction of a model trained on some negatives only."""

from __future__ import annotations

import math

import numpy as np
import tensorflow as tf

from twml_ops import layers
from twml_ops.cli.errors import UserError
from twml_ops.cli.runs.config import RunConfig
from twml_ops.data import Schema, Source, sample_negatives

_SEED = 1  # unlike that of the validation data: the two choices are independent


def check(config: RunConfig, schema: Schema) -> None:
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
                    f"{option} is for the positives and negatives of one label, and the schema "
                    f"names {labels}"
                )


def labels_of_one_value(source: Source) -> list[str]:
    """A sentence for each label without positives, or without negatives, that count.

    The training data are read until both have been found, which ordinary data have at their
    beginning.

    Raises:
        UserError: all sample weights are 0.
        ValueError: data cannot be read.
    """
    names = source.schema.labels
    found = np.zeros((2, len(names)), bool)
    any_weight = False
    for block in source.blocks():
        labels = block.labels.reshape(len(block), -1)
        weights = block.columns.get("weight")
        if weights is not None:
            labels = labels[weights > 0]
        any_weight = any_weight or len(labels) > 0
        found |= np.stack([(labels <= 0).any(axis=0), (labels > 0).any(axis=0)])
        if found.all():
            return []
    if not any_weight:
        raise UserError(f"{source.name}: all sample weights of the training data are 0")
    return [
        f"The label {name} is {int(positives)} in all examples of the training data {source.name}, "
        "so that there is nothing to learn."
        for name, (negatives, positives) in zip(names, found.T, strict=True)
        if not (negatives and positives)
    ]


def training_examples(config: RunConfig, source: Source) -> Source:
    """The examples to train on: all of them, or with a random part of the negatives."""
    if config.negative_rate == 1:
        return source
    return sample_negatives(source, config.negative_rate, _SEED)


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
