"""Jobs whose ranks are killed while they train, beside jobs without a failure."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

import numpy as np

from benchmarks.peers import survivor
from benchmarks.peers.experiments import Log
from benchmarks.peers.job import ROOT
from benchmarks.tables import markdown
from twml_ops.peers.channel import Consistency
from twml_ops.peers.launch import run_job

RANKS, MOST_DEATHS = 4, 2
CONSISTENCIES: tuple[Consistency, ...] = get_args(Consistency)
KILLED, REPLACED, UNDISTURBED = 100, 20, 20  # jobs; the last: with each consistency
SECONDS = 300.0  # only a job that hangs needs as much
Run = dict[str, Any]


def deaths_of(seed: int) -> tuple[Consistency, dict[int, int]]:
    """A consistency, and which ranks die at which example."""
    rng = np.random.default_rng(seed)
    ranks = rng.permutation(RANKS)[: rng.integers(1, MOST_DEATHS + 1)]
    rounds = survivor.EPOCHS * survivor.EXAMPLES // RANKS
    deaths = {int(rank): RANKS * int(rng.integers(0, rounds)) for rank in ranks}
    return CONSISTENCIES[rng.integers(len(CONSISTENCIES))], deaths


def run(
    consistency: Consistency, seed: int, deaths: dict[int, int] | None = None, max_restarts: int = 0
) -> Run:
    """Runs a job.

    Args:
        consistency: the consistency of the ranks.
        seed: the seed of the order of the examples.
        deaths: rank -> the example at which it is killed.
        max_restarts: see `run_job`.

    Returns:
        `status`, `starts`, `finished`, `shrinks` and `joins`, see `JobResult`; `ranks`, what those
        wrote that remain; `loss` of their mean weights, None if they have not come to the end;
        `output`.
    """
    lines: list[str] = []
    deaths = deaths or {}
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "benchmarks.peers.survivor", folder, consistency]
        command += map(str, [seed, *(n for death in deaths.items() for n in death)])
        environment = {"PYTHONPATH": str(ROOT)}
        result = run_job(command, RANKS, max_restarts, "shared", environment, lines.append, SECONDS)
        ranks = {int(p.stem): json.loads(p.read_text()) for p in Path(folder).glob("*.json")}
    complete = (
        result.status == 0
        and sorted(ranks) == list(result.finished)
        and {rank["epoch"] for rank in ranks.values()} == {survivor.EPOCHS}
    )
    mean = np.mean([rank["weights"] for rank in ranks.values()], axis=0) if complete else None
    return {
        **vars(result),
        "consistency": consistency,
        "deaths": deaths,
        "ranks": ranks,
        "loss": None if mean is None else survivor.loss(mean),
        "output": "\n".join(lines),
    }


def measure(
    log: Log, killed: int = KILLED, replaced: int = REPLACED, undisturbed: int = UNDISTURBED
) -> dict[str, Any]:
    """Runs jobs without a failure, jobs whose ranks are killed, and jobs that replace these.

    Args:
        log: receives progress messages.
        killed: number of jobs whose ranks are killed.
        replaced: number of jobs whose ranks are killed and replaced.
        undisturbed: number of jobs without a failure, with each consistency.

    Returns:
        `undisturbed`, `killed` and `replaced`: what `run` returns of each, without `ranks`.
    """
    plans = {
        "undisturbed": [
            (consistency, 1000 + seed, {}, 0)
            for consistency in CONSISTENCIES
            for seed in range(undisturbed)
        ],
        "killed": [(c, seed, d, 0) for seed in range(killed) for c, d in [deaths_of(seed)]],
        "replaced": [(c, s, d, RANKS) for s in range(replaced) for c, d in [deaths_of(s)]],
    }
    found: dict[str, Any] = {}
    for name, jobs in plans.items():
        found[name] = []
        for plan in jobs:
            log(f"{name} {len(found[name])}: {plan}")
            job = run(*plan)
            del job["ranks"]
            if job["loss"] is not None:
                del job["output"]
            found[name].append(job)
    return found


def page(result: dict[str, Any]) -> str:
    """The table.

    Args:
        result: of `measure`.
    """
    titles = {
        "undisturbed": "none",
        "killed": "killed, the others go on",
        "replaced": "killed and replaced after the epoch",
    }
    rows = []
    for consistency in CONSISTENCIES:
        normal = _losses(result["undisturbed"], consistency)
        for name, title in titles.items():
            jobs = [job for job in result[name] if job["consistency"] == consistency]
            losses = _losses(jobs, consistency)
            rows.append(
                [
                    f"{consistency}: {title}",
                    str(len(jobs)),
                    str(sum(len(job["deaths"]) for job in jobs)),
                    str(len(losses)),
                    *(str(sum(job[way] for job in jobs)) for way in ("shrinks", "joins")),
                    str(sum(job["starts"] - 1 for job in jobs)),
                    *_described(losses, normal),
                ]
            )
    header = ["ranks that are", "jobs", "kills", "jobs that came to the end", "went on without"]
    header += ["replaced", "started again", "loss ± deviation", "smallest to largest"]
    header += ["mean − that of none"]
    return (
        f"Jobs of {RANKS} ranks train a logistic regression (`benchmarks/peers/survivor.py`), "
        f"{survivor.EPOCHS} epochs of {survivor.EXAMPLES:,} examples. `kill -9` ends one or two of "
        "the ranks, drawn at random, at examples that are drawn at random. "
        "`PeerGroup.deal` deals the examples, so that the others take over the examples of a "
        "lost rank, and the learning rate is proportional to the number of ranks. The loss is the "
        "loss of the "
        "mean weights of the ranks that remain; the noise is the deviation of jobs without a "
        "failure.\n\n" + markdown(header, rows)
    )


def _losses(jobs: Sequence[Run], consistency: str) -> np.ndarray:
    found = [job["loss"] for job in jobs if job["consistency"] == consistency]
    return np.array([loss for loss in found if loss is not None])


def _described(losses: np.ndarray, normal: np.ndarray) -> list[str]:
    if len(losses) < 2 or len(normal) < 2:
        return ["–"] * 3
    mean, deviation = losses.mean(), losses.std(ddof=1)
    off = (mean - normal.mean()) / normal.std(ddof=1)
    return [
        f"{mean:.5f} ± {deviation:.5f}",
        f"{losses.min():.5f} to {losses.max():.5f}",
        f"{off:+.2f} deviations",
    ]
