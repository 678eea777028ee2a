"""The loss of accuracy by each format of the rows of a scorer's tables.

`python -m benchmarks.row_formats`: trains a model with `twml-ops train`, exports it as a scorer in
each format, and compares the log loss of the scorers on the test data.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, get_args

import numpy as np
import typer
from numpy.typing import ArrayLike

from benchmarks import machine, tables
from benchmarks.quality import data_sets

BATCH_SIZE = 2000


def main(
    data: Annotated[str, typer.Option(help="Data set of benchmarks/quality.")] = "criteo",
    folder: Annotated[
        Path, typer.Option(help="Of the files of the data sets.")
    ] = data_sets.DEFAULT_FOLDER,
    models: Annotated[str, typer.Option(help="Models of `train`.")] = "sparse_mlp,dlrm",
    epochs: Annotated[int, typer.Option(min=1, help="Of the training.")] = 1,
    json_file: Annotated[Path | None, typer.Option("--json", help="Where to write them.")] = None,
    page: Annotated[Path | None, typer.Option(help="Markdown file to put the table into.")] = None,
) -> None:
    """Compares the formats of rows."""
    described = machine.describe(machine.command_line("benchmarks.row_formats"))
    found = [
        result
        for model in models.split(",")
        for result in measure(data_sets.get(data, folder), model, epochs)
    ]
    result = {"machine": described, "data": data, "results": found}
    text = f"{table(result)}\n\n{tables.machine(described)}"
    tables.record(result, json_file, page, {"formats": text}, "benchmarks/row_formats.py")


def measure(data: data_sets.DataSet, model: str, epochs: int) -> list[dict[str, Any]]:
    """Trains a model and scores the test data in each format.

    Args:
        data: the data set.
        model: name of the model.
        epochs: the number of epochs of the training.

    Returns:
        A dict for each format.
    """
    from twml_ops.cli.export import export_run
    from twml_ops.core import Scorer
    from twml_ops.export.tables import RowFormat
    from twml_ops.models import layout_of
    from twml_ops.training.trained_run import TrainedRun

    found: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as scratch:
        run = Path(scratch) / "run"
        command = [sys.executable, "-m", "twml_ops.cli", "train", "--data", data.source]
        command += ["--model", model, "--epochs", str(epochs), "--out", str(run), "--seed", "1"]
        if data.evaluation is not None:
            command += ["--eval", data.evaluation]
        subprocess.run(
            command, check=True, stdout=subprocess.DEVNULL, env=os.environ | {"COLUMNS": "100"}
        )
        layout = layout_of(TrainedRun(run).model)
        exact = np.zeros(0)
        for form in get_args(RowFormat):
            out = Path(scratch) / form
            export_run(run, out, "scorer", form)
            scorer = Scorer.load(out)
            parts = [
                (scorer.predict(features).reshape(-1), labels)
                for features, labels in batches(data, layout, scorer.inputs)
            ]
            predicted, labels = map(np.concatenate, zip(*parts, strict=True))
            loss = log_loss(predicted, labels)
            exact = predicted if form == "float32" else exact
            found.append(
                {
                    "model": model,
                    "format": form,
                    "bytes": sum(f.stat().st_size for f in out.glob("*_table.npy")),
                    "log_loss": loss,
                    "increase": loss - (found[0]["log_loss"] if found else loss),
                    "mean_error": float(np.abs(predicted - exact).mean()),
                    "largest_error": float(np.abs(predicted - exact).max()),
                    "examples": len(labels),
                }
            )
            print(found[-1], flush=True)
    return found


def batches(
    data: data_sets.DataSet, layout: Any, names: list[str]
) -> Iterator[tuple[dict[str, np.ndarray], np.ndarray]]:
    """The test data as arrays for a scorer, and its labels.

    Args:
        data: the data set.
        layout: the layout of the model.
        names: the inputs of the scorer.
    """
    _, test = data.open()
    for batch in test.dataset(BATCH_SIZE, layout=layout):
        arrays: dict[str, np.ndarray] = {}
        for name, tensor in batch[0].items():
            if hasattr(tensor, "flat_values"):
                arrays[name] = tensor.flat_values.numpy()
                arrays[f"{name.rpartition('_')[0]}_row_splits"] = tensor.row_splits.numpy()
            else:
                arrays[name] = tensor.numpy()
        yield {name: arrays[name] for name in names}, batch[1].numpy().reshape(-1)


def log_loss(predicted: ArrayLike, labels: ArrayLike) -> float:
    """The mean of -log of the probability of the labels, in float64."""
    p = np.clip(np.asarray(predicted, np.float64), 1e-12, 1 - 1e-12)
    return float(-np.mean(np.where(np.asarray(labels) > 0.5, np.log(p), np.log1p(-p))))


def table(result: dict[str, Any]) -> str:
    """The results as Markdown.

    Args:
        result: what `main` writes as JSON.

    Returns:
        A sentence and a table.
    """
    examples = result["results"][0]["examples"]
    header = ["model", "rows", "tables", "log loss", "increase", "mean error", "largest error"]
    rows = [
        [
            f"`{r['model']}`",
            r["format"],
            f"{r['bytes'] / 1e6:.1f} MB",
            f"{r['log_loss']:.5f}",
            f"{r['increase']:+.1e}" if r["format"] != "float32" else "",
            f"{r['mean_error']:.1e}" if r["format"] != "float32" else "",
            f"{r['largest_error']:.1e}" if r["format"] != "float32" else "",
        ]
        for r in result["results"]
    ]
    text = (
        f"Models of `twml-ops train` on the data set `{result['data']}`, scored on {examples:,} "
        "test rows. The errors are errors of the probabilities."
    )
    return f"{text}\n\n{tables.markdown(header, rows)}"


if __name__ == "__main__":
    typer.run(main)
