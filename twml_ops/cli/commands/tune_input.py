"""`twml-ops tune-input`: makes an input pipeline faster by trying its settings."""

from __future__ import annotations

from typing import Annotated

import typer

from twml_ops.cli.commands.options import Debug


def tune_input(
    pipeline: Annotated[
        str,
        typer.Argument(
            help="FILE.py:NAME of a twml_ops.data.Pipeline, or of a function that makes one.",
            show_default=False,
        ),
    ],
    seconds: Annotated[float, typer.Option(min=0, help="To time each setting for.")] = 2.0,
    step_ms: Annotated[
        float, typer.Option(min=0, help="How long a training step takes, to overlap with reading.")
    ] = 0.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, nothing else.")] = False,
    debug: Debug = False,
) -> None:
    """Times a tf.data pipeline, tries faster settings, and prints those that helped.

    Tries batching before parsing, reading several files, parsing in parallel and prefetching, each
    on top of what has helped so far.
    """
    from twml_ops.cli.runs.tune_input import tune_reference

    tune_reference(pipeline, seconds, step_ms / 1e3, as_json)
