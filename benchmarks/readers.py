"""Examples a second of a reader alone: `python -m benchmarks.readers criteo:day.tsv.gz`.

Each round opens the source anew, so nothing is cached, and reads it once: as blocks (parsed arrays)
and as batches of each layout.
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
) -> None:
    """Prints the median examples a second of each kind of pass, and the quartiles."""
    from twml_ops.data import open_source

    def batches(layout: str) -> Callable[[], Iterable[Any]]:
        arguments = {} if layout == "ragged" else {"layout": layout}
        return lambda: open_source(source).dataset(batch_size, shuffle=shuffle, **arguments)

    passes: dict[str, Callable[[], Iterable[Any]]] = {
        "blocks": lambda: open_source(source).blocks()
    }
    passes |= {f"batches, {name}": batches(name) for name in ("ragged", "fields")}
    examples = open_source(source).num_examples()
    seconds: dict[str, list[float]] = {name: [] for name in passes}
    for _ in range(rounds):
        for name, make in passes.items():  # interleaved, so that noise hits every kind alike
            start = time.perf_counter()
            for _ in make():
                pass
            seconds[name].append(time.perf_counter() - start)
    for name, found in seconds.items():
        low, middle, high = (examples / s for s in np.quantile(found, [0.75, 0.5, 0.25]))
        print(f"{name:<16} {middle:>10,.0f} examples/s  ({low:,.0f} to {high:,.0f})")


if __name__ == "__main__":
    typer.run(main)
