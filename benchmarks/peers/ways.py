"""The model of clicks trained by one rank, peers, hybrid servers and replicas, on capped hosts."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any

from benchmarks.distributed.network import Network, unavailable
from benchmarks.distributed.process import HostProcess, run_module
from benchmarks.peers import clicks, job
from benchmarks.tables import markdown
from twml_ops.planning import ClusterResources, Compute, Job, Table, predict

CAPS = (None, 10.0, 100.0)  # MB/s that a host can send
BATCHES, EVERY, WORKERS, PORT = 480, (16, 48), 2, 2222
HOSTS = 2 * WORKERS  # of servers and workers
SHARE = 0.9  # of the machine's CPU time that all hosts may use
REPLICAS = f"{WORKERS} replicas in one process"
MB = 1e6
Log = Callable[[str], None]


def measure(log: Log, batches: int = BATCHES) -> dict[str, Any]:
    """Trains in each way.

    Args:
        log: receives progress messages.
        batches: the number of batches of each worker.

    Returns:
        `target`, the last loss of one rank; `curves` by the way and the cap; or "unavailable".
    """
    reason = unavailable(cpu=True)
    if reason is not None:
        return {"unavailable": reason}
    share = SHARE * len(os.sched_getaffinity(0)) / HOSTS
    curves: dict[str, Any] = {}
    setting = {"batches": batches, "every": EVERY[0]}
    for way, part, cores in (("one rank", "clicks", 1), (REPLICAS, "mirrored", WORKERS)):
        log(way)
        with Network(job.hosts_of(1), cpu=True) as network:
            network.cap_cpu(cores * share)
            curves[way] = {"–": job.run_on_hosts(part, setting, 1, network)[0]}
    for cap in CAPS:
        at = "none" if cap is None else f"{cap:g}"
        for every in EVERY:
            with Network(job.hosts_of(WORKERS), cpu=True) as network:
                network.cap(cap and cap * MB)
                network.cap_cpu(share)
                log(f"peers, every {every}, {at}")
                found = job.run_on_hosts("clicks", {**setting, "every": every}, WORKERS, network)
                curves.setdefault(f"2 peers, every {every} batches", {})[at] = found[0]
        log(f"hybrid, {at}")
        curves.setdefault("2 servers, 2 workers", {})[at] = _hybrid(cap, share, batches)
    target = curves["one rank"]["–"]["loss"][-1]
    return {"target": target, "curves": curves, "batches": batches, "share": share}


def _hybrid(cap: float | None, share: float, batches: int) -> dict[str, Any]:
    names = {kind: [f"{kind}{i}" for i in range(WORKERS)] for kind in ("ps", "wk")}
    with Network([*names["ps"], *names["wk"]], cpu=True) as network:
        network.cap(cap and cap * MB)
        network.cap_cpu(share)
        addresses = {
            "servers": [f"{network.address(h)}:{PORT}" for h in names["ps"]],
            "workers": [f"{network.address(h)}:{PORT}" for h in names["wk"]],
        }
        with _processes(network, names["ps"]) as servers, _processes(network, names["wk"]) as them:
            _all(servers, [{"do": "serve", **addresses, "index": i} for i in range(WORKERS)])
            _all(them, [{"do": "join", **addresses, "index": i} for i in range(WORKERS)])
            return _all(them, [{"do": "train", "batches": batches}] * WORKERS)[0]


@contextlib.contextmanager
def _processes(network: Network, hosts: list[str]) -> Iterator[list[HostProcess]]:
    started: list[HostProcess] = []
    try:
        for host in hosts:
            started.append(run_module(network, host, "benchmarks.peers.hybrid_host", job.QUIET))
        yield started
    finally:
        for process in started:
            process.kill()


def _all(processes: list[HostProcess], messages: list[dict[str, Any]]) -> list[Any]:
    for process, message in zip(processes, messages, strict=True):
        process.send(message)
    return [process.receive(job.SECONDS) for process in processes]


def reached(curve: dict[str, Any], loss: float) -> float | None:
    """Seconds until a loss, between two evaluations by a line; None if it was not reached."""
    before = None
    for seconds, value in zip(curve["seconds"], curve["loss"], strict=True):
        if value <= loss:
            if before is None or value == before[1]:
                return float(seconds)
            part = (before[1] - loss) / (before[1] - value)
            return float(before[0] + part * (seconds - before[0]))
        before = seconds, value
    return None


def page(result: dict[str, Any]) -> str:
    """The tables.

    Args:
        result: of `measure`.
    """
    if "unavailable" in result:
        return f"Other ways to train were not measured: {result['unavailable']}."
    target, batches = result["target"], result["batches"]
    text = (
        f"A table of {clicks.ROWS:,} rows of {clicks.UNITS} behind a dense layer, batches of "
        f"{clicks.BATCH} examples with {clicks.ENTRIES} ids, Adagrad; {batches} batches of each "
        f"worker, which has examples of its own. The CPU time of each host is limited to "
        f"{result['share']:.3f} of a core; that of the replicas, which are in one process, to "
        f"{WORKERS} × as much. The target, {target:.4f}, is the last loss of one rank. Times are "
        "without the start and the evaluations."
    )
    base = reached(result["curves"]["one rank"]["–"], target)
    assert base is not None
    rows = []
    for way, by_cap in result["curves"].items():
        for cap, curve in by_cap.items():
            found = reached(curve, target)
            times = ["not reached", "–"]
            if found is not None:
                times = [f"{found:.2f}", f"{base / found:.2f} ×"]
            rate = _rate(curve, batches)
            rows.append([way, cap, f"{rate:.0f}", f"{curve['loss'][-1]:.4f}", *times])
    header = ["", "MB/s of a host", "batches/s of a worker", "last loss", "s to the target"]
    parts = [text, markdown([*header, "faster than one rank"], rows), _predicted(result)]
    return "\n\n".join(parts)


def _rate(curve: dict[str, Any], batches: int) -> float:
    return (batches - clicks.EXECUTION) / float(curve["seconds"][-1])


def _predicted(result: dict[str, Any]) -> str:
    """Steps/s of peers under caps, beside the steps/s of the plan."""
    rows = []
    for every in EVERY:
        by_cap = result["curves"][f"2 peers, every {every} batches"]
        table = Table(clicks.ROWS, clicks.UNITS, clicks.ENTRIES, exchanged=unique(every))
        free = 1 / _rate(by_cap["none"], result["batches"])
        for cap, curve in by_cap.items():
            if cap == "none":
                continue
            measured = WORKERS * _rate(curve, result["batches"])
            planned = predict(
                "peers",
                Job((table,), clicks.BATCH, dense=2 * clicks.UNITS + 1, every=every),
                ClusterResources(float(cap) * MB, workers=WORKERS),
                Compute(dense=free),
            ).steps_per_second
            rows.append(
                [str(every), cap, f"{measured:.0f}", f"{planned:.0f}", f"{measured / planned:.2f}"]
            )
    header = ["batches between exchanges", "MB/s of a host", "steps/s", "predicted", "ratio"]
    return (
        "`twml-ops plan` predicts the steps of peers. The time without a cap is measured, the rest "
        "is computed:\n\n" + markdown(header, rows)
    )


def unique(every: int) -> float:
    """Distinct ids of the batches between two exchanges."""
    import numpy as np

    ids, _ = clicks.examples(every * clicks.BATCH, 0)
    return float(len(np.unique(ids)))
