"""The untrained model of a run, and the learning rate that it is trained with."""

from __future__ import annotations

import dataclasses
import math

import tensorflow as tf

from twml_ops import _keras, models
from twml_ops.cli.errors import UserError
from twml_ops.cli.runs import optimizers
from twml_ops.cli.runs.class_balance import weighted
from twml_ops.cli.runs.config import DEFAULT, RunConfig
from twml_ops.cli.runs.model_options import builder_of
from twml_ops.cli.runs.runner import MakeModel
from twml_ops.cli.runs.sources import LARGE_BATCH_SIZE
from twml_ops.cli.runs.warm_start import WarmStart
from twml_ops.data import Schema, Source


def model_maker(config: RunConfig) -> MakeModel:
    """A function that builds the model of a run, always from the same random numbers.

    Raises:
        UserError: the model is unknown, or the run that it starts from cannot be continued.
    """
    if config.from_run is not None:
        return WarmStart(config).make_model
    build = builder_of(config.model)
    layout = models.layout_of(build)

    def make_model(source: Source) -> tf.keras.Model:
        # Also resets the names of layers, which count up, and releases an earlier model.
        tf.keras.backend.clear_session()
        tf.keras.utils.set_random_seed(config.seed)
        _keras.keep_random_state_in_variables()  # so that checkpoints have it
        batches = source.dataset(LARGE_BATCH_SIZE, layout=layout)
        batches = weighted(batches, config.positive_weight)
        return build(source.schema, batches, **config.model_options)

    return make_model


def with_defaults(config: RunConfig, schema: Schema) -> RunConfig:
    """The configuration with a model that suits the features, and a learning rate.

    Args:
        config: what the user chose.
        schema: the features.

    Raises:
        UserError: the optimizer is unknown, or the learning rate is not a positive number.
    """
    if config.model == DEFAULT:
        config = dataclasses.replace(config, model=models.default_name(schema))
    return with_learning_rate(config)


def with_learning_rate(config: RunConfig) -> RunConfig:
    """The configuration with the default learning rate where the user chose none.

    Raises:
        UserError: the optimizer is unknown, or the learning rate is not a positive number.
    """
    rate = optimizers.learning_rate_of(config.optimizer, config.model)
    if config.learning_rate is not None:
        rate = config.learning_rate
    if not 0 < rate < math.inf:
        raise UserError(f"--learning-rate must be a positive number, got {rate}")
    return dataclasses.replace(config, learning_rate=rate)
