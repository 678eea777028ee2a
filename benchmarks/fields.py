"""A training step of per-field vectors: `FieldEmbedding` beside a Keras `Embedding` a field.

`python -m benchmarks.fields` has the shape of Criteo: 26 categories and 13 bucketed numbers a row.
The model is the lookup and a dense layer; all contenders compute the same from the same rows. The
lookup alone (forward, gradient and update of `FieldEmbedding`, without a model) is compared with
the time of its bytes as random rows, which a C++ loop measures in turns with the contenders. CPU
time, of all threads, depends less on other programs of the machine than wall time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from benchmarks import bandwidth_floor, machine, random_row_floor, tables, timing
from benchmarks.bandwidth_floor import Bandwidth
from benchmarks.workload import Batch

CATEGORIES, NUMBERS, BUCKETS = 26, 13, 64
OURS, KERAS, KERAS_OURS = "FieldEmbedding", "Embedding a field, Keras", "Embedding a field, ours"
LOOKUP, CALL = "FieldEmbedding without a model", "the call of a function without work"


def main(
    batch_size: Annotated[int, typer.Option(min=1, help="Rows in a batch.")] = 1024,
    units: Annotated[int, typer.Option(min=1, help="Width of a vector.")] = 16,
    rows: Annotated[int, typer.Option(min=2, help="Rows of a categorical field.")] = 2**16,
    threads: Annotated[int, typer.Option(min=1, help="For every contender.")] = 2,
    rounds: Annotated[int, typer.Option(min=1, help="Turns of each contender.")] = 11,
    docs: Annotated[
        Path | None, typer.Option(help="Folder of performance.md, into which the table goes.")
    ] = None,
) -> None:
    """Times a training step (forward, backward, Adagrad update) of each contender."""
    machine.limit_threads(threads)
    about = machine.describe(machine.command_line("benchmarks.fields"))
    times, floors = measure(batch_size, units, rows, rounds, threads)
    head = (
        f"{tables.machine(about)}\n\nB = {batch_size:,}, {CATEGORIES} fields of {rows:,} rows and "
        f"{NUMBERS} of {BUCKETS}, vectors of {units}, {threads} threads. Medians of {rounds} "
        "interleaved rounds."
    )
    text = f"{head}\n\n{table(times, floors)}"
    print(text)
    if docs is not None:
        tables.insert(docs / "performance.md", "fields", text, by="benchmarks/fields.py")


def table(times: dict[str, Any], floors: dict[str, float]) -> str:
    """The times of `measure` as a Markdown table.

    Args:
        times: timing of each contender.
        floors: the random-row floor of the lookup, in seconds and ("cpu") in CPU seconds.
    """
    header, clocks = ["a step with Adagrad"], {"median": "ms", "cpu": "CPU ms"}
    for unit in clocks.values():
        header += [unit, f"÷ {OURS}", "÷ random-row floor of the lookup"]
    rows = []
    for name, found in times.items():
        rows.append([name])
        for clock in clocks:
            alone = name in (LOOKUP, CALL)
            rows[-1] += [
                tables.milliseconds(found[clock]),
                "–" if alone else tables.ratio(found[clock], times[OURS][clock]),
                tables.ratio(found[clock], floors[clock]),
            ]
    rows.append(["random-row floor of the lookup"])
    for clock in clocks:
        rows[-1] += [tables.milliseconds(floors[clock]), "–", "1 ×"]
    return tables.markdown(header, rows)


def measure(
    batch_size: int, units: int, rows: int, rounds: int, threads: int
) -> tuple[dict[str, Any], dict[str, float]]:
    """Seconds a step of each contender on the same batches, and the floors of the lookup.

    The clocks are the ones of `timing.Timing`: "median" and "cpu".
    """
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
    runs[LOOKUP], runs[CALL] = lookup_of(sizes, units, batches), call_alone(batches)
    table_rows = [_table_rows(ids.numpy(), sizes) for ids, _ in batches]
    table = np.zeros((sum(sizes), units), np.float32)
    stream = bandwidth_floor.BandwidthProbe(threads)
    random = random_row_floor.RandomRowProbe(table, table_rows, threads)
    indices = range(len(batches))
    timings = timing.interleave({**runs, **stream.runs(), **random.runs()}, indices, rounds=rounds)
    found = {name: asdict(timing_) for name, timing_ in timings.items()}
    probes = [[found.pop(name) for name in probe.runs()] for probe in (stream, random)]
    floors = {}
    for clock in ("median", "cpu"):
        of_stream, of_random = ([passed[clock] for passed in probe] for probe in probes)
        memory = stream.bandwidth(*of_stream)
        of_rows = random.bandwidth(indices, *of_random)
        each = [_floor(batch, units, memory, of_rows) for batch in table_rows]
        floors[clock] = float(np.mean(each))
    return found, floors


def _table_rows(ids: np.ndarray, sizes: list[int]) -> Batch:
    """The rows of the table of all fields that the entries of a batch refer to."""
    rows = (ids + np.cumsum([0, *sizes[:-1]])).reshape(-1)
    splits = np.arange(0, rows.size + 1, len(sizes))
    return Batch(rows, np.zeros(0, np.float32), splits, len(np.unique(rows)))


def _floor(batch: Batch, units: int, memory: Bandwidth, rows: Bandwidth) -> float:
    """Lower bound of the lookup, its gradient and the update by Adagrad, in seconds.

    The ids are read twice, a vector for each entry is written and its gradient read. Each distinct
    row is read, and later read and written with its slots.
    """
    vectors = 4 * units * len(batch.ids)
    seconds = (2 * batch.ids.nbytes + vectors) / memory.read + vectors / memory.update
    floats = bandwidth_floor.FLOATS_PER_ROW["adagrad"](units)
    return seconds + batch.unique * (4 * units / rows.read + 2 * 4 * floats / rows.update)


def one_layer(sizes: list[int], units: int) -> Any:
    """The model with one lookup."""
    import tensorflow as tf

    from twml_ops import layers

    inputs = tf.keras.Input((len(sizes),), dtype="int64")
    vectors = layers.FieldEmbedding(sizes, units, out_of_range="wrap")(inputs)
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

    concrete = step.get_concrete_function(*batches[0])  # as in `benchmarks.kernels`
    return lambda i: concrete(*batches[i]).numpy()


def lookup_of(sizes: list[int], units: int, batches: list[Any]) -> Callable[[int], object]:
    """The lookup, the gradient of the table for a given gradient of the vectors, the update."""
    import tensorflow as tf

    from twml_ops import layers, optimizers

    layer = layers.FieldEmbedding(sizes, units, out_of_range="wrap")
    optimizer = optimizers.Adagrad(0.05)
    layer(batches[0][0])
    optimizer.build(layer.trainable_variables)
    upstream = tf.random.normal([len(batches[0][0]), len(sizes), units])

    @tf.function(jit_compile=False)
    def step(ids: Any) -> Any:
        with tf.GradientTape() as tape:
            vectors = layer(ids)
        gradients = tape.gradient(vectors, layer.trainable_variables, upstream)
        optimizer.apply_gradients(zip(gradients, layer.trainable_variables, strict=True))
        return vectors[0, 0, 0]

    concrete = step.get_concrete_function(batches[0][0])
    return lambda i: concrete(batches[i][0]).numpy()


def call_alone(batches: list[Any]) -> Callable[[int], object]:
    """A function that takes the ids of a batch and returns one of them."""
    import tensorflow as tf

    concrete = tf.function(lambda ids: ids[0, 0]).get_concrete_function(batches[0][0])
    return lambda i: concrete(batches[i][0]).numpy()


def _head(vectors: Any) -> Any:
    import tensorflow as tf

    flat = tf.keras.layers.Flatten()(vectors)
    return tf.keras.layers.Dense(1, activation="sigmoid")(flat)


if __name__ == "__main__":
    typer.run(main)
