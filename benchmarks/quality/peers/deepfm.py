"""A DeepFM made of Keras' own layers and optimizer.

Guo et al., "DeepFM: A Factorization-Machine based Neural Network for CTR Prediction", IJCAI 2017.
"""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

from benchmarks.quality.encodings import Buckets, Vocabulary
from benchmarks.quality.examples import Array, Examples
from benchmarks.quality.peer import Peer, Settings, Trained

if not hasattr(keras, "ops"):
    raise ImportError(f"needs Keras 3, got {keras.__version__}")

UNITS, HIDDEN, MIN_COUNT = 16, (128, 64), 4
BATCH_SIZE, MAX_EPOCHS, PATIENCE = 512, 15, 2


class DeepFM(Peer):
    """Fields are categories and quantile buckets; numbers also enter the dense net."""

    name = "DeepFM, plain Keras"
    grid = tuple(
        {"l2": l2, "learning_rate": rate} for l2 in (1e-6, 1e-5, 1e-4) for rate in (0.001, 0.0003)
    )

    def run(
        self,
        settings: Settings,
        train: Examples,
        scored: Examples,
        *,
        seed: int,
        stop_early: bool,
    ) -> Trained:
        """See `Peer`."""
        keras.utils.set_random_seed(seed)
        inputs = _Inputs(train, MIN_COUNT)
        model = _model(inputs, settings["l2"], float(train.labels.mean()))
        model.compile(keras.optimizers.Adam(settings["learning_rate"]), "binary_crossentropy")
        x, scored_x = inputs.transform(train), inputs.transform(scored)
        labels = train.labels[:, np.newaxis]
        if not stop_early:
            model.fit(x, labels, BATCH_SIZE, settings["rounds"], verbose=0)
            return Trained(_predict(model, scored_x))
        stopping = keras.callbacks.EarlyStopping(patience=PATIENCE, restore_best_weights=True)
        history = model.fit(
            x,
            labels,
            BATCH_SIZE,
            MAX_EPOCHS,
            verbose=0,
            validation_data=(scored_x, scored.labels[:, np.newaxis]),
            callbacks=[stopping],
        )
        rounds = 1 + int(np.argmin(history.history["val_loss"]))
        return Trained(_predict(model, scored_x), rounds)


class _Inputs:
    """Ids of the fields and standardized numbers."""

    def __init__(self, train: Examples, min_count: int) -> None:
        self._buckets = Buckets(train.numbers)
        self._vocabulary = Vocabulary(self._fields(train), min_count)
        numbers = _logarithms(train)
        self._mean, self._deviation = np.nanmean(numbers, axis=0), np.nanstd(numbers, axis=0)
        self.num_numbers = numbers.shape[1]

    @property
    def sizes(self) -> list[int]:
        return self._vocabulary.sizes

    def transform(self, examples: Examples) -> list[Array]:
        numbers = (_logarithms(examples) - self._mean) / np.maximum(self._deviation, 1e-6)
        ids = self._vocabulary.transform(self._fields(examples))
        offsets = np.concatenate([[0], np.cumsum(self.sizes)[:-1]]) if self.sizes else 0
        return [ids + offsets, np.nan_to_num(numbers).astype(np.float32)]

    def _fields(self, examples: Examples) -> Array:
        return np.hstack([self._buckets.transform(examples.numbers), examples.categories])


def _logarithms(examples: Examples) -> Array:
    numbers = examples.dense()
    return np.sign(numbers) * np.log1p(np.abs(numbers))


def _model(inputs: _Inputs, l2: float, base_rate: float) -> Any:
    """Linear part + factorization machine + dense net."""
    layers, sizes = keras.layers, inputs.sizes
    ids = keras.Input((len(sizes),), dtype="int64")
    numbers = keras.Input((inputs.num_numbers,))
    deep, logits, sums, squares = [], [], [], []
    if sizes:
        rows, penalty = sum(sizes), keras.regularizers.L2(l2)
        initial = keras.initializers.RandomNormal(stddev=0.01)
        vectors = layers.Embedding(rows, UNITS, initial, embeddings_regularizer=penalty)(ids)
        weights = layers.Embedding(rows, 1, "zeros", embeddings_regularizer=penalty)(ids)
        sums.append(keras.ops.sum(vectors, axis=1))
        squares.append(keras.ops.sum(keras.ops.square(vectors), axis=1))
        logits.append(keras.ops.sum(weights, axis=1))
        deep.append(layers.Flatten()(vectors))
    if inputs.num_numbers:
        total, squared = _NumberFactors(UNITS, l2)(numbers)
        sums.append(total)
        squares.append(squared)
        logits.append(layers.Dense(1, use_bias=False, kernel_initializer="zeros")(numbers))
        deep.append(numbers)
    pairs = keras.ops.square(sum(sums)) - sum(squares)
    logits.append(0.5 * keras.ops.sum(pairs, axis=1, keepdims=True))
    x = deep[0] if len(deep) == 1 else layers.Concatenate()(deep)
    for width in HIDDEN:
        x = layers.Dropout(0.3)(layers.Dense(width, "relu")(x))
    start = keras.initializers.Constant(float(np.log(base_rate / (1 - base_rate))))
    logits.append(layers.Dense(1, bias_initializer=start)(x))
    return keras.Model([ids, numbers], layers.Activation("sigmoid")(sum(logits)))


class _NumberFactors(keras.layers.Layer):
    """Sums over the numbers x of x v and of (x v)², with a vector v for each number."""

    def __init__(self, units: int, l2: float) -> None:
        super().__init__()
        self._units, self._l2 = units, l2

    def build(self, input_shape: Any) -> None:
        initial = keras.initializers.RandomNormal(stddev=0.01)
        self.vectors = self.add_weight(
            shape=(input_shape[-1], self._units),
            initializer=initial,
            regularizer=keras.regularizers.L2(self._l2),
        )

    def call(self, numbers: Any) -> Any:
        square = keras.ops.square
        return (
            keras.ops.matmul(numbers, self.vectors),
            keras.ops.matmul(square(numbers), square(self.vectors)),
        )


def _predict(model: Any, inputs: list[Array]) -> Array:
    return np.asarray(model.predict(inputs, batch_size=8192, verbose=0), np.float64).ravel()
