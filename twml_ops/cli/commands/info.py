"""`twml-ops info`: what is installed, or what a finished run is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from twml_ops.cli.commands.options import Debug
from twml_ops.cli.runs.folder import METRICS_FILE, read_run


def info(
    run: Annotated[
        Path | None, typer.Argument(help="Folder of a finished run.", show_default=False)
    ] = None,
    debug: Debug = False,
) -> None:
    """Shows a finished run; without one, the installation and the names that options take."""
    from rich.markup import escape

    from twml_ops.cli.render import run_summary

    console = run_summary.console()
    for name, value in (_installation() if run is None else _run(run)).items():
        console.print(f"[bold]{name:<20}[/] {escape(value)}", soft_wrap=True)


def _run(folder: Path) -> dict[str, str]:
    facts = read_run(folder)
    versions = ", ".join(f"{k} {v}" for k, v in facts.pop("versions").items())
    schema = facts.pop("schema")
    features = {k: ", ".join(v) if isinstance(v, list) else v for k, v in schema.items()}
    facts.pop("twml_ops_run")
    calibration = {f"calibration {k}": v for k, v in facts.pop("calibration", {}).items()}
    metrics = json.loads((folder / METRICS_FILE).read_text())
    shown = {**facts, **calibration, **features, "versions": versions, **metrics}
    return {k.replace("_", " "): str(v) for k, v in shown.items() if v not in (None, "", 0)}


def _installation() -> dict[str, str]:
    import tensorflow as tf

    import twml_ops
    from twml_ops import _keras, models
    from twml_ops.cli.runs import optimizers
    from twml_ops.data import SCHEMES

    return {
        "twml_ops": twml_ops.__version__,
        "TensorFlow": tf.__version__,
        "Keras": _keras.VERSION,
        "models": ", ".join(models.names()),
        "optimizers": ", ".join(optimizers.names()),
        "sources": ", ".join(SCHEMES),
    }
