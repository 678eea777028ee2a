"""`twml-ops tpu-check` and `gpu-check`: compile the training step of a model for a TPU or GPU."""

from __future__ import annotations

import dataclasses

from twml_ops import tpu
from twml_ops.cli.render.json_output import print_json
from twml_ops.cli.render.terminal import make_console
from twml_ops.cli.render.tpu_summary import CUDA_KERNELS, print_compile_report
from twml_ops.cli.runs import tpu_models


def check_model(
    model: str,
    chip: str,
    topology: str | None,
    batch_size: int,
    max_entries: int,
    as_json: bool,
) -> None:
    """Compiles a training step for a TPU or GPU, and prints what the compiler reports.

    Args:
        model: name, folder or file of the model; see `tpu_models.load`.
        chip: name of the chip.
        topology: topology of the slice; None: one host.
        batch_size: number of examples of a device in a step.
        max_entries: entries of a row in inputs of unknown width.
        as_json: print JSON instead of a table.

    Raises:
        UserError: there is no such model.
        SystemExit: with status 1, if the step does not compile or does not fit in memory.
    """
    console = make_console()
    with console.status("compiling"):
        report = tpu.check(
            tpu_models.load(model),
            chip,
            batch_size=batch_size,
            max_entries=max_entries,
            topology=topology,
        )
    if as_json:
        values = {**dataclasses.asdict(report), "fits": report.fits, "seconds": report.seconds}
        values["seconds_are_lower_bound"] = report.seconds_are_lower_bound
        values["in_place"] = report.in_place
        values["chip"] = chip
        values["cuda_kernels"] = CUDA_KERNELS if report.chip.gpu else None
        values["problem"] = report.problem._asdict() if report.problem else None
        print_json(values)
    else:
        print_compile_report(console, report, batch_size)
    if not report.fits:
        raise SystemExit(1)
