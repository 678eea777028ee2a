"""A training step of `DynamicSparseLinear` beside one of `SparseLinear`.

`python -m benchmarks.dynamic_lookup`: both layers see batches of about 200 Zipf-distributed ids an
example. `SparseLinear` has a row for each id. `DynamicSparseLinear` has as many rows, or an eighth
of them, so that every batch evicts rows. All see each batch once before steps are timed in turns.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import typer

from benchmarks import machine, timing
from benchmarks.workload import Batch, Workload

STATIC, FITS, EVICTS = "SparseLinear", "Dynamic, every id fits", "Dynamic, an eighth of the rows"


def main(
    ids: Annotated[int, typer.Option(min=8, help="Number of different ids.")] = 2**20,
    units: Annotated[int, typer.Option(min=1, help="Columns of the table.")] = 128,
    skew: Annotated[float, typer.Option(help="Zipf exponent of the ids.")] = 1.05,
    batches: Annotated[int, typer.Option(min=1, help="Different batches.")] = 40,
    threads: Annotated[int, typer.Option(min=1, help="For every contender.")] = 2,
    rounds: Annotated[int, typer.Option(min=1, help="Turns of each contender.")] = 5,
) -> None:
    """Times a training step (forward, backward, Adagrad update) of each layer."""
    machine.limit_threads(threads)
    from twml_ops import layers

    made = Workload(input_dim=ids, units=units, skew=skew).batches(batches)
    contenders = {
        STATIC: layers.SparseLinear(units, ids),
        FITS: layers.DynamicSparseLinear(units, ids + 1),
        EVICTS: layers.DynamicSparseLinear(units, ids // 8),
    }
    runs = {name: step_of(layer, made) for name, layer in contenders.items()}
    for run in runs.values():
        for i in range(batches):
            run(i)
    found = timing.interleave(runs, range(batches), rounds=rounds)
    for name, times in found.items():
        ratio = times.median / found[STATIC].median
        print(f"{name:<32} {times.median * 1e3:8.2f} ms  {ratio:.2f} x {STATIC}")
    print(machine.describe("python -m benchmarks.dynamic_lookup"))


def step_of(layer: Any, batches: list[Batch]) -> Callable[[int], object]:
    """A compiled training step on the batch of an index."""
    import tensorflow as tf

    from twml_ops import optimizers

    inputs = [
        tuple(
            tf.RaggedTensor.from_row_splits(x, batch.row_splits) for x in (batch.ids, batch.values)
        )
        for batch in batches
    ]
    layer(inputs[0])
    optimizer = optimizers.Adagrad(0.05)
    optimizer.build(layer.trainable_variables)
    upstream = tf.random.normal([batches[0].num_rows, layer.units])

    @tf.function(jit_compile=False)
    def step(ids: Any, values: Any) -> Any:
        with tf.GradientTape() as tape:
            y = layer((ids, values), training=True)
        gradients = tape.gradient(y, layer.trainable_variables, upstream)
        optimizer.apply_gradients(zip(gradients, layer.trainable_variables, strict=True))
        return y[0, 0]

    concrete = step.get_concrete_function(*inputs[0])
    return lambda i: concrete(*inputs[i]).numpy()


if __name__ == "__main__":
    typer.run(main)
