"""A whole model through `model.fit`: discretizer → max-norm → sparse linear → MLP.

All contenders are the same model with the discretizer and the max-norm of twml_ops, on the same
data. They differ in the sparse linear layer and the optimizer, which come from twml_ops or from
TensorFlow and Keras.
"""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from benchmarks import timing
from benchmarks.contender import TWML_OPS
from benchmarks.contenders import tf as contenders_tf
from benchmarks.contenders.twml import OPTIMIZERS
from benchmarks.kernels import Log
from benchmarks.workload import Batch, Workload
from twml_ops import layers
from twml_ops.ops._tape import tf_variable

BATCH_SIZES = (256, 512, 1024)
RULES = ("sgd", "adagrad", "lazy_adam")
BINS = 32
MATMUL, LOOKUP = "sparse_dense_matmul", "embedding_lookup_sparse"
RAGGED, MULTI_STEP = f"{TWML_OPS}, ragged pairs", f"{TWML_OPS}, steps_per_execution=20"
LOSS_TOLERANCE = 1e-3


class StockLinear(tf.keras.layers.Layer):
    """A sparse linear layer made of stock TensorFlow ops.

    Args:
        units: columns of the table.
        input_dim: rows of the table.
        multiply: the product of a SparseTensor and the table.
    """

    def __init__(self, units: int, input_dim: int, multiply: Callable[..., tf.Tensor]) -> None:
        super().__init__()
        self.multiply = multiply
        self.supports_jit = False
        self.kernel = self.add_weight(
            name="kernel", shape=(input_dim, units), initializer=_initializer(1)
        )
        self.bias = self.add_weight(name="bias", shape=(units,), initializer="zeros")

    def call(self, inputs: tf.SparseTensor) -> tf.Tensor:
        """[B, input_dim] -> [B, units]."""
        return tf.nn.relu(self.multiply(inputs, tf_variable(self.kernel)) + self.bias)


@dataclass(frozen=True)
class ModelContender:
    """A compiled model.

    Attributes:
        model: the compiled model.
        steps: the steps of one timed `fit`. Fast models run more steps, because the start of an
            epoch takes as long as several of them.
        ragged: whether the model takes ragged pairs instead of sparse tensors.
    """

    model: tf.keras.Model
    steps: int
    ragged: bool = False


def measure(
    workload: Workload,
    *,
    rounds: int,
    steps: int = 60,
    stock_steps: int = 2,
    batch_sizes: Sequence[int] = BATCH_SIZES,
    rules: Sequence[str] = RULES,
    log: Log,
) -> dict[str, Any]:
    """Measures samples per second through `model.fit`.

    Args:
        workload: the workload of the discretized batch; N / 32 raw features have 32 buckets each.
        rounds: fits of each contender.
        steps: steps of a fit of twml_ops (a multiple of 20).
        stock_steps: steps of a fit of a model with stock ops.
        batch_sizes: values of B.
        rules: optimizers.
        log: receives progress messages.

    Returns:
        `times[rule][B][contender]` in seconds per step, the `wrong` losses, and the `profile` of a
        step of twml_ops.
    """
    features = workload.input_dim // BINS
    times: dict[str, dict[str, dict[str, Any]]] = {}
    wrong: dict[str, str] = {}
    profile: dict[str, dict[str, float]] = {}
    for rule in rules:
        log(f"model.fit: building for {rule}")
        contenders = _contenders(workload, rule, steps, stock_steps)
        times[rule] = {}
        for batch_size in batch_sizes:
            raw = workload.replace(input_dim=features, batch_size=batch_size).batches(8)
            data = {ragged: _dataset(raw, features, ragged) for ragged in (False, True)}
            if batch_size == batch_sizes[0]:
                wrong.update(_compare(contenders, data, rule))
            log(f"model.fit: timing {rule}, B = {batch_size}")
            runs = {
                name: functools.partial(_fit, e, data[e.ragged], e.steps)
                for name, e in contenders.items()
            }
            found = timing.interleave(runs, [0], rounds=rounds)
            times[rule][str(batch_size)] = {
                name: _per_step(t, contenders[name].steps) for name, t in found.items()
            }
            if rule == rules[0]:
                profile[str(batch_size)] = _profile(
                    contenders[TWML_OPS].model, raw, features, rounds
                )
        del contenders, runs
        gc.collect()
    return {
        "workload": asdict(workload),
        "rounds": rounds,
        "features": features,
        "times": times,
        "wrong": wrong,
        "profile": profile,
        "profile_rule": rules[0],
    }


def _initializer(seed: int) -> Any:
    return tf.keras.initializers.RandomUniform(-0.05, 0.05, seed=seed)


