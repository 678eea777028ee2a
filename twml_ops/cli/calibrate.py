"""`twml-ops calibrate`: copies a finished run and adds a calibration layer to its model."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from twml_ops.cli.options import SOURCES, Debug, Run, command_line
from twml_ops.training.errors import UserError

if TYPE_CHECKING:
    from rich.console import Console

    from twml_ops.data import Source
    from twml_ops.training.trained_run import TrainedRun


def calibrate(
    run: Run,
    out: Annotated[Path, typer.Option(help="Folder to create.", show_default=False)],
    data: Annotated[
        str | None,
        typer.Option(
            help=f"Examples that were not used for training: {SOURCES}. "
            "Default: the evaluation data of the run.",
            show_default=False,
        ),
    ] = None,
    evaluation: Annotated[
        str | None,
        typer.Option(
            "--eval",
            help="Examples to evaluate on. Default: the last fifth of --data (for flights: the "
            "last days of each month), which is then not used for fitting.",
            show_default=False,
        ),
    ] = None,
    method: Annotated[
        str,
        typer.Option(
            help="isotonic: any increasing function, for tens of thousands of examples. "
            "platt: a sigmoid, for a few hundred examples."
        ),
    ] = "isotonic",
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace a finished run in --out.")
    ] = False,
    debug: Debug = False,
) -> None:
    """Fits a calibration on held-out data and writes a new run whose model includes it.

    The folder contains the files of a training run. Its report shows the reliability of the
    predictions before and after the calibration.
    """
    calibrate_run(run, data, evaluation, method, out, overwrite)


def calibrate_run(
    run: Path, data: str | None, evaluation: str | None, method: str, out: Path, overwrite: bool
) -> None:
    """Fits a calibration on held-out data, and writes a run whose model ends with it.

    Args:
        run: folder of the finished run to calibrate.
        data: SOURCE to fit the calibration on; None: the evaluation data of the run.
        evaluation: SOURCE to evaluate on; None: a part of `data`, which is then not fitted on.
        method: one of METHODS.
        out: folder to create.
        overwrite: replace a finished run in `out`.

    Raises:
        UserError: an option is wrong, the data have one class only, or scikit-learn is missing.
        ValueError: data cannot be read.
    """
    from twml_ops._known_categories import KnownCategories
    from twml_ops.analysis import scoring
    from twml_ops.cli.console import make_console
    from twml_ops.cli.reporter import ConsoleReporter, print_result
    from twml_ops.data import original_errors
    from twml_ops.report.page import shown_facts
    from twml_ops.report.run_files import write_files, write_model
    from twml_ops.training.calibration import append_layers, check_method, fit_calibration
    from twml_ops.training.drift import Statistics
    from twml_ops.training.evaluation import importances_of, score_source, throughput
    from twml_ops.training.results import History, RunResult
    from twml_ops.training.run import provenance
    from twml_ops.training.run_folder import (
        RUN_FILE,
        TENSORBOARD,
        damage_is_reported,
        new_folder,
    )
    from twml_ops.training.trained_run import TrainedRun

    console = make_console()
    reporter = ConsoleReporter(console)
    with new_folder(out, overwrite, reporter=reporter) as folder:
        check_method(method)
        trained = TrainedRun(run)
        if trained.calibration is not None:
            raise UserError(
                f"{run}: is calibrated already; calibrate the run that it was made from, "
                f"{trained.calibration['run']}"
            )
        with damage_is_reported(run / RUN_FILE):
            shown_facts(trained.facts)  # of which the report is made in the end
        train_source, seed = trained.fact("train_source", str), trained.fact("seed", int)
        source, held_out = trained.calibration_pair(data, evaluation)
        with original_errors(source, held_out):
            sizes = source.num_examples(), held_out.num_examples()
            _print_task(console, run, trained, method, source, held_out)
            if data in (trained.facts["data"], train_source):
                _print_warning(console)
            labels = held_out.schema.labels
            predict = scoring.predictor(trained.model, labels)
            before = score_source(trained.model, held_out, reporter, sizes[1], predict=predict)
            start = time.perf_counter()
            scores = score_source(
                trained.model, source, reporter, sizes[0], "scoring", predict=predict
            )
            fitted = {
                label: fit_calibration(
                    method, of_label, source.name, f"calibration_{i}" if i else "calibration"
                )
                for i, (label, of_label) in enumerate(scores.items())
            }
            seconds = time.perf_counter() - start
            model = append_layers(trained.model, fitted)
            predict = scoring.predictor(model, labels)
            after = score_source(model, held_out, reporter, sizes[1], predict=predict)
            importances = importances_of(model, held_out, seed, reporter, predict)
        if (run / TENSORBOARD).is_dir():
            shutil.copytree(run / TENSORBOARD, folder / TENSORBOARD)
        calibration = {
            "method": method,
            "run": str(run),
            "data": data,
            "eval": evaluation,
            "source": source.name,
            "examples": sizes[0],
        }
        facts: dict[str, Any] = {
            **trained.facts,
            "eval_source": held_out.name,
            "eval_examples": sizes[1],
            **provenance(command_line()),
            "calibration": calibration,
        }
        means = scoring.mean_metrics(scoring.metrics_by_label(after))
        metrics = {**means, **throughput(sizes[0], seconds)}
        result = RunResult(model, History(), after, metrics, importances, facts, before)
        write_model(folder, out, model)
        known = KnownCategories.load(run)
        if known is not None:
            known.save(folder)
        statistics = Statistics.load(run)
        if statistics is not None:
            statistics.save(folder)
        write_files(folder, result)
    files = "the report, the calibrated model and the metrics"
    print_result(console, result, files, out)


def _print_task(
    console: Console, run: Path, trained: TrainedRun, method: str, source: Source, held_out: Source
) -> None:
    from rich.markup import escape

    console.print(
        f"[bold]model[/]  {escape(str(run))}: {escape(trained.fact('model', str))}, trained "
        f"on {escape(trained.fact('train_source', str))}",
        soft_wrap=True,
    )
    console.print(
        f"[bold]data [/]  {method} calibration fitted on {escape(source.name)}: "
        f"{source.num_examples():,} examples, evaluated on {escape(held_out.name)}: "
        f"{held_out.num_examples():,}",
        soft_wrap=True,
    )


def _print_warning(console: Console) -> None:
    console.print(
        "[yellow]warning[/]  the model was trained on these data. Its predictions are "
        "overconfident there, and the calibration would learn this: use data that the training has "
        "not seen",
        soft_wrap=True,
    )
