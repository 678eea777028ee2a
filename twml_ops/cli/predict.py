"""`twml-ops predict`: writes the predicted probability of each example."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from twml_ops.cli.options import BatchSize, Data, Debug, Overwrite, Run

if TYPE_CHECKING:
    import numpy as np


def predict(
    run: Run,
    data: Data,
    out: Annotated[
        Path | None,
        typer.Option(help="File to write. Default: the standard output.", show_default=False),
    ] = None,
    batch_size: BatchSize = 8192,
    overwrite: Overwrite = False,
    debug: Debug = False,
) -> None:
    """Writes the predicted probability of each example on a line of its own, in order.

    With several labels a line has a probability for each, in the order of the schema, with tabs
    between them. CSV, Parquet and TFRecord files need the columns of the features only.
    """
    predict_run(run, data, batch_size, out, overwrite)


def predict_run(
    run: Path, data: str, batch_size: int, out: Path | None, overwrite: bool = False
) -> None:
    """Writes the predicted probability of each example on a line of its own, in order.

    With several labels a line has the probability of each, in the order of the run's schema, with
    tabs between them.

    Args:
        run: folder of the run.
        data: SOURCE of the examples, without labels if it is of CSV, Parquet or TFRecord files.
        batch_size: number of examples in a batch.
        out: file to write; None: the standard output.
        overwrite: replace an existing file.

    Raises:
        UserError: the folder is not a finished run, or `out` cannot be written.
        ValueError: data cannot be read.
    """
    import numpy as np

    from twml_ops.training.run_folder import optional_file, write_result

    with optional_file(out, overwrite) as file:
        columns = _predictions(run, data, batch_size)
        if file is None or out is None:
            np.savetxt(sys.stdout, columns, fmt="%.7g", delimiter="\t")
        else:
            write_result(file, out, lambda path: _write_columns(path, columns))


def _write_columns(path: Path, columns: np.ndarray) -> None:
    import numpy as np

    with path.open("w", encoding="ascii") as file:  # as it is, whatever the suffix
        np.savetxt(file, columns, fmt="%.7g", delimiter="\t")


def _predictions(run: Path, data: str, batch_size: int) -> np.ndarray:
    """The probabilities of each example, with a column for each label."""
    import numpy as np

    from twml_ops.cli.reporter import ConsoleReporter
    from twml_ops.cli.terminal import make_error_console
    from twml_ops.data import original_errors
    from twml_ops.training.evaluation import score_source
    from twml_ops.training.sources import checked_categories
    from twml_ops.training.trained_run import TrainedRun

    trained = TrainedRun(run)
    source, labels = trained.unlabeled_source(data), trained.schema.labels
    with original_errors(source), checked_categories(run, source):
        scores = score_source(
            trained.model,
            source,
            ConsoleReporter(make_error_console()),
            title=source.name,
            batch_size=batch_size,
            labels=labels,
        )
    return np.stack([scores[label].predictions for label in labels], axis=1)
