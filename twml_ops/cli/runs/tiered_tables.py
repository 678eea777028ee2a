"""Runs whose large tables have their rows in files: `twml-ops train --storage`."""

from __future__ import annotations

import contextlib
from contextlib import AbstractContextManager

import tensorflow as tf

from twml_ops import layers, placement
from twml_ops.cli.errors import UserError
from twml_ops.cli.runs.config import AUTO, RunConfig


def check(config: RunConfig) -> None:
    """Checks that a run with `storage` asks for nothing that needs several models in memory.

    Args:
        config: configuration of the run.

    Raises:
        UserError: it does, or it is trained in a cluster.
    """
    if config.storage is None:
        return
    if config.cache_rows < 1:
        raise UserError(f"--cache-rows must be at least 1, got {config.cache_rows}")
    for wrong, why in (
        (config.cluster is not None, "the tables of a cluster are in the memory of its servers"),
        (config.model == AUTO, "--model auto trains models in memory; name a model"),
        (config.ensemble > 1, "--ensemble keeps the trained models in memory; train single runs"),
    ):
        if wrong:
            raise UserError(f"--storage: {why}")


def scope(config: RunConfig) -> AbstractContextManager[None]:
    """A context in which the large tables of new models have their rows in files.

    Args:
        config: configuration of the run.
    """
    if config.storage is None:
        return contextlib.nullcontext()
    storage = layers.Tiered(config.storage, config.cache_rows)
    return placement.placement_scope(placement.LargeTables(storage))


def read_ahead(dataset: tf.data.Dataset, model: tf.keras.Model) -> tf.data.Dataset:
    """The batches, announced to the tables of a model.

    Args:
        dataset: batches of the training.
        model: the model. Tables of one in which a layer is used several times read nothing ahead.
    """
    try:
        return layers.prefetch_rows(dataset, model)
    except ValueError:
        return dataset


def num_weights(model: tf.keras.Model) -> int:
    """The number of weights of a model, including rows in files.

    Args:
        model: a Keras model, or what has its `count_params`.
    """
    count = int(model.count_params())
    for variable in getattr(model, "variables", ()):
        place = placement.placement_of(variable)
        if isinstance(place, placement.TieredPlacement):
            count += place.num_weights() - int(tf.TensorShape(variable.shape).num_elements())
    return count


def in_memory(model: tf.keras.Model) -> tf.keras.Model:
    """The model, or the same one with all tables in memory.

    Args:
        model: the trained model.
    """
    places = [placement.placement_of(variable) for variable in model.variables]
    if not any(isinstance(place, placement.TieredPlacement) for place in places):
        return model
    with placement.placement_scope(placement.ZeroTables()):
        whole = layers.clone_model(model)
    placement.copy_weights(model.variables, whole.variables)
    return whole
