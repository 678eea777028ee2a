"""The tables of docs/quality.md."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from typing import Any, NamedTuple

from benchmarks import tables
from benchmarks.quality.train_command import is_command

Runs = Mapping[str, Mapping[str, float]]  # seed → metrics

# 97.5 % quantiles of Student's t distribution with 1, 2, ... degrees of freedom.
_T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
_SIGNS = {"auc": 1, "log_loss": -1}  # 1: a larger value is better


class Interval(NamedTuple):
    """A mean with its 95 % interval; the bounds are NaN for a single seed."""

    mean: float
    low: float
    high: float


def difference(ours: Runs, peer: Runs, metric: str) -> Interval:
    """The mean of `ours` - `peer` over their common seeds, with Student's t interval.

    Raises:
        ValueError: there is no common seed.
    """
    seeds = [seed for seed in ours if seed in peer]
    if not seeds:
        raise ValueError("the two contenders must have a common seed, got none")
    differences = [ours[s][metric] - peer[s][metric] for s in seeds]
    mean = statistics.fmean(differences)
    if len(seeds) == 1:
        return Interval(mean, math.nan, math.nan)
    degrees = min(len(seeds) - 1, len(_T))
    half = _T[degrees - 1] * statistics.stdev(differences) / math.sqrt(len(seeds))
    return Interval(mean, mean - half, mean + half)


def difference_text(ours: Runs, peer: Runs, metric: str, digits: int = 5) -> str:
    """The `difference` as text: empty of a contender to itself, without an interval of one seed."""
    if ours is peer:
        return ""
    found = difference(ours, peer, metric)
    if math.isnan(found.low):
        return f"{found.mean:+.{digits}f} (one seed)"
    return f"{found.mean:+.{digits}f} ({found.low:+.{digits}f} to {found.high:+.{digits}f})"


def best_peer(runs: Mapping[str, Runs], metric: str) -> str | None:
    """The peer with the best mean of a metric; None if no peer has been measured."""
    peers = [name for name, found in runs.items() if found and not is_command(name)]
    return max(peers, key=lambda p: _SIGNS[metric] * _mean(runs[p], metric), default=None)


def data_set(content: Mapping[str, Any], name: str) -> str:
    """The section of one data set.

    Args:
        content: the content of `Results`.
        name: the name of the data set.
    """
    runs = {contender: found for contender, found in content["runs"][name].items() if found}
    about = content["data"][name]
    rows = [
        [
            _title(contender),
            *(_with_error(found, metric, 4) for metric in ("auc", "log_loss")),
            _with_error(found, "calibration", 3),
            f"{_mean(found, 'cpu_seconds'):.0f}",
            str(len(found)),
        ]
        for contender, found in sorted(runs.items(), key=lambda item: _mean(item[1], "log_loss"))
    ]
    header = ["", "AUC", "log loss", "calibration ratio", "CPU seconds a run", "seeds"]
    parts = [
        f"### {name}\n\n{about['description']} {about['train']:,} training and {about['test']:,} "
        f"test rows; base rate of the test rows {about['base_rate']:.4f}.",
        tables.markdown(header, rows),
    ]
    compared = _comparisons(runs)
    if compared:
        header = ["", "metric", "best peer", "ours − best peer", "95 % interval", ""]
        parts.append(tables.markdown(header, compared))
    tuned = content["tuned"].get(name, {})
    if tuned:
        parts.append(f"Settings chosen on validation data: {_settings(tuned)}.")
    return "\n\n".join(parts)


def page(content: Mapping[str, Any]) -> str:
    """All sections, after a description of the machine."""
    sections = [data_set(content, name) for name in content["runs"]]
    return "\n\n".join([tables.machine(content["machine"]), *sections])


def summary(content: Mapping[str, Any]) -> str:
    """`train` without options beside the best peer: a row for each data set that has both."""
    rows = []
    for name, contenders in content["runs"].items():
        found = [row for row in _comparisons(contenders) if row[0] == _title("train")]
        if not found:
            continue
        loss = f"{_mean(contenders['train'], 'log_loss'):.4f}"
        differences = [f"{mean}, {verdict} ({peer})" for _, _, peer, mean, _, verdict in found]
        rows.append([f"`{name}`", f"{content['data'][name]['train']:,}", loss, *differences])
    header = ["data set", "training rows", "log loss of `train`"]
    return tables.markdown([*header, "AUC − best peer's", "log loss − best peer's"], rows)


def _comparisons(runs: Mapping[str, Runs]) -> list[list[str]]:
    rows = []
    for contender in runs:
        if not is_command(contender):
            continue
        for metric, title in (("auc", "AUC"), ("log_loss", "log loss")):
            peer = best_peer(runs, metric)
            if peer is None or not runs[contender].keys() & runs[peer].keys():
                continue
            found = difference(runs[contender], runs[peer], metric)
            bounds = f"{found.low:+.4f} to {found.high:+.4f}"
            row = [_title(contender), title, peer, f"{found.mean:+.4f}", bounds]
            rows.append([*row, _verdict(found, _SIGNS[metric])])
    return rows


def _verdict(found: Interval, sign: int) -> str:
    if math.isnan(found.low) or found.low <= 0 <= found.high:
        return "level" if not math.isnan(found.low) else "one seed"
    return "ahead" if sign * found.mean > 0 else "behind"


def _settings(tuned: Mapping[str, Any]) -> str:
    return "; ".join(
        f"{peer}: " + ", ".join(f"{k} = {v}" for k, v in found["settings"].items())
        for peer, found in tuned.items()
    )


def _title(contender: str) -> str:
    return f"**twml-ops `{contender}`**" if is_command(contender) else contender


def _mean(found: Runs, metric: str) -> float:
    return statistics.fmean(metrics[metric] for metrics in found.values())


def _with_error(found: Runs, metric: str, digits: int) -> str:
    """Mean ± standard error over the seeds; without an error if all seeds have the same value."""
    values = [metrics[metric] for metrics in found.values()]
    mean = f"{statistics.fmean(values):.{digits}f}"
    error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0
    return f"{mean} ± {error:.{digits}f}" if error > 0 else mean
