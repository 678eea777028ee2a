"""The Typer application with all commands. Only commands that need TensorFlow import it."""

from __future__ import annotations

from typing import Annotated

import typer

from twml_ops import __version__
from twml_ops.cli import (
    calibrate,
    checkpoints,
    evaluate,
    explain,
    export,
    gpu_check,
    info,
    launch,
    learn_hash,
    plan,
    predict,
    schema,
    search,
    selfcheck,
    serve,
    stability,
    tables,
    tpu_check,
    train,
    tune,
    tune_input,
)
from twml_ops.cli.options import Debug

app = typer.Typer(
    name="twml-ops",
    help="Trains and serves ranking models on very sparse data.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"twml-ops {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
    debug: Debug = False,
) -> None:
    """Trains and serves ranking models on very sparse data."""


app.command()(train.train)
app.command()(calibrate.calibrate)
app.command()(evaluate.evaluate)
app.command()(predict.predict)
app.command()(explain.explain)
app.command()(export.export)
app.command()(serve.serve)
app.command()(info.info)
app.command()(schema.schema)
app.command()(learn_hash.learn_hash)
app.command()(tune.tune)
app.command()(search.search)
app.command()(tune_input.tune_input)
app.command()(tpu_check.tpu_check)
app.command()(gpu_check.gpu_check)
app.command()(stability.stability)
app.command()(launch.launch)
app.command()(plan.plan)
app.command()(tables.tables)
app.command()(selfcheck.selfcheck)
app.add_typer(checkpoints.app)
