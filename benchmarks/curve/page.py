"""The Markdown section of the curve."""

from __future__ import annotations

from typing import Any

from benchmarks.curve.cells import MODES, OURS, STOCK, Cell, cells, learning_cells
from benchmarks.curve.jobs import NONE, PLAIN, Factors, Predictions, calibrating
from benchmarks.tables import machine, markdown

NEAR = 0.25  # by how much a measurement may differ from its prediction
SMOOTH = 4  # losses of a curve, of which there are 20, whose mean is compared
Run = dict[str, Any]  # what `measure.measure` or `measure.learn` returns
Found = dict[str, list[Run]]  # name of a cell -> its runs


def section(result: dict[str, Any]) -> str:
    """The tables of all trainings.

    Args:
        result: "cells", "learned", "failed", "share" and "machine"; with "costs", "jobs" and
            "wire" cells are predicted.
    """
    found = {name: median(runs) for name, runs in result["cells"].items() if runs}
    head = (
        f"{machine(result['machine'])}\n\nEach host has {result['share']:.0%} of a core. "
        "Steps/s are the sum over all workers; a step is one batch of one worker. "
        "Where a cell was measured several times, the run with the median is shown, and behind it "
        "the least and the most steps/s."
    )
    known = [cell for cell in cells() if cell.name in found]
    predictions = _predictions(result, found)
    parts = [
        _table([c for c in known if c.training == training], result["cells"], predictions)
        for training in dict.fromkeys(cell.training for cell in known)
    ]
    if predictions is not None:
        parts.append(_about(predictions, result["wire"], known, found))
    parts += _losses(result["learned"])
    failed = "; ".join(f"{name}: {why}" for name, why in result["failed"].items())
    return "\n\n".join([head, *parts, *([f"Not measured: {failed}"] * bool(failed))])


def _about(
    predictions: Predictions, wire: dict[str, float], known: list[Cell], found: dict[str, Run]
) -> str:
    message, byte = wire["message"] * 1e6, wire["byte"] * 1e9
    predicted = [cell for cell in known if cell.way in MODES]
    calibrated = [cell for cell in predicted if _calibrates(cell, found)]
    ways = (
        ("calibrated", calibrated, lambda cell: _factors(calibrating(cell), found, predictions)),
        ("by their CPU time", predicted, lambda cell: _factors(cell, found, predictions)),
        ("by it and without bursts", predicted, lambda cell: _factors(cell, found, predictions)),
        ("by `--costs` alone", predicted, lambda cell: NONE),
    )
    near = []
    for name, of_way, factors in ways:
        by = predictions.without_bursts() if "without" in name else predictions
        ratios = [_ratio_of(cell, found, by, factors(cell)) for cell in of_way]
        near.append(f"{sum(map(is_near, ratios))} of {len(ratios)} {name}")
    return (
        f"Predictions use the costs of `--costs` times {predictions.slowdown:.2f}, so that one "
        "host of *reference* needs what was measured, and what one host of another training needs "
        f"more. On either side, the network of the hosts costs {message:.0f} μs a message and "
        f"{byte:.2f} ns a byte more than the loopback of `--costs`. The costs of workers and of "
        "servers are calibrated by the CPU time, not the speed, of the cell of the same training "
        "with 1 server and 2 workers, synchronous if the cell has several synchronous workers. "
        f"Predicted within {NEAR:.0%}: {', '.join(near)}."
    )


def is_near(ratio: float) -> bool:
    """Whether a measurement is as predicted.

    Args:
        ratio: measured by predicted steps/s.
    """
    return abs(ratio - 1) <= NEAR


def _calibrates(cell: Cell, found: dict[str, Run]) -> bool:
    """Whether another cell calibrates the prediction of a cell."""
    by = calibrating(cell)
    return by != cell and by.name in found


def _factors(cell: Cell, found: dict[str, Run], predictions: Predictions) -> Factors:
    """What the hosts of a measured cell need more CPU time than predicted."""
    run = found[cell.name]
    used = (
        sum(cpu for host, cpu in run["cpu"].items() if host.startswith(kind)) / run["steps"]
        for kind in ("worker", "server")
    )
    return predictions.factors(cell, Factors(*used))


def _ratio_of(
    cell: Cell, found: dict[str, Run], predictions: Predictions, factors: Factors
) -> float:
    predicted = predictions.predict(cell, factors)
    assert predicted is not None
    return found[cell.name]["steps"] / predicted


