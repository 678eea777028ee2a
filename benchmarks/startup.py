"""`python -m benchmarks.startup`: from the start of `twml-ops train` to its first step and its end.

Each round runs, in processes of their own and in random order: Python with TensorFlow's import
alone, and `twml-ops train` of each model for one epoch with everything written.
The milestones are written by the command's own process (`benchmarks/startup_process.py`). CPU
seconds count all threads; they depend less on other programs of the machine than wall seconds.
The modules of the package are compiled to bytecode before, as modules of installed packages are.
"""

from __future__ import annotations

import compileall
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

import twml_ops
from benchmarks import machine, tables

IMPORT = "import tensorflow"
_UNSET = ("TF_CPP_MIN_LOG_LEVEL", "PYTHONDONTWRITEBYTECODE")
Milestones = dict[str, tuple[float, float]]  # name -> wall seconds, CPU seconds


def main(
    data: Annotated[str, typer.Option(help="Training data, as `twml-ops train --data` takes it.")],
    models: Annotated[list[str], typer.Option("--model", help="Models.")] = ["sparse_mlp", "dcn"],  # noqa: B006
    rounds: Annotated[int, typer.Option(min=1, help="Runs of each command.")] = 5,
    docs: Annotated[
        Path | None, typer.Option(help="Folder of performance.md, into which the table goes.")
    ] = None,
) -> None:
    """Prints the table of the milestones."""
    about = machine.describe(machine.command_line("benchmarks.startup"))
    found = measure(data, models, rounds)
    text = f"{tables.machine(about)}\n\n{table(found, rounds)}"
    print(text)
    if docs is not None:
        tables.insert(docs / "performance.md", "startup", text, by="benchmarks/startup.py")


def measure(data: str, models: list[str], rounds: int) -> dict[str, list[Milestones]]:
    """Runs every command `rounds` times, interleaved.

    Args:
        data: training data.
        models: names of models.
        rounds: runs of each command.

    Returns:
        The milestones of each run, by command.
    """
    compileall.compile_dir(Path(twml_ops.__file__).parent, quiet=2)
    rng = np.random.default_rng(0)
    names = [IMPORT, *models]
    found: dict[str, list[Milestones]] = {name: [] for name in names}
    for _ in range(rounds):
        for i in rng.permutation(len(names)):
            found[names[i]].append(_run(names[i], data))
    return found


def _run(name: str, data: str) -> Milestones:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "milestones.json"
        options = ["train", "--data", data, "--model", name, "--epochs", "1"]
        command = [] if name == IMPORT else [*options, "--out", str(Path(folder) / "run")]
        environment = {k: v for k, v in os.environ.items() if k not in _UNSET}
        subprocess.run(
            [sys.executable, "-m", "benchmarks.startup_process", str(out), *command],
            check=True,
            env=environment,
            stdout=subprocess.DEVNULL,
        )
        milestones: Milestones = json.loads(out.read_text())
        return milestones


def table(found: dict[str, list[Milestones]], rounds: int) -> str:
    """A table of the medians, seconds since the start of the process.

    Args:
        found: of `measure`.
        rounds: runs of each command.
    """
    header = ["seconds since the start of the process", "wall", "CPU"]
    rows: list[list[Any]] = []
    for name, runs in found.items():
        command = "" if name == IMPORT else f"--model {name}: "
        for milestone in runs[0]:
            wall, cpu = (statistics.median(run[milestone][i] for run in runs) for i in (0, 1))
            rows.append([f"{command}{milestone}", f"{wall:.2f}", f"{cpu:.2f}"])
    return f"{tables.markdown(header, rows)}\n\nMedians of {rounds} interleaved runs."


if __name__ == "__main__":
    typer.run(main)
