"""`twml-ops tune-input`: searches for faster settings of an input pipeline."""

from __future__ import annotations

from typing import Annotated

import typer

from twml_ops.cli.commands.options import Debug


def tune_input(
    pipeline: Annotated[
        str,
        typer.Argument(
            help="FILE.py:NAME of a twml_ops.data.Pipeline, or of a function that returns one.",
            show_default=False,
        ),
    ],
    seconds: Annotated[
        float, typer.Option(min=0, help="Seconds for which each setting is measured.")
    ] = 2.0,
    step_ms: Annotated[
        float, typer.Option(min=0, help="Duration of a training step, which overlaps with reading.")
    ] = 0.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, nothing else.")] = False,
    debug: Debug = False,
) -> None:
    """Measures a tf.data pipeline, tries faster settings, and prints the settings that helped.

    The settings are batching before parsing, reading several files at once, parsing in parallel and
    prefetching. Each is tried in addition to those that have helped so far.
    """
    from twml_ops.cli.runs.tune_input import tune_reference

    tune_reference(pipeline, seconds, step_ms / 1e3, as_json)
