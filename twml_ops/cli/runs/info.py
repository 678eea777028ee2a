"""`twml-ops info`: the installation, or the facts and the metrics of a finished run."""

from __future__ import annotations

import json
from pathlib import Path

from twml_ops.cli.render.terminal import make_console, print_pairs
from twml_ops.cli.runs.folder import FORMAT_KEY, METRICS_FILE, read_run


def show_info(run: Path | None) -> None:
    """Prints the finished run in the folder `run`, or the installation if it is None.

    Raises:
        UserError: the folder is not a finished run.
    """
    print_pairs(make_console(), installation() if run is None else run_info(run))


def run_info(folder: Path) -> dict[str, str]:
    """The facts and the metrics of a finished run, by the name under which they are shown."""
    facts = read_run(folder)
    facts.pop(FORMAT_KEY)
    versions = ", ".join(f"{k} {v}" for k, v in facts.pop("versions").items())
    features = {
        k: ", ".join(v) if isinstance(v, list) else v for k, v in facts.pop("schema").items()
    }
    nested = {
        f"{group} {k}": v
        for group in ("epoch_choice", "cluster", "calibration")
        for k, v in (facts.pop(group, None) or {}).items()
    }
    metrics = json.loads((folder / METRICS_FILE).read_text())
    shown = {**facts, **nested, **features, "versions": versions, **metrics}
    return {k.replace("_", " "): str(v) for k, v in shown.items() if v not in (None, "", 0, {})}


def installation() -> dict[str, str]:
    """The versions, and the names that options accept."""
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