def median(runs: list[Run]) -> Run:
    """The run with the median of steps/s, the slower one of two.

    Args:
        runs: at least one.
    """
    return sorted(runs, key=lambda run: run["steps"])[(len(runs) - 1) // 2]


def _predictions(result: dict[str, Any], found: dict[str, Run]) -> Predictions | None:
    alone = {
        cell.training: sum(found[cell.name]["cpu"].values()) / found[cell.name]["steps"]
        for cell in cells()
        if cell.way == OURS and not cell.beside and cell.name in found
    }
    if "costs" not in result or PLAIN not in alone:
        return None
    burst = max(run.get("quota_us", 0) for run in found.values()) / 1e6
    costs = result["costs"], result["wire"], result["jobs"]
    return Predictions(*costs, alone, result["share"], burst)


def _table(known: list[Cell], runs: Found, predictions: Predictions | None) -> str:
    training = known[0].training
    beside = max(cell.beside for cell in known)
    found = {name: median(of_cell) for name, of_cell in runs.items() if of_cell}
    bases = Cell(training, OURS), Cell(training, OURS, beside=beside), Cell(training, STOCK)
    rows = []
    for cell in known:
        measured = found[cell.name]
        steps = measured["steps"]
        rows.append(
            [
                cell.name.removeprefix(f"{training}: "),
                _steps(runs[cell.name]),
                *(_ratio(steps, runs.get(base.name)) for base in bases),
                *_predicted(cell, found, predictions),
                *(_share_of_cpu(measured, kind) for kind in ("server", "worker")),
                f"{1e3 * sum(measured['cpu'].values()) / (1 + cell.beside) / steps:.1f}",
                f"{sum(measured['sent'].values()) / steps / 1e6:.2f}"
                if measured["egress"]
                else "–",
                _share_of_wire(measured),
            ]
        )
    header = [training, "steps/s", "÷ one host", "÷ one beside others", "÷ one host, stock"]
    header += ["predicted", "measured ÷ predicted", "÷ predicted by its CPU time"]
    header += ["CPU of the servers", "of the workers"]
    header += ["CPU ms a step", "MB a step", "of the wire"]
    return markdown(header, rows)


def _steps(runs: list[Run]) -> str:
    """The median of steps/s, its range, and * if there was steal time."""
    steps = sorted(run["steps"] for run in runs)
    mark = " *" * any(run["disturbed"] for run in runs)
    several = f" ({steps[0]:.3g} to {steps[-1]:.3g})" if len(runs) > 1 else ""
    return f"{median(runs)['steps']:.3g}{several}{mark}"


def _ratio(steps: float, base: list[Run] | None) -> str:
    return f"{steps / median(base)['steps']:.2f} ×" if base else "–"


def _predicted(
    cell: Cell, found: dict[str, Run], predictions: Predictions | None
) -> tuple[str, str, str]:
    """The calibrated prediction, and the ratios to it and to the one by the cell's CPU time."""
    if predictions is None or cell.way not in MODES:
        return "–", "–", "–"
    by_cpu = f"{_ratio_of(cell, found, predictions, _factors(cell, found, predictions)):.2f}"
    if not _calibrates(cell, found):
        return "–", "–", by_cpu
    factors = _factors(calibrating(cell), found, predictions)
    ratio = _ratio_of(cell, found, predictions, factors)
    return f"{found[cell.name]['steps'] / ratio:.3g}", f"{ratio:.2f}", by_cpu


def _losses(learned: Found) -> list[str]:
    """For each number of batches, the losses after them and the time until that of one host."""
    every = [cell.name for cell in learning_cells()]
    tables = []
    for batches in dict.fromkeys(name.split(", ", 1)[0] for name, runs in learned.items() if runs):
        runs = {
            name: learned[f"{batches}, {name}"][0]
            for name in every
            if learned.get(f"{batches}, {name}")
        }
        base = runs.get(Cell("flights", OURS).name)
        rows = [
            [name, f"{run['loss']:.4f}", f"{run['seconds']:.0f}", _until(run, base)]
            for name, run in runs.items()
        ]
        header = [f"after {batches}", "loss of held-out data", "seconds"]
        tables.append(markdown([*header, "seconds to the last training loss of one host"], rows))
    return tables


def _until(run: Run, base: Run | None) -> str:
    """Seconds until the training loss that one host has at the end."""
    if base is None:
        return "–"
    aim = _smooth(base["losses"])[-1][1]
    reached = (f"{seconds:.0f}" for seconds, loss in _smooth(run["losses"]) if loss <= aim)
    return next(reached, "not reached")


def _smooth(losses: list[list[float]]) -> list[tuple[float, float]]:
    """(seconds, mean of the last `SMOOTH` losses), from when there are so many."""
    return [
        (losses[i - 1][0], sum(loss for *_, loss in losses[i - SMOOTH : i]) / SMOOTH)
        for i in range(SMOOTH, len(losses) + 1)
    ]


def _share_of_cpu(measured: Run, kind: str) -> str:
    """The shares of their quota that the hosts of a kind have used, the least and the most."""
    used = [cpu / measured["share"] for host, cpu in measured["cpu"].items() if host[:6] == kind]
    if not used:
        return "–"
    least, most = f"{min(used):.0%}", f"{max(used):.0%}"
    return most if least == most else f"{least} to {most}"


def _share_of_wire(measured: Run) -> str:
    """The share of the wire that the host that sends most has used."""
    if measured["egress"] is None:
        return "–"
    return f"{max(measured['sent'].values()) / measured['egress']:.0%}"
