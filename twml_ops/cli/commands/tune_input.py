"""`twml-ops tune-input`: makes an input pipeline faster by trying its settings."""

from __future__ import annotations

import dataclasses
import json
import os
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
    from twml_ops.cli.render import run_summary
    from twml_ops.data import tune_pipeline

    loaded = tune_pipeline.load(pipeline)
    rate_of = tune_pipeline.measure(loaded, seconds, step_ms / 1e3)
    trials = []
    console = run_summary.console()
    for trial in tune_pipeline.search(loaded, rate_of, os.cpu_count() or 1):
        trials.append(trial)
        if not as_json:
            verdict = "[green]taken[/]" if trial.taken else "[dim]no gain[/]"
            console.print(f" {trial.change:<26} {trial.rate:>14,.0f} examples/s  {verdict}")
    before, after = trials[0], [t for t in trials if t.taken][-1]
    code = loaded.code(after.settings)
    if as_json:
        result = {
            "before": before.rate,
            "after": after.rate,
            "settings": dataclasses.asdict(after.settings),
            "code": code,
        }
        print(json.dumps(result, indent=2))
        return
    gain = after.rate / before.rate
    console.print(f"[bold]{gain:.1f} × as fast[/] with {after.settings}; to paste:")
    console.print(code, highlight=False, markup=False)
