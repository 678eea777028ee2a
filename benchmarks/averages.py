"""A training step with averaged weights (`use_ema`) beside one without, and beside a dense average.

`python -m benchmarks.averages`: a `SparseLinear` layer on batches of about 200 Zipf-distributed ids
an example. The dense average is that of Keras: one pass over the whole table in each step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import typer

from benchmarks import machine, timing
from benchmarks.workload import Batch, Workload

WITHOUT, WITH, DENSE = "without averages", "use_ema", "dense average in each step"
MOMENTUM = 0.999


def main(
    ids: Annotated[int, typer.Option(min=1, help="Rows of the table.")] = 2**19,
    units: Annotated[int, typer.Option(min=1, help="Columns of the table.")] = 128,
    skew: Annotated[float, typer.Option(help="Zipf exponent of the ids.")] = 1.05,
    optimizer: Annotated[str, typer.Option(help="Of twml_ops.optimizers.")] = "Adagrad",
    batches: Annotated[int, typer.Option(min=1, help="Different batches.")] = 20,
    threads: Annotated[int, typer.Option(min=1, help="For every contender.")] = 2,
    rounds: Annotated[int, typer.Option(min=1, help="Turns of each contender.")] = 5,
) -> None:
    """Times a training step (forward, backward, update) in each of the three ways."""
    machine.limit_threads(threads)
    made = Workload(input_dim=ids, units=units, skew=skew).batches(batches)
    runs = {name: step_of(name, ids, units, optimizer, made) for name in (WITHOUT, WITH, DENSE)}
    for run in runs.values():
        for i in range(batches):
            run(i)
    found = timing.interleave(runs, range(batches), rounds=rounds)
    for name, times in found.items():
        ratio = times.median / found[WITHOUT].median
        print(f"{name:<28} {times.median * 1e3:8.2f} ms  {ratio:.2f} x {WITHOUT}")
    print(machine.describe("python -m benchmarks.averages"))


def step_of(
    name: str, ids: int, units: int, optimizer: str, batches: list[Batch]
) -> Callable[[int], object]:
    """A compiled training step on the batch of an index."""
    import tensorflow as tf

    from twml_ops import layers, optimizers

    inputs = [
        tuple(
            tf.RaggedTensor.from_row_splits(x, batch.row_splits) for x in (batch.ids, batch.values)
        )
        for batch in batches
    ]
    layer = layers.SparseLinear(units, ids, use_bias=False)
    layer(inputs[0])
    made = getattr(optimizers, optimizer)(0.05, use_ema=name == WITH, ema_momentum=MOMENTUM)
    made.build(layer.trainable_variables)
    upstream = tf.random.normal([batches[0].num_rows, units])
    average = tf.Variable(tf.convert_to_tensor(layer.kernel)) if name == DENSE else None

    @tf.function(jit_compile=False)
    def step(ids: Any, values: Any) -> Any:
        with tf.GradientTape() as tape:
            y = layer((ids, values), training=True)
        gradients = tape.gradient(y, layer.trainable_variables, upstream)
        made.apply_gradients(zip(gradients, layer.trainable_variables, strict=True))
        if average is not None:
            average.assign(MOMENTUM * average + (1 - MOMENTUM) * layer.kernel)
        return y[0, 0]

    concrete = step.get_concrete_function(*inputs[0])
    return lambda i: concrete(*inputs[i]).numpy()


if __name__ == "__main__":
    typer.run(main)
