"""Examples a second of a reader: `python -m benchmarks.readers criteo:day.tsv.gz`.

Each round opens the source anew, so nothing is cached, and reads it once: as blocks (parsed arrays)
and as batches of each layout. With `--model`, each round also trains the model for an epoch, once
with batches that are read and once with the same batches in memory; the difference is what reading
costs a training. CPU seconds count all threads; they depend less on other programs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Annotated, Any

import numpy as np
import typer


def main(
    source: Annotated[str, typer.Argument(help="SOURCE, as of twml-ops train.")],
    batch_size: Annotated[int, typer.Option(min=1, help="Examples in a batch.")] = 1024,
    rounds: Annotated[int, typer.Option(min=1, help="Passes of each kind.")] = 5,
    shuffle: Annotated[bool, typer.Option(help="Read batches in random order.")] = False,
    model: Annotated[list[str] | None, typer.Option(help="Model to train. Repeatable.")] = None,
) -> None:
    """Prints the median examples a second of each kind of pass, the quartiles, and CPU time."""
    from twml_ops.data import open_source

    def batches(layout: str) -> Callable[[], Iterable[Any]]:
        arguments = {} if layout == "ragged" else {"layout": layout}
        return lambda: open_source(source).dataset(batch_size, shuffle=shuffle, **arguments)

    passes: dict[str, Callable[[], Iterable[Any]]] = {
        "blocks": lambda: open_source(source).blocks()
    }
    passes |= {f"batches, {name}": batches(name) for name in ("ragged", "fields")}
    for name in model or []:
        passes |= training(name, source, batch_size)
    examples = open_source(source).num_examples()
    seconds: dict[str, list[float]] = {name: [] for name in passes}
    cpu: dict[str, list[float]] = {name: [] for name in passes}
    for _ in range(rounds):
        for name, make in passes.items():  # interleaved, so that noise hits every kind alike
            start, cpu_start = time.perf_counter(), time.process_time()
            for _ in make():
                pass
            seconds[name].append(time.perf_counter() - start)
            cpu[name].append(time.process_time() - cpu_start)
    width = max(map(len, seconds))
    for name, found in seconds.items():
        low, middle, high = (examples / s for s in np.quantile(found, [0.75, 0.5, 0.25]))
        per_cpu = examples / np.median(cpu[name])
        print(
            f"{name:<{width}} {middle:>10,.0f} examples/s  ({low:,.0f} to {high:,.0f}), "
            f"{per_cpu:,.0f} a CPU second"
        )


def training(name: str, source: str, batch_size: int) -> dict[str, Callable[[], Iterable[Any]]]:
    """Passes that train a model for an epoch: with batches that are read, and from memory."""
    import tensorflow as tf

    from twml_ops import models, optimizers
    from twml_ops.data import open_source

    layout = models.layout_of(models.get(name))

    def dataset() -> tf.data.Dataset:
        return open_source(source).dataset(batch_size, layout=layout).prefetch(2)

    model = models.get(name)(open_source(source).schema, dataset())
    model.compile(optimizers.Adagrad(0.01), "binary_crossentropy", jit_compile=False)
    in_memory = dataset().cache()
    for data in (dataset(), in_memory):  # trace the step and fill the cache
        model.fit(data, shuffle=False, verbose=0)

    def epoch(data: Callable[[], tf.data.Dataset]) -> Callable[[], Iterable[Any]]:
        return lambda: (model.fit(data(), shuffle=False, verbose=0),)

    return {
        f"{name}, batches read": epoch(dataset),
        f"{name}, batches in memory": epoch(lambda: in_memory),
    }


if __name__ == "__main__":
    typer.run(main)
