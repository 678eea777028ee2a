"""The measurements of the support vector machine and of the traffic, and their tables."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from benchmarks.distributed.network import Network, unavailable
from benchmarks.peers import job, svm
from benchmarks.tables import markdown

EPOCHS = 6
RANKS = (1, 2, 4)
EVERY = (1000, 5000, 20_000)  # examples of all ranks between two exchanges
SLEEP = 0.1  # seconds that a slow rank sleeps before each exchange
SLOW = ("weights, bsp", "weights, async", "weights, ssp", "gradients, async")
MARKS = (5000, 10_000, 20_000, 40_000)  # examples of a rank
TRAFFIC_RANKS, EXCHANGES = (4, 8, 16), 10
Log = Callable[[str], None]


def learning(log: Log, examples: int = svm.TRAIN) -> dict[str, Any]:
    """Trains with 1, 2 and 4 ranks, and with 2 ranks in other ways.

    Args:
        log: receives progress messages.
        examples: their number.

    Returns:
        `target`, the loss of one rank after its first epoch; `curves` by "what: how".
    """
    curves: dict[str, Any] = {}

    def train(name: str, ranks: int, every: int, **setting: Any) -> None:
        log(name)
        setting |= {"epochs": EPOCHS, "every": max(1, every // ranks), "examples": examples}
        curves[name] = job.run("svm", setting, ranks)[0]

    for ranks in RANKS:
        train(f"ranks: {ranks}", ranks, EVERY[0])
    for every in EVERY:
        train(f"every: {every:,}", 2, every)
    for what in ("weights", "gradients"):
        for consistency in ("bsp", "async"):
            name = f"what: {what}, {consistency}"
            train(name, 2, EVERY[0], what=what, consistency=consistency)
    for name in SLOW:
        what, consistency = name.split(", ")
        setting = {"what": what, "consistency": consistency, "sleep": SLEEP}
        train(f"slow: {name}", 2, EVERY[0], **setting)
    one = curves["ranks: 1"]
    first = sum(n <= examples for n in one["examples"]) - 1
    return {"target": one["loss"][first], "curves": curves}


def traffic(log: Log, ranks: tuple[int, ...] = TRAFFIC_RANKS) -> dict[str, Any]:
    """Counts the bytes of "all" and "halton" at the network interfaces.

    Args:
        log: receives progress messages.
        ranks: numbers of ranks.

    Returns:
        `bytes`: ranks -> dataflow -> those that all hosts send in an exchange; or "unavailable",
        why not.
    """
    reason = unavailable()
    if reason is not None:
        return {"unavailable": reason}
    found: dict[str, Any] = {}
    for count in ranks:
        with Network(job.hosts_of(count)) as network:
            for dataflow in ("all", "halton"):
                log(f"{dataflow} of {count} ranks")
                setting = {"dataflow": dataflow, "floats": svm.FEATURES, "exchanges": EXCHANGES}
                results = job.run_on_hosts("traffic", setting, count, network)
                found.setdefault(str(count), {})[dataflow] = sum(r["bytes"] for r in results)
    return {"bytes": found}


def learning_page(result: dict[str, Any]) -> str:
    """The tables of `learning`."""
    curves, target = result["curves"], result["target"]
    about = (
        "A linear support vector machine on generated examples with the shape of RCV1 "
        f"({svm.FEATURES:,} features, {svm.ENTRIES} in an example, {svm.TRAIN:,} examples, "
        f"{svm.HELD_OUT:,} others for the loss), with the step of `examples/svm.py`. Ranks "
        "exchange their weights after every 1,000 examples of all of them, average the weights "
        "of all ranks and wait for each other, unless a table says otherwise. The target, "
        f"{target:.4f}, is the "
        "loss of one rank after its first epoch. Times are the times of the first rank, "
        "without the start and the evaluation. Where there are more ranks than cores, they share "
        "them, so that "
        "only the losses by examples say something about as many cores. The last table: a rank "
        "that does not wait for a slow one is pulled back to its old weights if it averages "
        "weights; the updates of a slow rank only add to its own."
    )
    parts = [about]
    names = {
        "ranks": "ranks",
        "every": "examples of all ranks between two exchanges, 2 ranks",
        "what": "what 2 ranks exchange, and whether they wait",
        "slow": f"2 ranks, one of which sleeps {1e3 * SLEEP:g} ms before each exchange",
    }
    for kind, title in names.items():
        base = curves[f"slow: {SLOW[0]}" if kind == "slow" else "ranks: 1"]
        rows = [
            [name.partition(": ")[2], *_cells(curve, target, base)]
            for name, curve in curves.items()
            if name.startswith(f"{kind}: ")
        ]
        marks = [f"loss at {n:,}" for n in MARKS]
        than = SLOW[0] if kind == "slow" else "one rank"
        header = [title, *marks, "examples of a rank to the target", "s", f"faster than {than}"]
        parts.append(markdown(header, rows))
    return "\n\n".join(parts)


def _cells(curve: dict[str, Any], target: float, base: dict[str, Any]) -> list[str]:
    losses = []
    for mark in MARKS:
        at = [v for n, v in zip(curve["examples"], curve["loss"], strict=True) if n == mark]
        losses.append(f"{at[0]:.4f}" if at else "–")
    found, other = svm.reached(curve, target), svm.reached(base, target)
    if found is None or other is None:
        return [*losses, "not reached", "–", "–"]
    return [*losses, f"{found[0]:,}", f"{found[1]:.2f}", f"{other[1] / found[1]:.2f} ×"]


def traffic_page(result: dict[str, Any]) -> str:
    """The table of `traffic`."""
    if "unavailable" in result:
        return f"The traffic was not measured: {result['unavailable']}."
    rows = []
    for ranks, by in result["bytes"].items():
        ratio, expected = by["halton"] / by["all"], int(math.log2(int(ranks))) / (int(ranks) - 1)
        sizes = [f"{by[name] / 1e6:.2f}" for name in ("all", "halton")]
        off = f"{ratio / expected - 1:+.1%}"
        rows.append([ranks, *sizes, f"{ratio:.4f}", f"{expected:.4f}", off])
    header = ["ranks, each on a host", "MB of `all`", "of `halton`", "ratio", "⌊log₂ N⌋ / (N − 1)"]
    return (
        "Bytes that all hosts send when each rank sends the weights once, counted at the network "
        "interfaces of namespaces with host names and mounts of their own "
        "(`btl=tcp,self`):\n\n" + markdown([*header, "difference"], rows)
    )
