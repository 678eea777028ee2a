"""`python -m benchmarks.cluster_cost`: CPU milliseconds of a step by part, alone and in a cluster.

The cluster has 2 parameter servers and 1 worker, all on this machine. Figures are CPU time, not
elapsed time, but a busy machine increases them as well, mostly where threads wait for others.
`perf` of Linux samples the stacks; it needs the rights of `perf record`.
"""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks import machine, tables
from benchmarks.cluster_cost import parts, perf
from benchmarks.json_process import JsonProcess
from twml_ops.distribute.launch import Ports

NAMES = ("flights", "reference")
SERVERS = 2
ALONE, CLUSTER = "one process", f"{SERVERS} servers, 1 worker"
Measured = dict[str, dict[str, Any]]
"""Process -> its seconds of CPU time: "total", "kernel", and "parts" by name."""


class MeasuredProcess(JsonProcess):
    """A process of benchmarks/cluster_cost/process.py."""

    def __init__(self, **setting: Any) -> None:
        super().__init__("benchmarks.cluster_cost.process", setting, {"TF_CPP_MIN_LOG_LEVEL": "2"})

    def receive(self) -> dict[str, Any]:
        """The next answer."""
        return self._receive()

    def tell(self, word: str) -> None:
        """Sends a word."""
        self._send(word)


def main(
    training: Annotated[list[str], typer.Option(help="Trainings.")] = list(NAMES),  # noqa: B006
    steps: Annotated[int, typer.Option(min=1, help="Measured steps of a run.")] = 300,
    rounds: Annotated[int, typer.Option(min=1, help="Interleaved runs of each.")] = 3,
    axis: Annotated[str, typer.Option(help="partition_axis of the tables.")] = "auto",
    together: Annotated[int, typer.Option(min=1, help="steps_per_execution of the cluster.")] = 1,
    docs: Annotated[
        Path | None, typer.Option(help="Folder of performance.md and cluster_cost.json.")
    ] = None,
) -> None:
    """Prints the table."""
    about = machine.describe(machine.command_line("benchmarks.cluster_cost"))
    found: dict[str, dict[str, list[Measured]]] = {t: {ALONE: [], CLUSTER: []} for t in training}
    for _ in range(rounds):
        for name in training:
            found[name][ALONE].append(measure_alone(name, steps))
            found[name][CLUSTER].append(measure_cluster(
                    name, steps, partition_axis=axis, steps_per_execution=together
                ))
    results = {
        name: {k: medians(runs, steps) for k, runs in v.items()} for name, v in found.items()
    }
    text = "\n\n".join(table(name, result) for name, result in results.items())
    text = f"{tables.machine(about)}\n\n{text}\n\nMedians of {rounds} runs of {steps} steps."
    print(text)
    if docs is not None:
        files = docs / "cluster_cost.json", docs / "performance.md"
        result = {"about": about, "milliseconds": results}
        tables.record(result, *files, {"cluster_cost": text}, "benchmarks/cluster_cost")


def measure_alone(name: str, steps: int) -> Measured:
    """Measures a training in one process, by `Model.fit`."""
    with MeasuredProcess(role="alone", training=name, steps=steps) as process:
        return _measure({"process": process})


def measure_cluster(name: str, steps: int, **options: Any) -> Measured:
    """Measures a training in a cluster, by `HybridTrainer`.

    Args:
        name: of the training.
        steps: measured steps.
        **options: arguments of the trainer.
    """
    with _addresses(SERVERS + 1) as (*servers, worker), contextlib.ExitStack() as stack:
        cluster = {"servers": servers, "workers": [worker]}

        def start(**setting: Any) -> MeasuredProcess:
            return stack.enter_context(MeasuredProcess(**setting, **cluster))

        processes = {f"server {i}": start(role="server", index=i) for i in range(SERVERS)}
        trainer = start(role="worker", training=name, steps=steps, options=options)
        return _measure({**processes, "worker": trainer})


def _measure(processes: dict[str, MeasuredProcess]) -> Measured:
    """Measures processes of which the last one trains."""
    ids = {name: process.receive()["process"] for name, process in processes.items()}
    found: Measured = {}
    with perf.sampled(list(ids.values())) as stacks:
        for process in processes.values():
            process.tell("start")
            process.receive()
        for name, process in reversed(processes.items()):
            process.tell("stop")
            found[name] = process.receive()
    for name, measured in found.items():
        shares = parts.by_part(stacks[ids[name]])
        measured["parts"] = {part: measured["total"] * share for part, share in shares.items()}
    return found


@contextlib.contextmanager
def _addresses(count: int) -> Iterator[list[str]]:
    with contextlib.closing(Ports(count)) as ports:
        yield [f"127.0.0.1:{port}" for port in ports.numbers]


def medians(runs: list[Measured], steps: int) -> dict[str, dict[str, float]]:
    """Milliseconds a step by part: of the one process, or of the worker and of all servers.

    Args:
        runs: what was measured.
        steps: measured steps of a run.
    """
    found: dict[str, dict[str, float]] = {}
    for kind in ("process", "worker", "server"):
        of_runs = [_sum([m for name, m in run.items() if name.startswith(kind)]) for run in runs]
        names = dict.fromkeys(part for run in of_runs for part in run)
        if names:
            found[kind] = {
                n: statistics.median(run.get(n, 0.0) for run in of_runs) * 1e3 / steps
                for n in names
            }
    return found


def _sum(measured: list[dict[str, Any]]) -> dict[str, float]:
    found: dict[str, float] = {}
    for each in measured:
        rows = {"all": each["total"], "in the system's kernel": each["kernel"], **each["parts"]}
        for name, seconds in rows.items():
            found[name] = found.get(name, 0.0) + seconds
    return found


def table(name: str, result: dict[str, dict[str, dict[str, float]]]) -> str:
    """A table of a training.

    Args:
        name: of the training.
        result: milliseconds a step, of one process and of the cluster.
    """
    columns = {
        ALONE: result[ALONE]["process"],
        "worker": result[CLUSTER]["worker"],
        f"{SERVERS} servers": result[CLUSTER]["server"],
    }
    names = dict.fromkeys(n for column in columns.values() for n in column)
    rows: list[list[Any]] = []
    for part in sorted(names, key=lambda n: -sum(c.get(n, 0.0) for c in columns.values())):
        alone, *cluster = (c.get(part, 0.0) for c in columns.values())
        rows.append([part, *(f"{x:.2f}" for x in (alone, *cluster, sum(cluster)))])
    header = [f"{name}: CPU ms a step", *columns, "cluster"]
    alone, *cluster = (c["all"] for c in columns.values())
    ratio = f"The cluster uses {sum(cluster) / alone:.1f} × the CPU time."
    return f"{tables.markdown(header, rows)}\n\n{ratio}"


if __name__ == "__main__":
    typer.run(main)
