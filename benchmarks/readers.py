"""Examples a second of a reader: `python -m benchmarks.readers criteo:day.tsv.gz`.

Each round opens the source anew, so nothing is cached, and reads it once: decompressed only, as
blocks (parsed arrays), and as batches of each layout. With `--model`, each round also trains the
model for an epoch, with as many steps in a call as in `twml-ops train`, once with batches that are
read and once with the same batches in memory; the difference is what reading costs a training. CPU
seconds count all threads; they depend less on other programs, and they are the profile: each row
includes the work of the rows above it.

`--vowpal-wabbit PYTHON` adds Vowpal Wabbit, by a Python that has the package `vowpalwabbit`, on the
same examples in its own format. `--before CHECKOUT` adds the readers of another checkout of this
repository.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from benchmarks import machine, tables

Passes = dict[str, Callable[[], Iterable[Any]]]
Seconds = dict[str, list[tuple[float, float]]]  # wall and CPU seconds of each pass


def main(
    source: Annotated[str, typer.Argument(help="SOURCE, as of twml-ops train.")],
    batch_size: Annotated[int, typer.Option(min=1, help="Examples in a batch.")] = 1024,
    rounds: Annotated[int, typer.Option(min=1, help="Passes of each kind.")] = 5,
    shuffle: Annotated[bool, typer.Option(help="Read batches in random order.")] = False,
    model: Annotated[list[str] | None, typer.Option(help="Model to train. Repeatable.")] = None,
    vowpal_wabbit: Annotated[
        Path | None, typer.Option(help="Python with the package vowpalwabbit.")
    ] = None,
    before: Annotated[
        Path | None, typer.Option(help="Folder of a checkout whose readers are measured, too.")
    ] = None,
    docs: Annotated[
        Path | None, typer.Option(help="Folder of fields.md, into which the table goes.")
    ] = None,
) -> None:
    """Prints the median examples a second of each kind of pass, the quartiles, and CPU time."""
    from twml_ops.cli import prepare_imports
    from twml_ops.data import open_source

    prepare_imports()  # threads and memory are used as in the commands
    about = machine.describe(machine.command_line("benchmarks.readers"))
    found = measure(passes_of(source, batch_size, shuffle, model or []), rounds)
    options = [source, str(batch_size), str(rounds)]
    if before is not None:
        others = _child(Path(sys.executable), ["twml_ops", *options], before)
        found |= {f"earlier readers: {name}": seconds for name, seconds in others.items()}
    if vowpal_wabbit is not None:
        found |= _child(vowpal_wabbit, ["vw", *options], None)
    text = f"{tables.machine(about)}\n\n{table(found, open_source(source).num_examples())}"
    print(text)
    if docs is not None:
        tables.insert(docs / "fields.md", "readers", text, by="benchmarks/readers.py")


def passes_of(source: str, batch_size: int, shuffle: bool, names: Sequence[str]) -> Passes:
    """The passes over a source, from decompression to training."""
    from twml_ops.data import open_source
    from twml_ops.data.text import TextSource, read_chunks

    def batches(layout: str) -> Callable[[], Iterable[Any]]:
        arguments = {} if layout == "ragged" else {"layout": layout}
        return lambda: open_source(source).dataset(batch_size, shuffle=shuffle, **arguments)

    passes: Passes = {}
    opened = open_source(source)
    if isinstance(opened, TextSource):
        passes["decompressed text"] = lambda: read_chunks(opened.path)
    passes["blocks (parsed arrays)"] = lambda: open_source(source).blocks()
    passes |= {f'batches, layout "{name}"': batches(name) for name in ("ragged", "fields")}
    for name in names:
        passes |= training(name, source, batch_size)
    return passes


def measure(passes: Passes, rounds: int) -> Seconds:
    """The seconds of each pass; the passes are interleaved, so that noise hits all of them."""
    seconds: Seconds = {name: [] for name in passes}
    for _ in range(rounds):
        for name, make in passes.items():
            start, cpu_start = time.perf_counter(), time.process_time()
            for _ in make():
                pass
            spent = time.perf_counter() - start, time.process_time() - cpu_start
            seconds[name].append(spent)
    return seconds


def table(found: Seconds, examples: int) -> str:
    """A table of the medians with quartiles.

    Args:
        found: of `measure`.
        examples: number of examples of a pass.
    """
    rows = []
    for name, seconds in found.items():
        wall, cpu = np.array(seconds).T
        low, middle, high = (examples / s for s in np.quantile(wall, [0.75, 0.5, 0.25]))
        per_cpu = examples / np.median(cpu)
        rows.append([name, f"{middle:,.0f}", f"{low:,.0f} to {high:,.0f}", f"{per_cpu:,.0f}"])
    header = [f"{examples:,} examples", "examples/s", "quartiles", "for each CPU second"]
    return tables.markdown(header, rows)


def _child(python: Path, arguments: list[str], checkout: Path | None) -> Seconds:
    """The passes of a process of its own; see `readers_process`."""
    script = Path(__file__).with_name("readers_process.py")
    environment = dict(os.environ)
    if checkout is not None:
        environment["PYTHONPATH"] = str(checkout.resolve())
    done = subprocess.run(
        # -P: the folder of the script is not searched for modules.
        [str(python), "-P", str(script), *arguments],
        check=True,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    found: Seconds = json.loads(done.stdout.splitlines()[-1])
    return found


def training(name: str, source: str, batch_size: int) -> Passes:
    """Passes that train a model for an epoch: with batches that are read, and from memory."""
    import tensorflow as tf

    from twml_ops import models, optimizers
    from twml_ops.data import open_source
    from twml_ops.training.runners import STEPS_PER_EXECUTION

    layout = models.layout_of(models.get(name))

    def dataset() -> tf.data.Dataset:
        return open_source(source).dataset(batch_size, layout=layout).prefetch(2)

    model = models.get(name)(open_source(source).schema, dataset())
    model.compile(
        optimizers.Adagrad(0.01),
        "binary_crossentropy",
        jit_compile=False,
        steps_per_execution=STEPS_PER_EXECUTION,
    )
    in_memory = dataset().cache()
    for data in (dataset(), in_memory):  # trace the step and fill the cache
        model.fit(data, shuffle=False, verbose=0)

    def epoch(data: Callable[[], tf.data.Dataset]) -> Callable[[], Iterable[Any]]:
        return lambda: (model.fit(data(), shuffle=False, verbose=0),)

    return {
        f"training `{name}`, batches read": epoch(dataset),
        f"training `{name}`, batches in memory": epoch(lambda: in_memory),
    }


if __name__ == "__main__":
    typer.run(main)
