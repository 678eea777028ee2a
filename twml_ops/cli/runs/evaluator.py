"""The evaluator of a cluster: computes the metrics of each checkpoint of a training run."""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn

import tensorflow as tf

from twml_ops import models
from twml_ops.analysis import scoring
from twml_ops.cli.render import run_summary
from twml_ops.cli.render.terminal import make_console
from twml_ops.cli.runs import cluster, evaluation_log
from twml_ops.cli.runs.class_balance import corrected, training_examples
from twml_ops.cli.runs.cluster_checkpoints import is_of_start
from twml_ops.cli.runs.config import RunConfig
from twml_ops.cli.runs.folder import is_run
from twml_ops.cli.runs.model_options import builder_of
from twml_ops.cli.runs.sources import LARGE_BATCH_SIZE, open_pair
from twml_ops.data import original_errors
from twml_ops.distribute import iter_checkpoints


def evaluate_checkpoints(
    config: RunConfig, out: Path, overwrite: bool, resume: bool = False
) -> None:
    """Evaluates each checkpoint on the evaluation data, until the last one or the end of the run.

    Args:
        config: configuration of the run, equal in all processes of the cluster.
        out: final folder of the run.
        overwrite: a finished run in `out` is an older one.
        resume: whether checkpoints of another start of the cluster are of the run.
    """
    console = make_console()
    folder = cluster.checkpoint_dir(out)
    if not overwrite and is_run(out) and not folder.exists():
        return  # the run finished before this process started
    builder_of(config.model)  # registers the classes of a model of the user
    train, held_out = open_pair(
        config.data, config.eval, schema_file=config.schema_file, uses=config.uses
    )
    cluster.check_labels(train.schema.labels)
    tf.keras.utils.set_random_seed(config.seed)
    with original_errors(train, held_out):
        steps, _ = cluster.steps_of(training_examples(config, train), config, config.fixed_epochs)
        model_builder = cluster.build_once(_never_called, config, out)
        layout = models.layout_of(model_builder)
        accept = None if resume else is_of_start
        for step, model in iter_checkpoints(model_builder, folder, steps, accept):
            if any(line["step"] == step for line in evaluation_log.read(folder)):
                continue
            batches = held_out.dataset(LARGE_BATCH_SIZE, layout=layout)
            scores = scoring.score(corrected(model, config), batches)
            metrics = scoring.metrics(scores)
            if not folder.exists():
                return
            evaluation_log.append(folder, step, metrics)
            run_summary.print_checkpoint(console, step, steps, metrics)


def _never_called() -> NoReturn:
    raise AssertionError("only the chief builds the model")
