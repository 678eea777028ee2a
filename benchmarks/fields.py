"""A training step of per-field vectors: `FieldEmbedding` beside a Keras `Embedding` a field.

`python -m benchmarks.fields` has the shape of Criteo: 26 categories and 13 bucketed numbers a row.
The model is the lookup and a dense layer; both contenders compute the same from the same rows.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from typing import Annotated, Any

import numpy as np
import typer

from benchmarks import machine, timing

CATEGORIES, NUMBERS, BUCKETS = 26, 13, 64
OURS, KERAS, KERAS_OURS = "FieldEmbedding", "Embedding a field, Keras", "Embedding a field, ours"


def main(
    batch_size: Annotated[int, typer.Option(min=1, help="Rows in a batch.")] = 1024,
    units: Annotated[int, typer.Option(min=1, help="Width of a vector.")] = 16,
    rows: Annotated[int, typer.Option(min=2, help="Rows of a categorical field.")] = 2**16,
    threads: Annotated[int, typer.Option(min=1, help="For every contender.")] = 2,
    rounds: Annotated[int, typer.Option(min=1, help="Turns of each contender.")] = 11,
) -> None:
    """Times a training step (forward, backward, Adagrad update) of each contender."""
    machine.limit_threads(threads)
    times = measure(batch_size, units, rows, rounds)
    for name, found in times.items():
        print(
            f"{name:<26} {found['median'] * 1e3:8.2f} ms  "
            f"({found['lower'] * 1e3:.2f} to {found['upper'] * 1e3:.2f})"
        )
    ratio = times[KERAS]["median"] / times[OURS]["median"]
    print(f"{KERAS} / {OURS}: {ratio:.1f}")
    print(json.dumps({"machine": machine.describe("python -m benchmarks.fields"), "times": times}))


def measure(batch_size: int, units: int, rows: int, rounds: int) -> dict[str, Any]:
    """Seconds a step of each contender, on the same batches."""
    import tensorflow as tf

    from twml_ops import optimizers

    sizes = [rows] * CATEGORIES + [BUCKETS] * NUMBERS
    rng = np.random.default_rng(0)
    batches = []
    for _ in range(8):
        # Popular categories are frequent: Zipf's law, as in logs of ads.
        drawn = [np.minimum(rng.zipf(1.2, batch_size) - 1, n - 2) for n in sizes]
        labels = rng.integers(0, 2, (batch_size, 1)).astype(np.float32)
        batches.append((tf.constant(np.stack(drawn, axis=1)), tf.constant(labels)))
    contenders = {
        OURS: (one_layer(sizes, units), optimizers.Adagrad(0.05)),
        KERAS: (layer_a_field(sizes, units), tf.keras.optimizers.Adagrad(0.05)),
        KERAS_OURS: (layer_a_field(sizes, units), optimizers.Adagrad(0.05)),
    }
    runs = {name: step_of(*pair, batches) for name, pair in contenders.items()}
    timings = timing.interleave(runs, range(len(batches)), rounds=rounds)
    return {name: asdict(found) for name, found in timings.items()}


def one_layer(sizes: list[int], units: int) -> Any:
    """The model with one lookup."""
    import tensorflow as tf

    from twml_ops import layers

    inputs = tf.keras.Input((len(sizes),), dtype="int64")
    vectors = layers.FieldEmbedding(sizes, units)(inputs)
    return tf.keras.Model(inputs, _head(vectors))


def layer_a_field(sizes: list[int], units: int) -> Any:
    """The model with a Keras `Embedding` for each field."""
    import tensorflow as tf

    inputs = tf.keras.Input((len(sizes),), dtype="int64")
    vectors = [tf.keras.layers.Embedding(n, units)(inputs[:, f]) for f, n in enumerate(sizes)]
    return tf.keras.Model(inputs, _head(tf.keras.layers.Concatenate()(vectors)))


def step_of(model: Any, optimizer: Any, batches: list[Any]) -> Callable[[int], object]:
    """A compiled training step on the batch of an index."""
    import tensorflow as tf

    optimizer.build(model.trainable_variables)

    @tf.function(jit_compile=False)
    def step(ids: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.keras.losses.binary_crossentropy(labels, model(ids)))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    return lambda i: step(*batches[i]).numpy()


def _head(vectors: Any) -> Any:
    import tensorflow as tf

    flat = tf.keras.layers.Flatten()(vectors)
    return tf.keras.layers.Dense(1, activation="sigmoid")(flat)


if __name__ == "__main__":
    typer.run(main)