def _contenders(
    workload: Workload, rule: str, steps: int, stock_steps: int
) -> dict[str, ModelContender]:
    rows, units = workload.input_dim, workload.units
    # One discretizer per batch form: Keras binds a layer to the form of its first call.
    discretizers = {ragged: _discretizer(rows // BINS) for ragged in (False, True)}

    def twml_model(ragged: bool = False, steps_per_execution: int = 1) -> ModelContender:
        linear = layers.SparseLinear(units, rows, "relu", kernel_initializer=_initializer(1))
        model = _model(discretizers[ragged], linear, rows, ragged)
        _compile(model, OPTIMIZERS[rule](), steps_per_execution)
        return ModelContender(model, steps, ragged)

    def stock_model(multiply: Callable[..., tf.Tensor]) -> ModelContender:
        linear = StockLinear(units, rows, multiply)
        model = _model(discretizers[False], linear, rows, ragged=False)
        _compile(model, contenders_tf.KERAS[rule]())
        return ModelContender(model, stock_steps)

    return {
        TWML_OPS: twml_model(),
        RAGGED: twml_model(ragged=True),
        MULTI_STEP: twml_model(steps_per_execution=20),
        MATMUL: stock_model(contenders_tf.sparse_dense_matmul),
        LOOKUP: stock_model(contenders_tf.lookup),
    }


def _model(discretizer: Any, linear: Any, rows: int, ragged: bool) -> tf.keras.Model:
    features, keras = rows // BINS, tf.keras.layers
    if ragged:
        inputs: Any = (
            tf.keras.Input([None], dtype="int64", ragged=True),
            tf.keras.Input([None], ragged=True),
        )
    else:
        inputs = tf.keras.Input([features], sparse=True)
    x = linear(layers.MaxNorm(rows)(discretizer(inputs)))
    x = keras.Dense(64, "relu", kernel_initializer=_initializer(2))(x)
    x = keras.Dense(1, "sigmoid", kernel_initializer=_initializer(3))(x)
    return tf.keras.Model(inputs, x)


def _compile(model: tf.keras.Model, optimizer: Any, steps_per_execution: int = 1) -> None:
    model.compile(
        optimizer,
        "binary_crossentropy",
        steps_per_execution=steps_per_execution,
        jit_compile=False,
    )


def _discretizer(features: int) -> layers.PercentileDiscretizer:
    """A discretizer with 32 buckets per feature: 31 equally likely ones and one for NaN."""
    layer = layers.PercentileDiscretizer(BINS - 1, unknown="error")
    ids = np.tile(np.arange(features, dtype=np.int64), (BINS - 1, 1))
    values = (np.arange(BINS - 1, dtype=np.float32) + 0.5) / (BINS - 1)
    layer.adapt((ids, np.broadcast_to(values[:, None], ids.shape)))
    return layer


def _dataset(batches: Sequence[Batch], features: int, ragged: bool) -> tf.data.Dataset:
    """Endless batches from memory, so that reading and parsing are not measured.

    Autotuning is off, because the end of an iterator would wait seconds for the tuner.
    """
    parts = [tf.data.Dataset.from_tensors(_example(b, features, ragged)) for b in batches]
    whole = functools.reduce(lambda a, b: a.concatenate(b), parts)
    options = tf.data.Options()
    options.autotune.enabled = False
    return whole.repeat().prefetch(2).with_options(options)


def _example(batch: Batch, features: int, ragged: bool) -> tuple[Any, tf.Tensor]:
    rng = np.random.default_rng(batch.unique)
    labels = tf.constant(rng.integers(0, 2, (batch.num_rows, 1)), tf.float32)
    values = (batch.values - 0.5).astype(np.float32)  # [0, 1), equally likely
    if ragged:
        pair = (tf.RaggedTensor.from_row_splits(x, batch.row_splits) for x in (batch.ids, values))
        return tuple(pair), labels
    indices = np.stack([batch.row_indices, batch.ids], axis=1)
    return tf.SparseTensor(indices, values, [batch.num_rows, features]), labels


def _fit(contender: ModelContender, data: tf.data.Dataset, steps: int | None, _: int = 0) -> float:
    history = contender.model.fit(data, steps_per_epoch=steps, verbose=0, shuffle=False)
    return history.history["loss"][-1]


def _per_step(t: timing.Timing, steps: int) -> dict[str, Any]:
    per = {k: getattr(t, k) / steps for k in ("median", "lower", "upper")}
    return {**per, "calls": t.calls}


def _compare(
    contenders: dict[str, ModelContender], data: dict[bool, tf.data.Dataset], rule: str
) -> dict[str, str]:
    """Compares the mean losses of two first steps, which start from the same weights.

    After two steps they differ, because Keras' Adam also moves rows without a gradient.
    """
    losses = {n: _fit(e, data[e.ragged].take(2), None) for n, e in contenders.items()}
    return {
        f"{rule}: {name}": f"loss {loss:.4f} where {TWML_OPS} has {losses[TWML_OPS]:.4f}"
        for name, loss in losses.items()
        if not abs(loss - losses[TWML_OPS]) <= LOSS_TOLERANCE * losses[TWML_OPS]
    }


def _profile(
    model: tf.keras.Model, batches: Sequence[Batch], features: int, rounds: int
) -> dict[str, float]:
    """Seconds of the parts of a twml_ops step, each measured separately, without Keras' loop."""
    inputs = [_example(b, features, ragged=False) for b in batches]
    spec = [
        tf.SparseTensorSpec([None, features], tf.float32),
        tf.TensorSpec([None, 1], tf.float32),
    ]
    loss_of = tf.keras.losses.BinaryCrossentropy()

    discretizer, norm = model.layers[1:3]

    @tf.function(input_signature=spec[:1])
    def transforms(x: tf.SparseTensor) -> tf.SparseTensor:
        return norm(discretizer(x), training=True)

    @tf.function(input_signature=spec)
    def train_step(x: tf.SparseTensor, labels: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = loss_of(labels, model(x, training=True))
        variables = model.trainable_variables
        model.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return loss

    runs = {
        "discretizer and max-norm": lambda i: transforms(inputs[i][0]),
        "the whole train step": lambda i: train_step(*inputs[i]),
    }
    found = timing.interleave(runs, range(len(inputs)), rounds=2 * rounds)
    return {name: t.median for name, t in found.items()}
