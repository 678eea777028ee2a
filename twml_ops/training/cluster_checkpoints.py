"""The folder OUT.checkpoints of a cluster: of which run it is, and its evaluator."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NoReturn

import tensorflow as tf

from twml_ops import models
from twml_ops.analysis import scoring
from twml_ops.checkpoint import CheckpointError, CheckpointReader, check_facts
from twml_ops.checkpoint.facts import FACTS
from twml_ops.data import original_errors
from twml_ops.distribute import Cluster, iter_checkpoints
from twml_ops.distribute.parameter_server.checkpoint import manager_of
from twml_ops.training.checkpoints import unfinished_run
from twml_ops.training.cluster import (
    EVALUATIONS,
    MODEL_FILES,
    append_evaluation,
    build_once,
    check_one_label,
    checkpoint_dir,
    model_file,
    read_evaluations,
    steps_of,
)
from twml_ops.training.config import RunConfig
from twml_ops.training.errors import UserError
from twml_ops.training.labels import corrected, training_examples
from twml_ops.training.model_options import builder_of
from twml_ops.training.reporter import SILENT, Reporter
from twml_ops.training.run_folder import is_run
from twml_ops.training.sources import LARGE_BATCH_SIZE, open_pair

START = "start"
_DATA = ("steps", "step_examples", "examples")  # the trainer compares them

# With these a run may be continued: they do not change what is computed, or only its speed.
_MAY_DIFFER = ("checkpoint_policy",)
_OF_CLUSTER = ("mode", "wire_dtype", "exchange_every")


def cluster_facts(config: RunConfig) -> dict[str, Any]:
    """The facts that must be equal in a run and in the checkpoint from which it continues.

    Args:
        config: configuration of the run.
    """
    fields = config.to_json()
    options = fields.pop("cluster")
    facts = {name: value for name, value in fields.items() if name not in _MAY_DIFFER}
    facts |= {name: options[name] for name in _OF_CLUSTER}
    facts[START] = Cluster.from_environment().start_id
    found: dict[str, Any] = json.loads(json.dumps(facts))
    return found


def is_of_start(checkpoint: CheckpointReader) -> bool:
    """Whether a checkpoint was written in this start of the cluster."""
    facts = checkpoint.manifest.values.get(FACTS, {})
    return bool(facts.get(START) == Cluster.from_environment().start_id)


class ClusterCheckpoints:
    """The checkpoints of a run, as its chief finds them.

    A process that its supervisor has restarted continues without `--resume`: the checkpoints have
    the start id of the cluster. Checkpoints of another start are treated as a single process treats
    the ones that it finds: they are continued with --resume, and removed with --overwrite.

    Args:
        out: final folder of the run.
        config: configuration of the run, with a learning rate.
        resume: whether the checkpoints of another start are to be continued.
        overwrite: whether they are removed.

    Raises:
        UserError: the folder has checkpoints of another start, and the run is neither to continue
            nor to replace them; or they are of another run; or another process writes to it.
    """

    def __init__(self, out: Path, config: RunConfig, resume: bool, overwrite: bool) -> None:
        self.folder = checkpoint_dir(out)
        self._manager = manager_of(self.folder)
        if self._manager.is_empty:
            return
        try:
            self._manager.lock()
        except CheckpointError as e:
            raise UserError(str(e)) from e
        newest = self._manager.latest()
        if newest is None:  # all are damaged, which the trainer refuses
            if overwrite:
                self.remove()
            return
        problem = _difference(newest, config)
        continues = resume or (is_of_start(newest) and not (problem and overwrite))
        if continues and problem:
            raise UserError(f"{problem}; use --overwrite to begin again")
        if continues:
            self._take_model(newest, config)
        elif overwrite:
            self.remove()
        else:
            raise unfinished_run(self.folder)

    def _take_model(self, newest: CheckpointReader, config: RunConfig) -> None:
        """Gives the model that an earlier start has built its name in this one."""
        starts = newest.manifest.values[FACTS][START], Cluster.from_environment().start_id
        before, now = (self.folder / model_file(config, start) for start in starts)
        if before.exists() and not now.exists():
            before.rename(now)

    def remove(self) -> None:
        """Removes the checkpoints, the models and the evaluations, and the folder if it is empty.

        Raises:
            UserError: another process writes to the folder.
        """
        if not self.folder.is_dir():
            return
        for path in (*self.folder.glob(f"{MODEL_FILES}-*"), self.folder / EVALUATIONS):
            path.unlink(missing_ok=True)
        try:
            self._manager.remove_all()
        except CheckpointError as e:
            raise UserError(str(e)) from e


def _difference(checkpoint: CheckpointReader, config: RunConfig) -> str | None:
    """The reason why a checkpoint is not of a run with this configuration; None: it is."""
    try:
        check_facts(checkpoint, cluster_facts(config), may_differ=(START, *_DATA))
    except CheckpointError as e:
        return str(e)
    return None


def evaluate_checkpoints(
    config: RunConfig,
    out: Path,
    overwrite: bool,
    resume: bool = False,
    reporter: Reporter = SILENT,
) -> None:
    """Evaluates each checkpoint on the evaluation data, until the last one or the end of the run.

    Args:
        config: configuration of the run, equal in all processes of the cluster.
        out: final folder of the run.
        overwrite: a finished run in `out` is an older one.
        resume: whether checkpoints of another start of the cluster are of the run.
        reporter: is told what happens.
    """
    folder = checkpoint_dir(out)
    if not overwrite and is_run(out) and not folder.exists():
        return  # the run finished before this process started
    builder_of(config.model)  # registers the classes of a model of the user
    train, held_out = open_pair(
        config.data, config.eval, schema_file=config.schema_file, uses=config.uses
    )
    check_one_label(train.schema.labels)
    tf.keras.utils.set_random_seed(config.seed)
    with original_errors(train, held_out):
        steps, _ = steps_of(training_examples(config, train), config, config.fixed_epochs)
        model_builder = build_once(_never_called, config, out)
        layout = models.layout_of(model_builder)
        accept = None if resume else is_of_start
        for step, model in iter_checkpoints(model_builder, folder, steps, accept):
            if any(line["step"] == step for line in read_evaluations(folder)):
                continue
            batches = held_out.dataset(LARGE_BATCH_SIZE, layout=layout)
            scores = scoring.score(corrected(model, config), batches)
            metrics = scoring.metrics(scores)
            if not folder.exists():
                return
            append_evaluation(folder, step, metrics)
            reporter.checkpoint(step, steps, metrics)


def _never_called() -> NoReturn:
    raise AssertionError("only the chief builds the model")
