"""The Markdown section of the curve."""

from __future__ import annotations

from typing import Any

from benchmarks.curve.cells import OURS, STOCK, Cell, cells
from benchmarks.tables import machine, markdown

Found = dict[str, dict[str, Any]]  # name of a cell -> what `measure.measure` returns


def section(result: dict[str, Any]) -> str:
    """The tables of all trainings.

    Args:
        result: "cells", "learned", "failed", "share" and "machine".
    """
    found: Found = result["cells"]
    head = (
        f"{machine(result['machine'])}\n\nEach host has {result['share']:.0%} of a core. "
        "Steps/s are the sum over all workers; a step is one batch of one worker."
    )
    known = [cell for cell in cells() if cell.name in found]
    parts = [
        _table(training, [c for c in known if c.training == training], found)
        for training in dict.fromkeys(cell.training for cell in known)
    ]
    if result["learned"]:
        parts.append(_losses(result["learned"]))
    failed = "; ".join(f"{name}: {why}" for name, why in result["failed"].items())
    return "\n\n".join([head, *parts, *([f"Not measured: {failed}"] * bool(failed))])


def _table(training: str, known: list[Cell], found: Found) -> str:
    ours, stock = (found.get(Cell(training, way).name, {}).get("steps") for way in (OURS, STOCK))
    rows = []
    for cell in known:
        measured = found[cell.name]
        steps = measured["steps"]
        mark = " *" * measured["disturbed"]
        rows.append(
            [
                cell.name.removeprefix(f"{training}: "),
                f"{steps:.3g}{mark}",
                *(f"{steps / base:.2f} ×" if base else "–" for base in (ours, stock)),
                *(_share_of_cpu(measured, kind) for kind in ("server", "worker")),
                f"{1e3 * sum(measured['cpu'].values()) / steps:.1f}",
                f"{sum(measured['sent'].values()) / steps / 1e6:.2f}"
                if measured["egress"]
                else "–",
                _share_of_wire(measured),
            ]
        )
    header = [training, "steps/s", "÷ one host", "÷ one host, stock", "CPU of the servers"]
    header += ["of the workers", "CPU ms a step", "MB a step", "of the wire"]
    return markdown(header, rows)


def _losses(learned: Found) -> str:
    """Losses of held-out data after the same number of examples."""
    rows = [
        [name, f"{found['loss']:.4f}", f"{found['seconds']:.0f}"] for name, found in learned.items()
    ]
    return markdown(["after", "loss of held-out data", "seconds"], rows)


def _share_of_cpu(measured: dict[str, Any], kind: str) -> str:
    """The shares of their quota that the hosts of a kind have used, the least and the most."""
    used = [cpu / measured["share"] for host, cpu in measured["cpu"].items() if host[:6] == kind]
    if not used:
        return "–"
    least, most = f"{min(used):.0%}", f"{max(used):.0%}"
    return most if least == most else f"{least} to {most}"


def _share_of_wire(measured: dict[str, Any]) -> str:
    """The share of the wire that the host that sends most has used."""
    if measured["egress"] is None:
        return "–"
    return f"{max(measured['sent'].values()) / measured['egress']:.0%}"
