"""The untrained model of a run, its optimizer, and tables whose rows are in files."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import tensorflow as tf

from twml_ops import _keras, layers, models, optimizers, placement
from twml_ops._keras import all_layers
from twml_ops.data import Schema, Source
from twml_ops.training.config import AUTO, DEFAULT, DEFAULT_BATCH_SIZE, RunConfig
from twml_ops.training.errors import UserError
from twml_ops.training.labels import weighted
from twml_ops.training.model_options import builder_of
from twml_ops.training.reporter import Reporter
from twml_ops.training.sources import LARGE_BATCH_SIZE
from twml_ops.training.trained_run import WarmStart


def model_maker(config: RunConfig) -> MakeModel:
    """A function that builds the model of a run, always from the same random numbers.

    Raises:
        UserError: the model is unknown, or the run that it starts from cannot be continued.
    """
    if config.from_run is not None:
        return WarmStart(config).make_model
    build = builder_of(config.model)
    layout = models.layout_of(build, config.model_options)

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


_FEW_EXAMPLES = 50_000  # whose trees take a second or two


def for_trial(config: RunConfig, examples: int) -> RunConfig:
    """The configuration of a model that only chooses and is not kept: with one ensemble of trees.

    More of them change the validation loss of all epochs by about as much. They are worth more in
    the mean with the net, however, so small data have all of them, which cost little there.

    Args:
        config: configuration of the run.
        examples: number of examples that the model is trained on.

    Returns:
        The same one if its model is kept, has no trees, or the user chose how many, or the data are
        small.
    """
    options = config.model_options
    if not config.refit or config.from_run is not None or "tree_ensembles" in options:
        return config
    if examples < _FEW_EXAMPLES:
        return config
    if builder_of(config.model) not in (models.dcn, models.deepfm):
        return config
    return dataclasses.replace(config, model_options={**options, "tree_ensembles": 1})


_MIN_STEPS = 100  # of an epoch
_LARGEST_BATCH = 1024


def with_batch_size(
    config: RunConfig, examples: int, scale_rate: bool, *, second: bool = False
) -> RunConfig:
    """The configuration with a batch size where the user chose none.

    A step has a cost that does not depend on its examples, so large data are trained in larger
    batches: for `dcn`, or the second model of a run, and Adagrad the largest power of two that
    leaves an epoch 100 steps, from 256 to 1,024. The learning rate grows with its square root, as
    the noise of a mean of gradients decreases with it. All others have 256.

    Args:
        config: configuration of a run in this process.
        examples: number of training examples.
        scale_rate: whether the learning rate is the default one.
        second: whether the model is the second one of a run, see `selection.second_model`.
    """
    if config.batch_size is not None:
        return config
    size = DEFAULT_BATCH_SIZE
    measured = config.from_run is None and config.optimizer == "adagrad"
    if measured and config.model != AUTO and (second or builder_of(config.model) is models.dcn):
        while size < _LARGEST_BATCH and examples >= 2 * size * _MIN_STEPS:
            size *= 2
    rate = config.learning_rate
    if rate is not None and scale_rate:
        rate *= math.sqrt(size / DEFAULT_BATCH_SIZE)
    return dataclasses.replace(config, batch_size=size, learning_rate=rate)


def with_learning_rate(config: RunConfig) -> RunConfig:
    """The configuration with the default learning rate where the user chose none.

    Raises:
        UserError: the optimizer is unknown, or the learning rate is not a positive number.
    """
    rate = learning_rate_of(config.optimizer, config.model)
    if config.learning_rate is not None:
        rate = config.learning_rate
    if not 0 < rate < math.inf:
        raise UserError(f"--learning-rate must be a positive number, got {rate}")
    return dataclasses.replace(config, learning_rate=rate)


# Far below the squared gradients of frequent ids in a batch, and near the squared gradients of ids
# seen once. The first steps of a rare id are then proportional to its gradient, which has the
# effect of L2.
_ACCUMULATOR = 1e-5

_OPTIMIZERS: dict[str, tuple[Callable[..., tf.keras.optimizers.Optimizer], float]] = {
    "adagrad": (partial(optimizers.Adagrad, initial_accumulator_value=_ACCUMULATOR), 0.04),
    "rowwise_adagrad": (
        partial(optimizers.RowWiseAdagrad, initial_accumulator_value=_ACCUMULATOR),
        0.04,
    ),
    "lazy_adam": (optimizers.LazyAdam, 0.002),
    "ftrl": (partial(optimizers.Ftrl, initial_accumulator_value=_ACCUMULATOR), 0.04),
    "momentum": (optimizers.Momentum, 0.02),
    "sgd": (optimizers.SGD, 0.2),
}

# The cross layers multiply their inputs, so large steps of one weight disturb all others.
_RATE_FACTORS = {"dcn": 0.5}


def optimizer_names() -> list[str]:
    """The names of the optimizers."""
    return list(_OPTIMIZERS)


def learning_rate_of(name: str, model: str = "") -> float:
    """The default learning rate.

    Args:
        name: name of the optimizer.
        model: name of the model.

    Raises:
        UserError: `name` is unknown.
    """
    if name not in _OPTIMIZERS:
        expected = ", ".join(optimizer_names())
        raise UserError(f"unknown optimizer {name!r}: expected one of {expected}")
    return _OPTIMIZERS[name][1] * _RATE_FACTORS.get(model, 1.0)


def make_optimizer(
    name: str,
    learning_rate: float,
    steps: int | None = None,
    scaled: Callable[[Any], Any] = lambda rate: rate,
    **options: Any,
) -> tf.keras.optimizers.Optimizer:
    """Creates an optimizer whose learning rate is constant, or decreases linearly to 0.

    The decrease averages out the noise of the last steps. FTRL always has a constant learning rate:
    it computes the weights from the sum of all gradients and the current rate, so a rate of 0 would
    set them to 0.

    Args:
        name: name of the optimizer.
        learning_rate: initial learning rate.
        steps: number of steps after which the rate is 0; None: it is constant.
        scaled: function of the learning rate or schedule, for example a warm-up.
        **options: arguments of the optimizer.
    """
    rate: Any = learning_rate
    if steps is not None and name != "ftrl":
        rate = tf.keras.optimizers.schedules.PolynomialDecay(learning_rate, max(steps, 1), 0.0)
    return _OPTIMIZERS[name][0](scaled(rate), **options)


def check_storage(config: RunConfig) -> None:
    """Checks that a run with `storage` asks for nothing that needs several models in memory.

    Args:
        config: configuration of the run.

    Raises:
        UserError: it does, or the workers of a cluster update tables without locks.
    """
    if config.storage is None:
        return
    if config.cache_rows < 1:
        raise UserError(f"--cache-rows must be at least 1, got {config.cache_rows}")
    for wrong, why in (
        (
            config.cluster is not None and config.cluster.mode == "hogwild",
            "--mode hogwild updates tables without locks, which files do not allow",
        ),
        (config.model == AUTO, "--model auto trains models in memory; name a model"),
        (config.ensemble > 1, "--ensemble keeps the trained models in memory; train single runs"),
    ):
        if wrong:
            raise UserError(f"--storage: {why}")


def storage_of(config: RunConfig, folder: str = "") -> layers.Tiered | None:
    """The storage of the large tables of a run; None: all tables are in memory.

    Args:
        config: configuration of the run.
        folder: folder for the files, below the one that the user named.
    """
    if config.storage is None:
        return None
    return layers.Tiered(os.path.join(config.storage, folder), config.cache_rows)


def storage_scope(config: RunConfig, folder: str = "") -> AbstractContextManager[None]:
    """A context in which the large tables of new models have their rows in files of this process.

    Args:
        config: configuration of the run.
        folder: folder for the files, below the one that the user named.
    """
    storage = storage_of(config, folder)
    if storage is None:
        return contextlib.nullcontext()
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


def without_optimizer(model: tf.keras.Model) -> tf.keras.Model:
    """A model with the layers of a trained one, but not its optimizer with its slots."""
    return tf.keras.Model(model.input, model.output, name=model.name)


MakeModel = Callable[[Source], tf.keras.Model]
"""Returns an untrained model whose input transforms are adapted to a source."""


def report_model(reporter: Reporter, model: tf.keras.Model, optimizer: str) -> None:
    """Reports the name of a model, its number of weights, the optimizer, its boosted trees
    and the widths of the vectors of fields, if they differ.

    Args:
        reporter: is told what happens.
        model: the model.
        optimizer: name of the optimizer.
    """
    # A worker of a cluster may have a stand-in for the model that its chief has built.
    found = all_layers(model) if isinstance(model, tf.keras.Model) else []
    trees = [(x.num_ensembles, x.num_trees) for x in found if isinstance(x, layers.BoostedTrees)]
    widths = [x.units for x in found if isinstance(x, layers.FieldEmbedding)]
    weights = num_weights(model)
    reporter.model(model.name, weights, optimizer, trees)
    for units in widths:
        if not isinstance(units, int):
            reporter.widths(units)
