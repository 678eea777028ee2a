"""`twml-ops tune-input`: searches for faster settings of an input pipeline."""

from __future__ import annotations

import dataclasses
import os
from typing import TYPE_CHECKING, Annotated

import typer

from twml_ops.cli.options import Debug

if TYPE_CHECKING:
    from rich.console import Console

    from twml_ops.data.tune_pipeline import Trial


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
    tune_reference(pipeline, seconds, step_ms / 1e3, as_json)


def tune_reference(reference: str, seconds: float, step_seconds: float, as_json: bool) -> None:
    """Times the settings of a pipeline, and prints the settings that make it faster.

    Args:
        reference: FILE.py:NAME of a `twml_ops.data.Pipeline`, or of a function that returns one.
        seconds: time for which each setting is measured.
        step_seconds: duration of a training step, which overlaps with reading.
        as_json: print JSON when all settings are measured, instead of a line for each.

    Raises:
        ValueError: the reference names no pipeline.
    """
    from twml_ops.cli.console import make_console, print_json
    from twml_ops.data import tune_pipeline

    pipeline = tune_pipeline.load(reference)
    rate_of = tune_pipeline.measure(pipeline, seconds, step_seconds)
    console = make_console()
    trials = []
    for trial in tune_pipeline.search(pipeline, rate_of, os.cpu_count() or 1):
        trials.append(trial)
        if not as_json:
            print_trial(console, trial)
    before, after = trials[0], [t for t in trials if t.taken][-1]
    code = pipeline.code(after.settings)
    if as_json:
        print_json(
            {
                "before": before.rate,
                "after": after.rate,
                "settings": dataclasses.asdict(after.settings),
                "code": code,
            }
        )
    else:
        print_best(console, before, after, code)


def print_trial(console: Console, trial: Trial) -> None:
    """Prints the throughput of a setting and whether it is kept."""
    outcome = "[green]kept[/]" if trial.taken else "[dim]no gain[/]"
    console.print(f" {trial.change:<26} {trial.rate:>14,.0f} examples/s  {outcome}")


def print_best(console: Console, before: Trial, after: Trial, code: str) -> None:
    """Prints the speedup of the best settings, and the code of a pipeline that has them."""
    speedup = after.rate / before.rate
    console.print(f"[bold]{speedup:.1f} × as fast[/] with {after.settings}. The code to paste:")
    console.print(code, highlight=False, markup=False)
