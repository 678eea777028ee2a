"""`twml-ops train` as the evaluator of a cluster: the metrics of each checkpoint, as they come."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import tensorflow as tf

from twml_ops.analysis import scoring
from twml_ops.cli.render import run_summary
from twml_ops.cli.runs import cluster_runner, evaluation_log
from twml_ops.cli.runs.folder import is_run
from twml_ops.cli.runs.sources import open_pair
from twml_ops.data import original_errors
from twml_ops.distribute import follow

if TYPE_CHECKING:
    from twml_ops.cli.runs.train import Settings


def run(settings: Settings, out: Path, options: cluster_runner.Options, overwrite: bool) -> None:
    """Evaluates on the held-out data until the run's last checkpoint, or until the run is over.

    Args:
        settings: as the others have them.
        out: what the run's folder will be.
        options: as the others have them.
        overwrite: whether a run that is there is an older one.
    """
    from twml_ops.cli.runs.train import LARGE_BATCH

    console = run_summary.console()
    folder = cluster_runner.checkpoints_of(out)
    if not overwrite and is_run(out) and not folder.exists():
        return  # it was over before this process came
    train, held_out = open_pair(settings.data, settings.eval)
    tf.keras.utils.set_random_seed(settings.seed)
    with original_errors(train, held_out):
        steps, _ = cluster_runner.length(train, settings, options)
        built = cluster_runner.built(_never, settings, options, out)
        done = {line["step"] for line in evaluation_log.read(folder)}
        for step, model in follow(built, folder, steps):
            if step in done:
                continue
            scores = scoring.score(model, held_out.dataset(LARGE_BATCH))
            metrics = scoring.metrics(scores)
            if not folder.exists():
                return
            evaluation_log.add(folder, step, metrics)
            console.print(
                f"step {step:,}/{steps:,}   eval loss {metrics['log_loss']:.4f}  "
                f"AUC {metrics['auc']:.4f}"
            )


def _never() -> NoReturn:
    raise AssertionError("only the chief builds the model")
