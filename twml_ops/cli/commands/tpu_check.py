"""`twml-ops tpu-check`: compiles a model's training step for a TPU, without one."""

from __future__ import annotations

from typing import Annotated

import typer

from twml_ops.cli.commands.options import Debug


def tpu_check(
    model: Annotated[
        str,
        typer.Argument(
            help="A model of the package (on features as Criteo's), the folder of a run, a .keras "
            "file, or FILE.py:NAME of a Keras model or of a function that makes one.",
            show_default=False,
        ),
    ],
    chip: Annotated[str, typer.Option(help="v4, v5e, v5p or v6e.")] = "v5e",
    topology: Annotated[
        str | None,
        typer.Option(help="Of the slice, such as 4x4. Default: one host.", show_default=False),
    ] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Examples of a device in a step.")] = 1024,
    max_entries: Annotated[
        int, typer.Option(min=1, help="Entries of a row in inputs of unknown width.")
    ] = 32,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, nothing else.")] = False,
    debug: Debug = False,
) -> None:
    """Compiles the whole training step with the real TPU compiler; no TPU is needed.

    Prints what does not compile and which layer it came from, or else operations, bytes, the least
    time of a step, memory, and what a device's share of the tables would be. Exits with 1 if the
    step does not compile or does not fit. Needs the packages of twml_ops[tpu].
    """
    from twml_ops.cli.runs.tpu_check import check_model

    check_model(model, chip, topology, batch_size, max_entries, as_json)
