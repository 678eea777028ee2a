"""`twml-ops info`: shows the installation, a model or a finished run."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Annotated, Any

import typer

from twml_ops.cli.options import Debug
from twml_ops.training.config import format_value, type_name
from twml_ops.training.errors import UserError


def info(
    subject: Annotated[
        str | None,
        typer.Argument(
            metavar="RUN|MODEL",
            help="Folder of a finished run, name of a model, or FILE.py:FUNCTION.",
            show_default=False,
        ),
    ] = None,
    debug: Debug = False,
) -> None:
    """Shows a finished run, the options of a model, or the installation.

    The options of a model are the ones that `twml-ops train --set` takes, with their defaults. The
    installation lists the names of models, optimizers and sources that options accept.
    """
    show_info(subject)


def show_info(subject: str | None) -> None:
    """Prints a finished run, the options of a model, or the installation.

    Args:
        subject: folder of a run, name of a model or FILE.py:FUNCTION; None: the installation.

    Raises:
        UserError: the folder is not a finished run, or there is no such model.
    """
    from twml_ops.cli.console import make_console, print_pairs

    if subject is None:
        pairs = installation()
    elif Path(subject).exists():
        pairs = run_info(Path(subject))
    else:
        pairs = model_info(subject)
    print_pairs(make_console(), pairs)


def model_info(model: str) -> dict[str, str]:
    """The first line of a builder's docstring, and the options of the model.

    Raises:
        UserError: there is no such model.
    """
    from twml_ops.training.model_options import builder_of, options_of

    try:
        build = builder_of(model)
    except UserError as e:
        raise UserError(f"{model}: no such folder, and no model: {e}") from e
    title = (inspect.getdoc(build) or "").partition("\n")[0]
    options = options_of(build).values()
    return {model: title, **{f"--set {o}": f"{type_name(o.type)}: {o.help}" for o in options}}


def run_info(folder: Path) -> dict[str, str]:
    """The facts and the metrics of a finished run, by the names that are printed.

    Raises:
        UserError: the folder is not a finished run, or a file of it is damaged.
    """
    from twml_ops.training.run_folder import (
        METRICS_FILE,
        RUN_FILE,
        damage_is_reported,
        read_json,
        read_run,
    )

    with damage_is_reported(folder / RUN_FILE):
        shown = _shown_facts(read_run(folder))
    with damage_is_reported(folder / METRICS_FILE):
        metrics = read_json(folder / METRICS_FILE)
        by_label = metrics.pop("labels", {})
        metrics |= {
            f"{label} {k}": v for label, of_label in by_label.items() for k, v in of_label.items()
        }
    shown |= metrics
    return {k.replace("_", " "): str(v) for k, v in shown.items() if v not in (None, "", 0, {})}


def _shown_facts(facts: dict[str, Any]) -> dict[str, Any]:
    """The content of run.json, without what is too long to be printed."""
    from twml_ops.report.result_tables import trial_line
    from twml_ops.training.config import FORMAT_KEY
    from twml_ops.training.results import Trial

    facts.pop(FORMAT_KEY)
    versions = ", ".join(f"{k} {v}" for k, v in facts.pop("versions").items())
    features = {
        k: ", ".join(v) if isinstance(v, list) else v for k, v in facts.pop("schema").items()
    }
    options = {
        f"option {k}": format_value(v) for k, v in (facts.pop("model_options", None) or {}).items()
    }
    nested = {
        f"{group} {k}": v
        for group in ("epoch_choice", "cluster", "calibration")
        for k, v in (facts.pop(group, None) or {}).items()
    }
    members = facts.pop("members", None) or []
    nested |= {f"member {i}": f"seed {m['seed']}" for i, m in enumerate(members)}
    trials = (facts.pop("model_choice", None) or {}).get("trials", [])
    nested |= {f"trial {i}": trial_line(Trial.from_facts(t)) for i, t in enumerate(trials, 1)}
    return {**facts, **options, **nested, **features, "versions": versions}


def installation() -> dict[str, str]:
    """The versions, and the names that options accept."""
    import tensorflow as tf

    import twml_ops
    from twml_ops import _keras, models
    from twml_ops.data import SCHEMES
    from twml_ops.training.model import optimizer_names

    return {
        "twml_ops": twml_ops.__version__,
        "TensorFlow": tf.__version__,
        "Keras": _keras.VERSION,
        "models": ", ".join(models.names()),
        "optimizers": ", ".join(optimizer_names()),
        "sources": ", ".join(SCHEMES),
    }
