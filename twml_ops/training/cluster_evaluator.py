"""The evaluator of a cluster: it evaluates and publishes the checkpoints of the run."""

from __future__ import annotations

import contextlib
import json
import shutil
import time
from pathlib import Path
from typing import Any

import tensorflow as tf

from twml_ops import models
from twml_ops._known_categories import KnownCategories
from twml_ops._publish import write_file
from twml_ops.analysis import scoring
from twml_ops.checkpoint import CheckpointReader
from twml_ops.checkpoint.facts import FACTS
from twml_ops.data import Source, original_errors
from twml_ops.distribute import exit_on_cluster_error, iter_checkpoints
from twml_ops.training.cluster import (
    EVALUATIONS,
    checkpoint_dir,
    steps_of_epoch,
)
from twml_ops.training.cluster_checkpoints import is_of_start
from twml_ops.training.cluster_stages import END, ClusterStages
from twml_ops.training.config import RunConfig
from twml_ops.training.labels import JoinedModel, corrected, training_examples
from twml_ops.training.model_options import builder_of
from twml_ops.training.reporter import SILENT, Reporter
from twml_ops.training.run_folder import damage_is_reported, is_run, to_finite
from twml_ops.training.run_publisher import RunPublisher
from twml_ops.training.sources import LARGE_BATCH_SIZE, learn_categories, open_data
from twml_ops.training.stage_training import Stage
from twml_ops.training.trained_run import TrainedRun, WarmStart
from twml_ops.training.trials import validation_parts


def append_evaluation(folder: Path, step: int, metrics: dict[str, float]) -> None:
    """Adds the metrics of the checkpoint of `step`."""
    before = (folder / EVALUATIONS).read_text() if (folder / EVALUATIONS).exists() else ""
    line = json.dumps(to_finite({"step": step, **metrics}), allow_nan=False)
    write_file(folder / EVALUATIONS, f"{before}{line}\n".encode())  # at once, in case of a kill


def read_evaluations(folder: Path) -> list[dict[str, Any]]:
    """The lines of the log; empty if there is no log.

    Raises:
        UserError: the log is damaged.
    """
    path = folder / EVALUATIONS
    with damage_is_reported(path):
        try:
            found = [json.loads(line) for line in path.read_text().splitlines()]
        except FileNotFoundError:
            return []
        for line in found:
            _ = line["step"] + 0
    return found


def wait_for_evaluation(folder: Path, step: int, timeout: float) -> bool:
    """Waits until a checkpoint of `step` or a later one has been evaluated.

    Args:
        folder: folder of the log.
        step: step to wait for.
        timeout: seconds to wait at most.

    Returns:
        Whether it was evaluated in time.
    """
    deadline = time.monotonic() + timeout
    while not any(line["step"] >= step for line in read_evaluations(folder)):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


def copy_evaluations(folder: Path, run: Path) -> None:
    """Copies the log, if there is one, to the folder of the run."""
    if (folder / EVALUATIONS).exists():
        shutil.copyfile(folder / EVALUATIONS, run / EVALUATIONS)


def evaluate_checkpoints(
    config: RunConfig,
    out: Path,
    overwrite: bool,
    resume: bool = False,
    reporter: Reporter = SILENT,
    publish: Path | None = None,
) -> None:
    """Evaluates each checkpoint of the model of the run, until the last one or the end of the run.

    Of an ensemble it is the first member.

    Args:
        config: what the user chose, equal in all processes of the cluster.
        out: final folder of the run.
        overwrite: a finished run in `out` is an older one.
        resume: whether checkpoints of another start of the cluster are of the run.
        reporter: is told what happens.
        publish: folder in which each checkpoint, and the final model, become a version of a scorer;
            None: there is none.

    Raises:
        UserError: the folder of the versions is in use, or cannot be written.
    """
    folder = checkpoint_dir(out)
    if publish is None and not overwrite and is_run(out) and not folder.exists():
        return  # the run finished before this process started
    stages = ClusterStages(config, out, reporter, resume)
    with contextlib.ExitStack() as stack:
        publisher = None
        if publish is not None:
            publisher = RunPublisher(publish, config, reporter)
            publisher.open()
            stack.callback(publisher.close)
        stack.enter_context(exit_on_cluster_error())
        start = WarmStart(config) if config.from_run is not None else None
        like, holdout = (start.schema, start.holdout) if start else (None, None)
        train, held_out, _ = open_data(config, like, holdout)
        stack.enter_context(original_errors(train, held_out))
        final = _final_stage(stages)
        if final is not None:
            _evaluate_stage(*final, stages, (train, held_out), resume, publisher)
        if publisher is not None:
            stages.wait_for_run()
            publisher.publish_final(TrainedRun(out).model, train.schema)


def _final_stage(stages: ClusterStages) -> tuple[int, Stage] | None:
    """The stage of the model of the run, and its number; None: the run has ended."""
    number = 1
    while not (found := stages.wait_for(number)).get("final"):
        if END in found:
            return None
        number += 1
    return number, Stage.from_json(found)


def _evaluate_stage(
    number: int,
    stage: Stage,
    stages: ClusterStages,
    sources: tuple[Source, Source],
    resume: bool,
    publisher: RunPublisher | None,
) -> None:
    config, folder = stages.asked, checkpoint_dir(stages.out)
    train, held_out = sources
    tf.keras.utils.set_random_seed(stage.config.seed)
    builder_of(stage.config.model)  # registers the classes of a model of the user
    data = training_examples(config, train)
    if publisher is not None and train.schema.categorical:
        before = KnownCategories.load(Path(config.from_run)) if config.from_run else None
        publisher.known = learn_categories(data, before)
    if stage.part == "fit" and (parts := validation_parts(config, train)) is not None:
        data = parts.fit
    steps = stage.epochs * steps_of_epoch(data, stage.config)[0]
    model_of_stage, labels = stages.read_model(number), train.schema.labels
    layout = models.layout_of(model_of_stage)
    build = JoinedModel(model_of_stage, labels)

    def accept(checkpoint: CheckpointReader) -> bool:
        of_stage = checkpoint.manifest.values[FACTS].get("stage") == number
        return of_stage and (resume or is_of_start(checkpoint))

    for i, (step, model) in enumerate(iter_checkpoints(build, folder, steps, accept)):
        if publisher is not None:
            if i == 0:
                publisher.follow(build.served, model, train.schema)
            publisher.publish_weights(step)
        if any(line["step"] == step for line in read_evaluations(folder)):
            continue
        batches = held_out.dataset(LARGE_BATCH_SIZE, layout=layout)
        scores = scoring.score_labels(corrected(build.served, config), batches, labels)
        metrics = scoring.mean_metrics(scoring.metrics_by_label(scores))
        if not folder.exists():
            return
        append_evaluation(folder, step, metrics)
        stages.reporter.checkpoint(step, steps, metrics)
