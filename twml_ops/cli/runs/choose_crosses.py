"""Chooses the crosses of categorical features for the models that have the option `crosses`."""

from __future__ import annotations

import dataclasses

from rich.console import Console

from twml_ops import models
from twml_ops.cli.render import run_summary
from twml_ops.cli.runs.class_balance import weighted
from twml_ops.cli.runs.config import AUTO, RunConfig
from twml_ops.cli.runs.model_options import builder_of
from twml_ops.cli.runs.sources import LARGE_BATCH_SIZE
from twml_ops.data import Source, TrainingParts


def with_crosses(config: RunConfig, parts: TrainingParts | None, console: Console) -> RunConfig:
    """The configuration with the crosses that gain on the validation data.

    Args:
        config: configuration of the run.
        parts: training data and validation data; None: there are no validation data, and the model
            chooses by a part of its data.
        console: terminal for the output.

    Returns:
        The configuration; unchanged if the model has no such option, it is set, or the model has no
        statistics of categories.

    Raises:
        DataError: the data cannot be read.
    """
    if parts is None or config.from_run is not None or config.model == AUTO:
        return config
    options = config.model_options
    build = builder_of(config.model)
    packaged = build is models.dcn
    statistics = options.get("statistics", True)
    several = len(parts.fit.schema.fields) > 1
    if not (packaged and statistics and several and options.get("crosses") is None):
        return config

    def batches(source: Source) -> object:
        dataset = source.dataset(LARGE_BATCH_SIZE, layout=models.layout_of(build))
        return weighted(dataset, config.positive_weight)

    with console.status("choosing crosses of categories"):
        crosses = models.choose_crosses(parts.fit.schema, *map(batches, parts))
    if crosses:
        run_summary.print_crosses(console, crosses)
    return dataclasses.replace(config, model_options={**options, "crosses": crosses})
