"""`python -m benchmarks.cluster_cost`: CPU milliseconds of a step by part, alone and in a cluster.

The cluster has 2 parameter servers and 1 worker, all on this machine: each a process, or all in one
process, as `twml-ops launch --servers-in-workers` runs them. Figures are CPU time, not
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
# TensorFlow gives a kernel to another thread until about 90 executions have shown that it is short.
WARM_UP_CALLS = 100
ALONE, CLUSTER = "one process", f"{SERVERS} servers, 1 worker"
IN_WORKER = "servers in the worker"
Measured = dict[str, dict[str, Any]]
"""Process -> its seconds of CPU time: "total", "kernel", and "parts" by name."""


class MeasuredProcess(JsonProcess):
    """A process of benchmarks/cluster_cost/process.py."""

    def __init__(self, simd: str, **setting: Any) -> None:
        environment = {"TF_CPP_MIN_LOG_LEVEL": "2", **({"TWML_OPS_SIMD": simd} if simd else {})}
        super().__init__("benchmarks.cluster_cost.process", setting, environment)

    def receive(self) -> dict[str, Any]:
        """The next answer."""
        return self._receive()

    def tell(self, word: str) -> None:
        """Sends a word."""
        self._send(word)


def main(
    training: Annotated[list[str], typer.Option(help="Trainings.")] = list(NAMES),  # noqa: B006
    steps: Annotated[int, typer.Option(min=1, help="Measured steps of a run.")] = 320,
    rounds: Annotated[int, typer.Option(min=1, help="Interleaved runs of each.")] = 3,
    simd: Annotated[
        list[str], typer.Option(help="TWML_OPS_SIMD of all processes; empty: the highest.")
    ] = [""],  # noqa: B006
    axis: Annotated[str, typer.Option(help="partition_axis of the tables.")] = "auto",
    together: Annotated[
        int, typer.Option(min=1, help="steps_per_execution of the cluster, a divisor of --steps.")
    ] = 8,
    every: Annotated[
        int, typer.Option(min=1, help="exchange_every of the cluster, a divisor of --together.")
    ] = 1,
    docs: Annotated[Path | None, typer.Option(help="Folder of performance.md.")] = None,
) -> None:
    """Prints the table."""
    about = machine.describe(machine.command_line("benchmarks.cluster_cost"))
    if steps % together:
        raise typer.BadParameter(f"--steps must be a multiple of {together}, got {steps}")
    kinds = (ALONE, CLUSTER, IN_WORKER)
    names = [(t, level, f"{t}, {level}" if level else t) for t in training for level in simd]
    found: dict[str, dict[str, list[Measured]]] = {n: {k: [] for k in kinds} for *_, n in names}
    options = {
        "partition_axis": axis,
        "steps_per_execution": together,
        "exchange_every": every,
    }
    for _ in range(rounds):
        for of, level, name in names:
            found[name][ALONE].append(measure_alone(of, steps, level, together))
            for kind in (CLUSTER, IN_WORKER):
                measured = measure_cluster(of, steps, kind == IN_WORKER, level, **options)
                found[name][kind].append(measured)
    results = {
        name: {k: medians(runs, steps) for k, runs in v.items()} for name, v in found.items()
    }
    text = "\n\n".join(
        f"{table(name, result)}\n\n{ratios(found[name])}" for name, result in results.items()
    )
    text = f"{tables.machine(about)}\n\n{text}\n\nMedians of {rounds} runs of "
    text += f"{steps} steps, {together} in a call"
    text += "." if every == 1 else f", with an exchange every {every} steps."
    print(text)
    if docs is not None:
        files = tables.results_file(docs, "cluster_cost.json"), docs / "performance.md"
        result = {"about": about, "milliseconds": results}
        tables.record(result, *files, {"cluster_cost": text}, "benchmarks/cluster_cost")


def measure_alone(name: str, steps: int, simd: str = "", together: int = 1) -> Measured:
    """Measures a training in one process, by `Model.fit`.

    Args:
        name: the name of the training.
        steps: measured steps.
        simd: `TWML_OPS_SIMD` of the process; empty: not set.
        together: steps of a call of the cluster, whose steps before the measured ones are as many.
    """
    setting = {"training": name, "steps": steps, "warm_up": WARM_UP_CALLS * together}
    with MeasuredProcess(simd, role="alone", **setting) as process:
        return _measure({"process": process})


def measure_cluster(
    name: str, steps: int, servers_in_worker: bool, simd: str = "", **options: Any
) -> Measured:
    """Measures a training in a cluster, by `HybridTrainer`.

    Args:
        name: the name of the training.
        steps: measured steps.
        servers_in_worker: whether the worker runs the servers.
        simd: `TWML_OPS_SIMD` of the processes; empty: not set.
        **options: arguments of the trainer.
    """
    with _addresses(SERVERS + 1) as (*servers, worker), contextlib.ExitStack() as stack:
        cluster = {"servers": servers, "workers": [worker]}

        def start(**setting: Any) -> MeasuredProcess:
            return stack.enter_context(MeasuredProcess(simd, **setting, **cluster))

        count = 0 if servers_in_worker else SERVERS
        processes = {f"server {i}": start(role="server", index=i) for i in range(count)}
        warm_up = WARM_UP_CALLS * options.get("steps_per_execution", 1)
        setting = {"training": name, "steps": steps, "warm_up": warm_up, "options": options}
        trainer = start(role="worker", servers_in_worker=servers_in_worker, **setting)
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
        name: the name of the training, and the SIMD level.
        result: milliseconds a step, of one process and of the cluster.
    """
    columns = {
        ALONE: result[ALONE]["process"],
        "worker": result[CLUSTER]["worker"],
        f"{SERVERS} servers": result[CLUSTER]["server"],
        IN_WORKER: result[IN_WORKER]["worker"],
    }
    names = dict.fromkeys(n for column in columns.values() for n in column)
    rows: list[list[Any]] = []
    for part in sorted(names, key=lambda n: -sum(c.get(n, 0.0) for c in columns.values())):
        alone, worker, servers, together = (c.get(part, 0.0) for c in columns.values())
        milliseconds = alone, worker, servers, worker + servers, together
        rows.append([part, *(f"{x:.2f}" for x in milliseconds)])
    header = [f"{name}: CPU ms a step", ALONE, "worker", f"{SERVERS} servers", "cluster", IN_WORKER]
    return tables.markdown(header, rows)


def ratios(runs: dict[str, list[Measured]]) -> str:
    """What clusters use more than one process in the same round: the median, and the range.

    Args:
        runs: kind -> what was measured in each round.
    """
    totals = {kind: [_sum(list(run.values()))["all"] for run in of] for kind, of in runs.items()}

    def ratio(kind: str) -> str:
        found = [a / b for a, b in zip(totals[kind], totals[ALONE], strict=True)]
        return f"{statistics.median(found):.2f} × ({min(found):.2f} to {max(found):.2f})"

    return (
        f"The cluster uses {ratio(CLUSTER)} the CPU time of one process, and {ratio(IN_WORKER)} if "
        "its servers run in the process of the worker: the median of the rounds, and the least and "
        "the most."
    )


if __name__ == "__main__":
    typer.run(main)
