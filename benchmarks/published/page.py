"""The tables of docs/published.md."""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from benchmarks import tables
from benchmarks.published.task import TRIAL
from benchmarks.quality.page import difference_text

_difference = functools.partial(difference_text, digits=4)
_TITLES = {
    "entropy": "normalized entropy, test",
    "log_loss": "log loss, test",
    "leaving": "numbers of an example that leave the towers",
    "within": "mean cosine within towers",
    "between": "mean cosine between towers",
    "epochs": "epochs",
    "rate": "learning rate",
    "l2": "L2",
    "lowest": "lowest normalized entropy, validation",
    "steps": "steps to the best diagonal one",
    "step_time": "CPU time of a step, ratio",
    "bytes": "bytes of tables and map",
    "memory": "state of a replica of two",
    "deviation": "deviation of the members",
    "flops": "FLOPs, share of the largest",
    "parameter_bytes": "bytes, share of the largest",
    "objective": "log loss + 0.001 × share of FLOPs, test",
    "search_cpu": "CPU seconds of the search",
    "trials": "trials",
}


Comparisons = Sequence[tuple[str, str, str]]
"""(contender, another one, metric) each."""


def page(
    content: Mapping[str, Any],
    claims: Mapping[str, str],
    comparisons: Mapping[str, Comparisons] = MappingProxyType({}),
) -> str:
    """A section for each part and data set, after a description of the machine.

    Args:
        content: the content of `Results`.
        claims: what the paper of each part says.
        comparisons: differences that are written below the table of a part.
    """
    if not content["runs"]:
        return "Nothing has been measured yet."
    parts = [tables.machine(content["machine"])]
    for key, runs in content["runs"].items():
        parts.append(_section(key, runs, content["data"][key], claims))
        parts += _comparisons(runs, comparisons.get(key.partition(" on ")[0], ()))
    return "\n\n".join(parts)


def _section(
    key: str, runs: Mapping[str, Any], about: Mapping[str, Any], claims: Mapping[str, str]
) -> str:
    contenders = {name: found for name, found in runs.items() if TRIAL not in name}
    if not contenders:
        return f"### {key}\n\nThe settings are being chosen."
    seeds = max(len(found) for found in contenders.values())
    names = [m for m in _TITLES if any(m in r for by in contenders.values() for r in by.values())]
    order = sorted(contenders, key=lambda c: _mean(contenders[c], "entropy"))
    best = contenders[order[0]]
    rows = []
    for contender in order:
        found = contenders[contender]
        rows.append(
            [
                contender,
                *(_cell(found, name) for name in names),
                _difference(found, best, "entropy"),
            ]
        )
    header = ["", *(_TITLES[name] for name in names), "− lowest, 95 % interval"]
    claim = claims[key.partition(" on ")[0]]
    passes = "1 epoch" if about["epochs"] == 1 else f"{about['epochs']} epochs at most"
    return (
        f"### {key}\n\n{claim} Here: {about['train']:,} training, {about['validation']:,} "
        f"validation and {about['test']:,} test rows, {passes}, batches of "
        f"{about['batch_size']:,}, {seeds} seed(s).\n\n" + tables.markdown(header, rows)
    )


def _comparisons(runs: Mapping[str, Any], wanted: Comparisons) -> list[str]:
    known = [(ours, other, m) for ours, other, m in wanted if ours in runs and other in runs]
    lines = [
        f"- {ours} − {other}, {_TITLES[metric]}: {_difference(runs[ours], runs[other], metric)}"
        for ours, other, metric in known
    ]
    return ["\n".join(lines)] if lines else []


def _mean(by_seed: Mapping[str, Mapping[str, float]], metric: str) -> float:
    return statistics.fmean(m[metric] for m in by_seed.values())


def _cell(by_seed: Mapping[str, Mapping[str, float]], metric: str) -> str:
    values = [m[metric] for m in by_seed.values() if metric in m]
    if not values:
        return ""
    known = [v for v in values if not math.isnan(v)]
    if len(known) < len(values):
        return (
            f"{statistics.fmean(known):.4g} ({len(known)} of {len(values)})" if known else "never"
        )
    mean = statistics.fmean(values)
    return f"{mean:,.0f}" if metric == "bytes" else f"{mean:.4g}"
