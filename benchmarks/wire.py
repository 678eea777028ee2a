"""What narrow types in the messages of parameter servers save, and what they cost in quality.

    sudo python -m benchmarks.wire criteo:PATH

Two servers and a worker on hosts with a capped egress train the workload of
`benchmarks.distributed` with each type: bytes and steps a second. One worker with tables in its own
process, which computes what a worker and a server compute, trains `sparse_mlp`: paired differences
of the log loss of the exported models.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks import machine, tables
from benchmarks.distributed.grid import BY_ROW, MB, WORKLOAD, signals_as_exits, under_caps
from benchmarks.distributed.hybrid import AND, SENT_AS
from benchmarks.distributed.network import unavailable
from benchmarks.distributed.session import Topology, session
from benchmarks.exchange_losses import METRIC, loss, mean
from benchmarks.quality.page import difference_text
from twml_ops.distribute.parameter_server import encoding
from twml_ops.planning import BYTES_OF_NUMBER, ClusterResources, Job, Table, predict

FLOAT, INT8 = "float32", "int8"
SAME = tuple((dtype, dtype) for dtype in BYTES_OF_NUMBER)
WIRES = (*SAME, ("float16", INT8), (FLOAT, INT8))
NEAREST = "int8, to the nearest"
TOPOLOGY = Topology(2, 1)
CAPS = (150.0, 1000.0)  # MB/s
PASSES = 6  # over the types, so that noise that lasts affects all of them
BY = "benchmarks/wire.py"


def main(
    data: Annotated[str, typer.Argument(help="SOURCE of the examples, as of train --data.")],
    part: Annotated[str, typer.Option(help="steps, losses or both.")] = "both",
    seeds: Annotated[int, typer.Option(min=1, help="Paired runs.")] = 8,
    seconds: Annotated[float, typer.Option(help="Seconds for each type and cap.")] = 6.0,
    docs: Annotated[Path, typer.Option(help="Folder of parameter_server.md.")] = Path("docs"),
) -> None:
    """Measures, and writes the tables of the page. The results of the other part are kept."""
    file = tables.results_file(docs, "wire.json")
    result: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    about = machine.describe(machine.command_line("benchmarks.wire"))
    if part in ("steps", "both"):
        reason = unavailable()
        if reason is not None:
            raise SystemExit(f"benchmarks.wire: {reason}")
        with signals_as_exits():
            result["steps"] = {"about": about, "cells": steps(seconds)}
    if part in ("losses", "both"):
        result["losses"] = {"about": about, "runs": losses(data, seeds)}
    sections = sections_of(result)
    tables.record(result, file, docs / "parameter_server.md", sections, BY)
    print("\n\n".join(sections.values()))


def steps(seconds: float) -> list[dict[str, Any]]:
    """Measures bytes and steps a second of each type under each cap.

    Args:
        seconds: for each type and cap.

    Returns:
        For each pair: the types of `products` and `gradients`, the `bytes` of a step that all hosts
        send, with headers, the `predicted` bytes, `uncapped` steps/s, and `steps`/s by cap.
    """
    table_bytes = WORKLOAD.input_dim * WORKLOAD.units * 4
    found: list[Any] = [None] * len(WIRES)
    with session(TOPOLOGY, table_bytes) as hosts:
        for _ in range(PASSES):
            for i, wire in enumerate(WIRES):
                about = hosts.build(f"{BY_ROW}{SENT_AS}{AND.join(wire)}", WORKLOAD)
                measured = under_caps(hosts, CAPS, seconds / PASSES)
                hosts.drop()
                if found[i] is not None:
                    measured = {cap: found[i][cap] + m for cap, m in measured.items()}
                found[i] = measured
                print(wire, {cap: round(1 / m.seconds, 1) for cap, m in measured.items()})
    return [
        {
            "products": wire[0],
            "gradients": wire[1],
            "bytes": sum(of_wire[None].sent.values()),
            "predicted": _predicted(wire, about),
            "uncapped": 1 / of_wire[None].seconds,
            "steps": {f"{cap:g}": 1 / of_wire[cap].seconds for cap in CAPS},
        }
        for wire, of_wire in zip(WIRES, found, strict=True)
    ]


def _predicted(wire: tuple[str, str], about: dict[str, Any]) -> float:
    batch = WORKLOAD.batch_size
    table = Table(WORKLOAD.input_dim, WORKLOAD.units, about["entries"] / batch, about["unique"])
    products, gradients = (BYTES_OF_NUMBER[dtype] for dtype in wire)
    job = Job((table,), batch, activation_bytes=products, gradient_bytes=gradients)
    cluster = ClusterResources(CAPS[0] * MB, TOPOLOGY.servers, TOPOLOGY.workers)
    return predict(BY_ROW, job, cluster).wire_bytes()


def losses(data: str, seeds: int) -> dict[str, Any]:
    """Trains with each type and seed.

    Args:
        data: SOURCE of the examples.
        seeds: number of seeds.

    Returns:
        Seed → log loss on held-out examples, by the types as text.
    """
    found: dict[str, Any] = {}
    for seed in range(seeds):
        for products, gradients in (*SAME, (INT8, NEAREST)):
            nearest = gradients == NEAREST
            sent = INT8 if nearest else gradients
            with to_the_nearest() if nearest else contextlib.nullcontext():
                value = loss(data, seed, wire_dtype=products, gradient_wire_dtype=sent)
            name = f"{products}{AND}{gradients}"
            found.setdefault(name, {})[str(seed)] = {METRIC: value}
            print(name, seed, value, flush=True)
    return found


@contextlib.contextmanager
def to_the_nearest() -> Iterator[None]:
    """Rounds all rows to the nearest code in the block, in which trainings trace their graphs."""
    encode = encoding.encode_rows
    encoding.encode_rows = lambda rows, dtype, _=None: encode(rows, dtype)
    try:
        yield
    finally:
        encoding.encode_rows = encode


def sections_of(result: dict[str, Any]) -> dict[str, str]:
    """The sections of the page by their names, as far as they were measured."""
    found = {}
    if "steps" in result:
        cells = result["steps"]["cells"]
        header = [
            "products",
            "gradients",
            "MB a step",
            "predicted",
            *(f"steps/s, {c:g} MB/s" for c in CAPS),
        ]
        rows = [
            [
                *(c["products"], c["gradients"]),
                *(f"{c[key] / MB:.2f}" for key in ("bytes", "predicted")),
                *(_steps(c["steps"][f"{cap:g}"], cells[0]["steps"][f"{cap:g}"]) for cap in CAPS),
                _steps(c["uncapped"], cells[0]["uncapped"]),
            ]
            for c in cells
        ]
        text = tables.markdown([*header, "without a cap"], rows)
        found["wire_steps"] = f"{tables.machine(result['steps']['about'])}\n\n{text}"
    if "losses" in result:
        runs = result["losses"]["runs"]
        first = next(iter(runs.values()))
        rows = [
            [*name.split(AND), mean(of_wire), difference_text(of_wire, first, METRIC)]
            for name, of_wire in runs.items()
        ]
        header = [
            "products",
            "gradients",
            "log loss, held-out examples",
            "− that of float32, 95 % interval",
        ]
        text = f"{tables.markdown(header, rows)}\n\n{len(first)} seeds."
        found["wire_losses"] = f"{tables.machine(result['losses']['about'])}\n\n{text}"
    return found


def _steps(steps: float, of_float: float) -> str:
    ratio = steps / of_float
    return f"{steps:.1f}" if ratio == 1 else f"{steps:.1f} ({ratio:.2f} ×)"


if __name__ == "__main__":
    typer.run(main)
