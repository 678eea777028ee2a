"""Every public layer in every form of Keras model, with a batch for it.

A law about all layers is a test over `CASES`. `test_every_public_layer_has_a_case` fails for a
public layer that has none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from twml_ops import layers, models, research
from twml_ops._keras import KERAS_3

N, ROWS, WIDTH = 12, 8, 3
IDS = np.random.default_rng(3).integers(0, N, (ROWS, WIDTH))
IDS[np.random.default_rng(4).random(IDS.shape) < 0.3] = -1
IDS[0] = -1  # a row without entries
VALUES = np.random.default_rng(5).normal(size=IDS.shape).astype(np.float32)
VECTORS = np.random.default_rng(6).normal(size=(ROWS, 4, 2)).astype(np.float32)
PRESENT = np.random.default_rng(7).random(IDS.shape) < 0.8
KEYS = np.arange(ROWS)

serializable = tf.keras.utils.register_keras_serializable("twml_tests")


def ragged(values):
    """The present entries of a padded array."""
    there = IDS != -1
    return tf.RaggedTensor.from_row_lengths(values[there], there.sum(axis=1))


def batch_of(form):
    """The ids and values above in a batch form."""
    if form == "sparse":
        there = np.argwhere(IDS != -1)
        order = np.lexsort((IDS[IDS != -1], there[:, 0]))
        indices = np.stack([there[:, 0], IDS[IDS != -1]], axis=1)[order]
        return tf.SparseTensor(indices, VALUES[IDS != -1][order], (ROWS, N))
    batches = {
        "padded": lambda: [tf.constant(IDS), tf.constant(VALUES)],
        "padded binary": lambda: tf.constant(IDS),
        "ragged": lambda: [ragged(IDS), ragged(VALUES)],
        "ragged binary": lambda: ragged(IDS),
    }
    return batches[form]()


@serializable
class Flat(tf.keras.layers.Layer):
    """All outputs of a layer side by side, [B, any]."""

    def __init__(self, **kwargs):
        super().__init__(autocast=False, **kwargs)

    def call(self, inputs):
        parts = [
            tf.reshape(tf.cast(x, self.compute_dtype), [-1, int(np.prod(x.shape[1:]))])
            for x in tf.nest.flatten(inputs)
        ]
        return tf.concat(parts, axis=1)

    def get_config(self):
        config = super().get_config()
        config.pop("autocast", None)
        return config


class Case(NamedTuple):
    """A layer, and how it is called.

    Attributes:
        make: Returns the layer, with a state that depends on the seed.
        batch: What it is called with.
        then: Returns the layer that takes its outputs, if these are not dense.
    """

    make: Callable[[int], Any]
    batch: Any
    then: Callable[[], Any] | None = None


def _random(seed):
    return np.random.default_rng(100 + seed)


def _normal(seed):
    return tf.keras.initializers.RandomNormal(stddev=1.0, seed=seed)


def _labels(seed, rows=200):
    return (_random(seed).random(rows) < 0.4).astype(np.float32)


def _categories(layer, seed):
    layer.adapt([tf.constant(_random(seed).integers(0, N, (200, WIDTH)))])
    return layer


def _bags(layer, seed):
    rng = _random(seed)
    flat = tf.RaggedTensor.from_row_lengths(rng.integers(0, N, 300), [3] * 100)
    layer.adapt([[tf.constant(rng.integers(0, N, (100, 2))), flat]])
    return layer


def _statistics(layer, seed):
    ids = _random(seed).integers(0, N, (200, WIDTH))
    layer.adapt([((ids, np.arange(200)), _labels(seed))])
    return layer


def _numbers(layer, seed):
    layer.adapt([(_random(seed).lognormal(size=(100, WIDTH)), np.ones((100, WIDTH), bool))])
    return layer


def _discretized(layer, seed, labels=False):
    rng = _random(seed)
    ids = np.tile(np.arange(N), (60, 1))
    values = rng.normal(size=ids.shape).astype(np.float32)
    classes = (values[:, 1] > 0).astype(np.int64)
    data = tf.data.Dataset.from_tensors(((ids, values), classes)) if labels else (ids, values)
    layer.adapt(data)
    return layer


def _calibrated(layer, seed):
    layer.adapt(_random(seed).random(200), _labels(seed))
    return layer


def _trees(seed):
    layer = layers.BoostedTrees(2, num_folds=2, max_trees=3, num_leaves=4, min_examples=5)
    rng = _random(seed)
    nodes = 5 + seed
    state = {
        "features": rng.integers(0, 2, nodes),
        "thresholds": rng.normal(size=nodes),
        "missing_left": np.zeros(nodes),
        "children": np.tile(np.arange(nodes)[:, None], (1, 2)),
        "values": rng.normal(size=nodes),
        "roots": rng.integers(0, nodes, (2, 3)),
    }
    for name, variable in zip(layer.state_names, layer.state_variables, strict=True):
        variable.assign(tf.cast(state[name], variable.dtype))
    return layer


def _normalized(layer, seed):
    layer((tf.range(N)[None], tf.constant(_random(seed).normal(size=(1, N)))), training=True)
    return layer


def _dynamic(layer, seed):
    layer(tf.constant(_random(seed).integers(0, N, (4, 2))), training=True)
    return layer


def _learned(seed):
    ids = np.concatenate([_random(seed).integers(0, N, (300, WIDTH)), np.zeros((1, WIDTH), int)])
    known = layers.CategoryRows(WIDTH, min_count=1)
    counts = known.new_counts()
    known.count(counts, ids)
    known.adapt_from_counts(counts)
    layer = research.LearnedHash(WIDTH)
    keys, number = np.unique(counts.state()["keys"]), WIDTH
    state = {
        "keys": np.concatenate([[-1], keys]),
        "rows": np.concatenate([[0], 1 + _random(seed).integers(0, 5, len(keys))]),
        "hashed": np.full(number, 4),
        "sizes": np.full(number, 5),
    }
    for name, variable in zip(layer.state_names, layer.state_variables, strict=True):
        variable.assign(tf.cast(state[name], variable.dtype))
    return layer


def _linear():
    return layers.SparseLinear(2, 64)


def _embedded():
    return layers.FieldEmbedding([N + 2] * WIDTH, 2, out_of_range="wrap")


def _bag_embedded():
    return layers.FieldEmbedding([N + 2] * WIDTH, 2, num_bags=1, out_of_range="wrap")


TABLES = {"a": layers.SparseTable(N, 2), "b": layers.SparseTable(N, 3, "ones", "bfloat16")}
VECTOR_LAYERS = ("FieldAttention", "FieldConvolution", "FieldCross", "FieldDot", "FieldLinear")
PAIR, DENSE = batch_of("ragged"), tf.constant(IDS)

CASES: dict[str, Case] = {
    "BoostedTrees": Case(_trees, [tf.constant(VALUES[:, :2])]),
    "CategoryRows": Case(
        lambda seed: _categories(layers.CategoryRows(WIDTH), seed), DENSE, _embedded
    ),
    "CategoryRows_bags": Case(
        lambda seed: _bags(layers.CategoryRows(WIDTH, num_bags=1), seed),
        [DENSE[:, :2], ragged(IDS)],
        _bag_embedded,
    ),
    "CountStatistics": Case(
        lambda seed: _statistics(layers.CountStatistics(WIDTH, [(0, 1)]), seed),
        [DENSE, tf.constant(KEYS)],
    ),
    "Cross": Case(
        lambda seed: layers.Cross(2, kernel_initializer=_normal(seed), bias_initializer="ones"),
        tf.constant(VALUES),
    ),
    "DHENBlock": Case(
        lambda seed: research.DHENBlock(list(research.DHEN_MODULES), 2), tf.constant(VECTORS)
    ),
    "DHENBlock_weighted": Case(
        lambda seed: research.DHENBlock(["dot", research.FieldCross(3)], 3, "weighted"),
        tf.constant(VECTORS),
    ),
    "DotInteraction": Case(lambda seed: layers.DotInteraction(), tf.constant(VECTORS)),
    "DynamicLookup": Case(lambda seed: _dynamic(layers.DynamicLookup(64), seed), PAIR, _linear),
    "DynamicSparseLinear": Case(
        lambda seed: _dynamic(
            layers.DynamicSparseLinear(2, 9, kernel_initializer=_normal(seed)), seed
        ),
        PAIR,
    ),
    "FactorizationMachine": Case(
        lambda seed: layers.FactorizationMachine(pool=False), tf.constant(VECTORS)
    ),
    **{
        name: Case(lambda seed, name=name: getattr(research, name)(3), tf.constant(VECTORS))
        for name in VECTOR_LAYERS
    },
    "FieldEmbedding": Case(
        lambda seed: layers.FieldEmbedding(
            [7] * WIDTH, [2, 3, 2], projected_units=2, out_of_range="wrap"
        ),
        DENSE,
    ),
    "FieldEmbedding_bags": Case(
        lambda seed: layers.FieldEmbedding([7] * WIDTH, 2, num_bags=2, out_of_range="wrap"),
        [DENSE[:, :1], ragged(IDS), [ragged(IDS), ragged(VALUES)]],
    ),
    "FieldLogarithms": Case(
        lambda seed: _numbers(layers.FieldLogarithms(WIDTH), seed),
        [tf.constant(VALUES), tf.constant(PRESENT)],
    ),
    "FieldQuantiles": Case(
        lambda seed: _numbers(layers.FieldQuantiles(WIDTH, 5), seed),
        [tf.constant(VALUES), tf.constant(PRESENT)],
    ),
    "GroupedSparseLinear": Case(
        lambda seed: layers.GroupedSparseLinear(TABLES, {"x": "a", "y": "b", "z": "b"}),
        {"x": PAIR, "y": batch_of("padded"), "z": batch_of("ragged binary")},
    ),
    "HashingDiscretizer": Case(
        lambda seed: _discretized(layers.HashingDiscretizer(6, 3), seed), PAIR, _linear
    ),
    "IsotonicCalibration": Case(
        lambda seed: _calibrated(layers.IsotonicCalibration(), seed),
        tf.constant(np.abs(VALUES[:, :1])),
    ),
    "LearnedHash": Case(_learned, DENSE, _embedded),
    "MDLDiscretizer": Case(
        lambda seed: _discretized(layers.MDLDiscretizer(pass_through_bits=4), seed, labels=True),
        PAIR,
        _linear,
    ),
    "MaxNorm": Case(lambda seed: _normalized(layers.MaxNorm(N), seed), PAIR, _linear),
    "OnlineStandardize": Case(
        lambda seed: _normalized(layers.OnlineStandardize(N), seed), PAIR, _linear
    ),
    "PercentileDiscretizer": Case(
        lambda seed: _discretized(
            layers.PercentileDiscretizer(3, unknown="drop", keep_sketch=True), seed
        ),
        PAIR,
        _linear,
    ),
    "PlattScaling": Case(
        lambda seed: _calibrated(layers.PlattScaling(), seed), tf.constant(np.abs(VALUES[:, :1]))
    ),
    "SparseLinear_bfloat16": Case(
        lambda seed: layers.SparseLinear(4, N, "relu", kernel_dtype="bfloat16"), PAIR
    ),
    "SparseLinear_column": Case(
        lambda seed: layers.SparseLinear(4, N, num_partitions=2, partition_axis="column"), PAIR
    ),
    "SparseLinear_row": Case(lambda seed: layers.SparseLinear(4, N, num_partitions=3), PAIR),
    "StringHash": Case(
        lambda seed: layers.StringHash(["a", "b", "c"]),
        tf.strings.as_string(DENSE),
        _embedded,
    ),
    "StringHash_bag": Case(
        lambda seed: layers.StringHash(["a"]),
        tf.strings.as_string(ragged(IDS)),
        lambda: layers.FieldEmbedding([9], 2, num_bags=1, bag_combiner="sum", out_of_range="wrap"),
    ),
    "TargetStatistics": Case(
        lambda seed: _statistics(layers.TargetStatistics(WIDTH, [(0, 1)]), seed),
        [DENSE, tf.constant(KEYS)],
    ),
    "Tower": Case(
        lambda seed: research.Tower(
            layers.FieldEmbedding([7] * WIDTH, 2, out_of_range="wrap"),
            research.TowerModule(0.5, kernel_initializer=_normal(seed)),
        ),
        DENSE,
    ),
    "TowerModule": Case(
        lambda seed: research.TowerModule(0.5, [2, 0], kernel_initializer=_normal(seed)),
        tf.constant(VECTORS),
    ),
    "Bias": Case(lambda seed: models.Bias([0.5, -1.0, 2.0]), tf.constant(VALUES)),
    "HashedIds": Case(lambda seed: models.HashedIds(6), PAIR, _linear),
    "MeanLogit": Case(
        lambda seed: models.MeanLogit(), [tf.constant(VALUES), tf.constant(2 * VALUES)]
    ),
    "MeanLogit_weighted": Case(
        lambda seed: models.MeanLogit(0.75), [tf.constant(VALUES), tf.constant(2 * VALUES)]
    ),
    "SigmoidOfMeanLogit": Case(
        lambda seed: models.SigmoidOfMeanLogit(), [tf.constant(VALUES), tf.constant(2 * VALUES)]
    ),
    "SplitLabels": Case(lambda seed: models.SplitLabels(["a", "b", "c"]), tf.constant(VALUES)),
    **{
        f"SparseLinear_{form}".replace(" ", "_"): Case(
            lambda seed: layers.SparseLinear(4, N), batch_of(form)
        )
        for form in ("sparse", "ragged", "ragged binary", "padded", "padded binary")
    },
    **{
        f"MaxNorm_{form}".replace(" ", "_"): Case(
            lambda seed: _normalized(layers.MaxNorm(N), seed), batch_of(form), _linear
        )
        for form in ("sparse", "ragged binary", "padded")
    },
    "HashedIds_sparse": Case(lambda seed: models.HashedIds(6), batch_of("sparse"), _linear),
    "PercentileDiscretizer_padded": Case(
        lambda seed: _discretized(layers.PercentileDiscretizer(3), seed),
        batch_of("padded"),
        _linear,
    ),
}


def public_layers():
    """The names of the public layers that can be made."""
    found = set()
    for module in (layers, models, research):
        for name in module.__all__:
            member = getattr(module, name)
            is_layer = isinstance(member, type) and issubclass(member, tf.keras.layers.Layer)
            if is_layer and not getattr(member, "__abstractmethods__", None):
                found.add(name)
    return found


def _stack(name, seed):
    case = CASES[name]
    stages = [case.make(seed)]
    if case.then is not None:
        stages.append(case.then())
    return [*stages, Flat(), tf.keras.layers.Dense(2, bias_initializer=_normal(seed))]


def _inputs(name):
    """Symbolic inputs for the batch of a case."""
    names = iter(f"{name.replace(' ', '_')}_{i}" for i in range(20))

    def one(x):
        if isinstance(x, tf.RaggedTensor):
            return tf.keras.Input((None,), dtype=x.dtype, ragged=True, name=next(names))
        if isinstance(x, tf.SparseTensor):
            return tf.keras.Input((N,), dtype=x.dtype, sparse=True, name=next(names))
        return tf.keras.Input(x.shape[1:], dtype=x.dtype, name=next(names))

    return tf.nest.map_structure(one, CASES[name].batch)


def functional(name, seed):
    """A functional model of a case."""
    inputs = x = _inputs(name)
    for stage in _stack(name, seed):
        x = stage(x)
    return tf.keras.Model(inputs, x)


@serializable
class Subclassed(tf.keras.Model):
    """A subclassed model of a case."""

    def __init__(self, case, seed=1, **kwargs):
        super().__init__(**kwargs)
        self.case = case
        self.first, *middle, self.flat, self.head = _stack(case, seed)
        self.second = middle[0] if middle else None

    def call(self, inputs):
        x = self.first(inputs)
        x = x if self.second is None else self.second(x)
        return self.head(self.flat(x))

    def get_config(self):
        return {**super().get_config(), "case": self.case}


@serializable
class EveryCase(tf.keras.Model):
    """A subclassed model of all cases, by name: sequential ones where there is one dense input."""

    def __init__(self, seed=1, **kwargs):
        super().__init__(**kwargs)
        for name, case in CASES.items():
            # Keras 2 refuses layers with several outputs in a sequential model.
            dense = KERAS_3 and isinstance(case.batch, tf.Tensor)
            stack = [_inputs(name), *_stack(name, seed)] if dense else []
            made = tf.keras.Sequential(stack) if dense else Subclassed(name, seed)
            setattr(self, f"of_{name}", made)

    def call(self, inputs):
        found = {}
        for name, batch in inputs.items():
            found[name] = getattr(self, f"of_{name}")(batch)
        return found


def nested(seed=1):
    """A functional model of all cases, by name, whose parts are functional models."""
    inputs = {name: _inputs(name) for name in CASES}
    outputs = {name: functional(name, seed)(x) for name, x in inputs.items()}
    return tf.keras.Model(inputs, outputs)


FORMS = {"nested": nested, "subclassed": EveryCase}
BATCHES = {name: case.batch for name, case in CASES.items()}


def build(form, seed):
    """The model of a form, called once so that it has all its weights."""
    tf.keras.utils.set_random_seed(seed)
    model = FORMS[form](seed)
    model(BATCHES)
    return model


def outputs(model):
    """What a model makes of all batches, by the name of the case."""
    return {name: np.asarray(y).tolist() for name, y in model(BATCHES).items()}
