"""`twml-ops tpu-check`: compiles the training step of a model for a TPU."""

from __future__ import annotations

from typing import Annotated

import typer

from twml_ops.cli.commands.options import Debug


def tpu_check(
    model: Annotated[
        str,
        typer.Argument(
            help="A model of the package (with the features of Criteo), the folder of a run, a "
            ".keras file, or FILE.py:NAME of a Keras model or of a function that returns one.",
            show_default=False,
        ),
    ],
    chip: Annotated[str, typer.Option(help="TPU chip: v4, v5e, v5p or v6e.")] = "v5e",
    topology: Annotated[
        str | None,
        typer.Option(
            help="Topology of the slice, such as 4x4. Default: one host.", show_default=False
        ),
    ] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Examples per device in a step.")] = 1024,
    max_entries: Annotated[
        int, typer.Option(min=1, help="Maximum entries per row of inputs of unknown width.")
    ] = 32,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, nothing else.")] = False,
    debug: Debug = False,
) -> None:
    """Compiles the whole training step with the TPU compiler. No TPU is needed.

    Prints which layer does not compile and why, or else the operations, the bytes, the minimum time
    of a step, the memory, and the size of the tables if they are divided among the devices. The
    exit status is 1 if the step does not compile or does not fit in memory. Requires the packages
    of twml_ops[tpu].
    """
    from twml_ops.cli.runs.tpu_check import check_model

    check_model(model, chip, topology, batch_size, max_entries, as_json)
