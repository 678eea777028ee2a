"""The Typer application with all commands. Only commands that need TensorFlow import it."""

from __future__ import annotations

from typing import Annotated

import typer

from twml_ops import __version__
from twml_ops.cli import (
    calibrate,
    checkpoints,
    compile_check,
    evaluate,
    explain,
    export,
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
    train,
    tune,
    tune_input,
)
from twml_ops.cli.options import Command, Debug

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


app.command(cls=Command)(train.train)
app.command(cls=Command)(calibrate.calibrate)
app.command(cls=Command)(evaluate.evaluate)
app.command(cls=Command)(predict.predict)
app.command(cls=Command)(explain.explain)
app.command(cls=Command)(export.export)
app.command(cls=Command)(serve.serve)
app.command(cls=Command)(info.info)
app.command(cls=Command)(schema.schema)
app.command(cls=Command)(learn_hash.learn_hash)
app.command(cls=Command)(tune.tune)
app.command(cls=Command)(search.search)
app.command(cls=Command)(tune_input.tune_input)
app.command(cls=Command)(compile_check.tpu_check)
app.command(cls=Command)(compile_check.gpu_check)
app.command(cls=Command)(stability.stability)
app.command(cls=Command)(launch.launch)
app.command(cls=Command)(plan.plan)
app.command(cls=Command)(tables.tables)
app.command(cls=Command)(selfcheck.selfcheck)
app.add_typer(checkpoints.app)
