"""`twml-ops train`: from a SOURCE to a finished run in a folder."""

from __future__ import annotations

import contextlib
import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from twml_ops.cli.commands.options import BatchSize, Data, Debug
from twml_ops.cli.runs.folder import new_folder


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
    mode: Annotated[
        str,
        typer.Option(
            help="In a cluster: sync, async or hogwild.", rich_help_panel="In a cluster (TF_CONFIG)"
        ),
    ] = "async",
    partition_axis: Annotated[
        str,
        typer.Option(
            help="row, column or auto: how tables are divided over the servers.",
            rich_help_panel="In a cluster (TF_CONFIG)",
        ),
    ] = "auto",
    wire_dtype: Annotated[
        str,
        typer.Option(
            help="float32, bfloat16 or float16: products and gradients as they travel.",
            rich_help_panel="In a cluster (TF_CONFIG)",
        ),
    ] = "float32",
    checkpoint_every: Annotated[
        int,
        typer.Option(
            min=1,
            help="Steps between checkpoints, in --out.checkpoints, which servers must reach.",
            rich_help_panel="In a cluster (TF_CONFIG)",
        ),
    ] = 1000,
    timeout: Annotated[
        float,
        typer.Option(
            help="Seconds after which a server or worker that does not answer counts as lost.",
            rich_help_panel="In a cluster (TF_CONFIG)",
        ),
    ] = 300.0,
    debug: Debug = False,
) -> None:
    """Trains a model, evaluates it, and leaves both with a report in a new folder.

    The folder has metrics.json, report.html, saved_model/, model.keras, tensorboard/ and run.json.
    It appears when everything in it is finished, and not at all if something goes wrong.
    Where TF_CONFIG names parameter servers, this process is the task of their cluster that it says.
    """
    from twml_ops.cli.runs import cluster_runner
    from twml_ops.cli.runs.train import Settings, run

    role = cluster_runner.role()
    if role == "ps":
        cluster_runner.run_server()
    # Only one process of a cluster leaves something.
    others = role in ("worker", "evaluator")
    folder_of_run = contextlib.nullcontext(out) if others else new_folder(out, overwrite)
    with folder_of_run as folder:
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
        options = None
        if role != "alone":
            options = cluster_runner.Options(
                mode,  # type: ignore[arg-type]
                partition_axis,  # type: ignore[arg-type]
                wire_dtype,  # type: ignore[arg-type]
                checkpoint_every,
                timeout,
            )
        if role == "evaluator":
            assert options is not None
            from twml_ops.cli.runs import evaluator

            evaluator.run(settings, out, options, overwrite)
        else:
            run(settings, folder, out, options)
