"""The costs of CPU time that `twml-ops plan` measures, writes and reads."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from twml_ops.cli.errors import UserError
from twml_ops.cli.render.terminal import make_console
from twml_ops.cli.runs.folder import optional_file, write_json
from twml_ops.planning import CpuCosts


def check_options(measure: bool, costs: Path | None, out_costs: Path | None) -> None:
    """Checks that the options fit together.

    Raises:
        UserError: costs are both measured and read, or written but not measured.
    """
    if measure and costs is not None:
        raise UserError("--measure and --costs: give one of them")
    if out_costs is not None and not measure:
        raise UserError("--out-costs needs --measure")


def source_of(
    measure: bool,
    costs: Path | None,
    out_costs: Path | None,
    slots: int,
    steps_per_execution: int,
    overwrite: bool = False,
) -> Callable[[], CpuCosts | None]:
    """A function that returns the costs, or None if the user gave none.

    Args:
        measure: measure them.
        costs: file to read them from.
        out_costs: file to write measured costs to.
        slots: optimizer slots per weight of the measured trainings.
        steps_per_execution: their steps of a call.
        overwrite: replace an existing file.
    """

    def get() -> CpuCosts | None:
        if costs is not None:
            return read(costs)
        if not measure:
            return None
        with optional_file(out_costs, overwrite) as file:
            found = _measure(slots, steps_per_execution)
            if file is not None:
                about = {"slots": slots, "steps_per_execution": steps_per_execution}
                write_json(file, {**about, "microseconds": found.to_json()})
        return found

    return get


def read(path: Path) -> CpuCosts:
    """Reads costs that `--out-costs` has written.

    Raises:
        UserError: the file cannot be read, or has another content.
    """
    try:
        content = json.loads(path.read_text())
        return CpuCosts.from_json(content["microseconds"])
    except OSError as e:
        raise UserError(f"--costs: {path}: {e.strerror}") from e
    except (ValueError, KeyError, TypeError) as e:
        raise UserError(f"--costs: {path} is not a file of --out-costs: {e}") from e


def _measure(slots: int, steps_per_execution: int) -> CpuCosts:
    try:
        from twml_ops.distribute.measure_costs import MeasurementError, measure_costs
    except ImportError as e:
        raise UserError(f"--measure needs TensorFlow: {e}") from e
    console = make_console()
    try:
        with console.status("measuring CPU time") as status:

            def show(name: str) -> None:
                status.update(f"measuring CPU time: {name}")

            return measure_costs(slots, steps_per_execution, show=show)[0]
    except MeasurementError as e:
        raise UserError(f"--measure: {e}") from e
