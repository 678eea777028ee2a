"""A small model of clicks that peers, hybrid servers and replicas train; here: peers.

A wide layer on a table, and a dense layer. The examples are made here: ids with the distribution
of Zipf, and labels of random weights of the ids. Each worker has examples of its own.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from twml_ops import peers

if TYPE_CHECKING:
    import tensorflow as tf

ROWS, UNITS, ENTRIES, BATCH, HELD_OUT = 2**16, 16, 40, 256, 4096
CHECK = 48  # batches between two evaluations
EXECUTION = 8  # batches that Keras trains in one call
RATE = 0.1


def pin(number: int) -> None:
    """Gives this process, a simulated host, one of the cores. Call it before TensorFlow starts."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[number % len(cores)]})


def examples(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Examples. The weights that label them are the same for all seeds.

    Args:
        count: their number.
        seed: the seed of the examples.

    Returns:
        (ids [count, ENTRIES], float32 labels [count, 1]).
    """
    rng = np.random.default_rng([3, seed])
    weights = np.random.default_rng(0).normal(size=ROWS)
    share = np.cumsum(1 / (np.arange(ROWS) + 20.0))
    ids = np.searchsorted(share / share[-1], rng.random((count, ENTRIES)))
    logits = 3 * weights[ids].sum(1) / np.sqrt(ENTRIES)
    labels = rng.random(count) < 1 / (1 + np.exp(-logits))
    return ids, labels.astype(np.float32)[:, None]


def dataset(batches: int, seed: int, batch: int = BATCH) -> tf.data.Dataset:
    """Batches of examples.

    Args:
        batches: their number.
        seed: the seed of the examples.
        batch: examples in one.
    """
    import tensorflow as tf

    return tf.data.Dataset.from_tensor_slices(examples(batches * batch, seed)).batch(batch)


def model() -> tf.keras.Model:
    """The model, with the same weights in all processes."""
    import tensorflow as tf

    from twml_ops import layers

    tf.keras.utils.set_random_seed(0)
    ids = tf.keras.Input([ENTRIES], dtype="int64")
    hidden = layers.SparseLinear(UNITS, ROWS, activation="relu")(ids)
    return tf.keras.Model(ids, tf.keras.layers.Dense(1, activation="sigmoid")(hidden))


class Curve:
    """The seconds and the losses of a training, without the evaluations.

    Args:
        loss: evaluates the model.
    """

    def __init__(self, loss: Callable[[], float]) -> None:
        self._loss, self._begin = loss, 0.0
        self._seconds: list[float] = []
        self._losses: list[float] = []

    def after(self, batches: int) -> None:
        """Notes the time, which begins with the first call, and the loss if it is time.

        Args:
            batches: that the training has done.
        """
        now = time.perf_counter()
        self._begin = self._begin or now
        if batches % CHECK == 0:
            self._seconds.append(now - self._begin)
            self._losses.append(self._loss())
            self._begin += time.perf_counter() - now

    def result(self) -> dict[str, Any]:
        """After each `CHECK` batches: `seconds` of the training, without the first execution,
        which traces the graph, and without the evaluations; `loss` on held-out examples.
        """
        return {"seconds": self._seconds, "loss": self._losses}


def held_out() -> tuple[np.ndarray, np.ndarray]:
    """The examples of the evaluations; see `examples`."""
    return examples(HELD_OUT, -1 % 2**16)


def fit(compiled: tf.keras.Model, data: Any, batches: int, callbacks: list[Any]) -> dict[str, Any]:
    """Trains a model and evaluates it every `CHECK` batches.

    Args:
        compiled: the model.
        data: dataset of `batches` batches.
        batches: their number.
        callbacks: of `fit`.

    Returns:
        See `Curve`.
    """
    import tensorflow as tf

    ids, labels = held_out()

    def loss() -> float:
        p = compiled(ids, training=False)
        return float(tf.reduce_mean(tf.keras.losses.binary_crossentropy(labels, p)))

    curve = Curve(loss)

    def on_train_batch_end(batch: int, logs: Any = None) -> None:
        curve.after(batch + 1)

    clock = tf.keras.callbacks.LambdaCallback(on_train_batch_end=on_train_batch_end)
    compiled.fit(data, callbacks=[*callbacks, clock], verbose=0)
    return curve.result()


def compile_model(built: tf.keras.Model) -> tf.keras.Model:
    """The model, compiled with Adagrad."""
    from twml_ops import optimizers

    built.compile(
        optimizers.Adagrad(RATE),
        "binary_crossentropy",
        steps_per_execution=EXECUTION,
        jit_compile=False,
    )
    return built


def measure(group: peers.PeerGroup, setting: dict[str, Any]) -> dict[str, Any]:
    """Trains on this rank's examples, on a core of its own.

    Args:
        group: the ranks.
        setting: `batches`; `every` and `consistency`, see `PeerAveraging`.

    Returns:
        See `fit`; `sent_bytes`, the data of this rank's messages.
    """
    pin(group.rank)
    from twml_ops import distribute

    averaging = distribute.PeerAveraging(
        group, setting["every"], consistency=setting.get("consistency", "bsp")
    )
    data = dataset(setting["batches"], group.rank)
    found = fit(compile_model(model()), data, setting["batches"], [averaging])
    counts = averaging.counts
    return {**found, "sent_bytes": counts.sent_bytes if counts else 0}
