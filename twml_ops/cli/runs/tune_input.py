"""`twml-ops tune-input`: searches for faster settings of an input pipeline."""

from __future__ import annotations

import dataclasses
import os

from twml_ops.cli.render.json_output import print_json
from twml_ops.cli.render.terminal import make_console
from twml_ops.cli.render.tuning_table import print_best, print_trial
from twml_ops.data import tune_pipeline


def tune_reference(reference: str, seconds: float, step_seconds: float, as_json: bool) -> None:
    """Times the settings of a pipeline, and prints those that make it faster.

    Args:
        reference: FILE.py:NAME of a `twml_ops.data.Pipeline`, or of a function that returns one.
        seconds: time for which each setting is measured.
        step_seconds: duration of a training step, which overlaps with reading.
        as_json: print JSON when all settings are measured, instead of a line for each.

    Raises:
        ValueError: the reference names no pipeline.
    """
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
