"""`twml-ops train`: from a SOURCE to a finished run in a folder."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from twml_ops.cli.folder import new_folder
from twml_ops.cli.options import BatchSize, Data, Debug


def train(
    data: Data,
    out: Annotated[Path, typer.Option(help="Folder to make.", show_default=False)],
    evaluation: Annotated[
        str | None,
        typer.Option(
            "--eval",
            help="Examples to evaluate on; default: the last fifth of --data, "
            "for flights the days from the 25th of each month, which are then not trained on.",
            show_default=False,
        ),
    ] = None,
    model: Annotated[str, typer.Option(help="Name of the model.")] = "sparse_mlp",
    optimizer: Annotated[
        str,
        typer.Option(help="adagrad, lazy_adam, rowwise_adagrad, ftrl, momentum or sgd."),
    ] = "adagrad",
    learning_rate: Annotated[
        float | None,
        typer.Option(
            help="At the start; falls linearly to 0. Default: by optimizer.", show_default=False
        ),
    ] = None,
    batch_size: BatchSize = 256,
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the training data.")] = 4,
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same model.")] = 0,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace a finished run in --out.")
    ] = False,
    debug: Debug = False,
) -> None:
    """Trains a model, evaluates it, and leaves both with a report in a new folder.

    The folder has metrics.json, report.html, saved_model/, model.keras, tensorboard/ and run.json.
    It appears when everything in it is finished, and not at all if something goes wrong.
    """
    with new_folder(out, overwrite) as folder:
        from twml_ops.cli.training import Settings, run

        settings = Settings(
            data=data,
            eval=evaluation,
            model=model,
            optimizer=optimizer,
            learning_rate=learning_rate,
            batch_size=batch_size,
            epochs=epochs,
            seed=seed,
            command=shlex.join(["twml-ops", *sys.argv[1:]]),
        )
        run(settings, folder, out)
