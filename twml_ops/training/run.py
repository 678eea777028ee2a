"""Trains and evaluates a model, as its configuration says."""

from __future__ import annotations

import dataclasses
import datetime
import platform
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tensorflow as tf

import twml_ops
from twml_ops import _keras
from twml_ops._known_categories import KnownCategories
from twml_ops._phases import Phases, phase
from twml_ops.analysis import leaking_features, scoring
from twml_ops.data import Schema, Source, TrainingParts, original_errors
from twml_ops.training.checkpoints import RunCheckpoints
from twml_ops.training.cluster import (
    START_KEY,
    with_shared_batch,
)
from twml_ops.training.config import AUTO, FORMAT, FORMAT_KEY, RunConfig
from twml_ops.training.evaluation import importances_of, score_source, throughput
from twml_ops.training.fit import final_fit, fit_members
from twml_ops.training.labels import check_balance, training_examples
from twml_ops.training.model import (
    check_storage,
    num_weights,
    with_batch_size,
    with_defaults,
    with_learning_rate,
)
from twml_ops.training.model_options import builder_of
from twml_ops.training.one_value import warnings_of_one_value
from twml_ops.training.reporter import SILENT, Reporter
from twml_ops.training.results import EpochChoice, History, Member, ModelChoice, RunResult
from twml_ops.training.runners import MakeRunner, Runner, local_runner
from twml_ops.training.selection import (
    check_auto,
    choose,
    second_model,
    with_crosses,
    with_the_crosses_of,
)
from twml_ops.training.sources import (
    Holdout,
    OpenedData,
    default_holdout,
    learn_features,
    open_data,
    parse_all,
    split,
)
from twml_ops.training.trained_run import WarmStart, check_slots
from twml_ops.training.trials import validation_parts

if TYPE_CHECKING:
    from twml_ops.training.cluster_stages import ClusterStages


def train(
    config: RunConfig,
    data: Source | None = None,
    eval: Source | None = None,
    *,
    reporter: Reporter = SILENT,
    logs: Path | None = None,
    checkpoints: RunCheckpoints | None = None,
    on_model: Callable[[tf.keras.Model], object] = lambda model: None,
    stages: ClusterStages | None = None,
    command: str = "",
    phases: Phases | None = None,
    opened: OpenedData | None = None,
) -> RunResult:
    """Trains and evaluates a model.

    Args:
        config: configuration of the run.
        data: training data; None: `config.data` is opened.
        eval: evaluation data, if `data` are given; None: a part of `data` is held out.
        reporter: is told what happens.
        logs: folder for the TensorBoard logs; None: none are written.
        checkpoints: the checkpoints of the run, if it is trained in this process; None: none are
            written.
        on_model: called with the trained model, before it is evaluated.
        stages: the trainings of a cluster in which this process, which is connected to it, takes
            part. The process of a worker that is not the chief ends
            with them, unless it becomes the chief, as a peer may.
        command: the command that repeats the run, for its facts; empty if there is none.
        phases: records the phases; None: they begin with this call.
        opened: what `open_data` has made of `config`; None: the data are opened here.

    Raises:
        UserError: the configuration is invalid, or the loss became NaN.
        ValueError: the model is unknown, or data cannot be read.
    """
    phases = phases or Phases(reporter.phase_ended)
    with phases.recording():
        check_slots(config)
        check_storage(config)
        if config.model == AUTO:
            check_auto(config)
        start = WarmStart(config) if config.from_run is not None else None
        is_worker = stages is not None and not stages.cluster.is_chief
        chosen = config
        eval_is_given = config.eval is not None or eval is not None
        from_objects = data is not None
        with phase("inspection of the data"):
            data, held_out, holdout = opened or _opened(config, start, data, eval)
        if not is_worker:
            reporter.columns(data)
        second = second_model(config, data.schema)
        rate_given = config.learning_rate is not None
        if config.model != AUTO:
            config = with_defaults(config, data.schema)
            builder_of(config.model)  # fails before the examples are read
        check_balance(config, data.schema)
        with (
            original_errors(data, held_out),
            phase("reading"),
            reporter.phase(f"reading {data.name}"),
        ):
            parts = validation_parts(config, data)
            whole, data = data, training_examples(config, data)
            sizes = data.num_examples(), held_out.num_examples()
            if not is_worker:
                for text in warnings_of_one_value(data, parts):
                    reporter.warning(text)
        if is_worker:
            assert stages is not None
            stages.follow(data, parts)
        config = with_batch_size(config, sizes[0], not rate_given)
        second = second and with_batch_size(second, sizes[0], not rate_given, second=True)
        shared = partial(_shared_among_workers, stages=stages, chosen=chosen)
        if config.model != AUTO:  # which is chosen in this process alone
            config, second = shared(config), second and shared(second)
        reporter.data(data, held_out, sizes)
        if holdout == "time" and not eval_is_given:
            reporter.split_in_time(data.schema)
        with original_errors(data, held_out, *(parts or ())):
            config = with_crosses(config, parts, reporter)
            second = with_the_crosses_of(second, config)
            examined = parts.validation if parts else held_out
            with phase("leaks"):
                leaks = leaking_features(examined.blocks(), data.schema)
            before = KnownCategories.load(Path(config.from_run)) if config.from_run else None
            with phase("statistics of the features"):
                known, statistics = learn_features(data, before, whole)
        reporter.leaks(leaks, examined.name)
        if checkpoints is not None:
            checkpoints.publish_with(known)
        with (
            original_errors(held_out),
            phase("reading of the evaluation data"),
            reporter.phase(f"reading {held_out.name}"),
        ):
            if known is not None and statistics is not None:
                count_unknown = partial(statistics.add_unknown, known, schema=data.schema)
                parse_all(held_out, count_unknown)
            else:
                parse_all(held_out)
        make_runner = _runners(stages, parts)
        choices = choose(
            *(config, data, parts, logs, reporter, checkpoints, second, make_runner),
            *(stages, shared),
        )
        config, choice = choices.config, choices.epochs
        with original_errors(data, held_out, *(parts or ())):
            fit = final_fit(make_runner, choices, data, held_out, logs, reporter, checkpoints)
            fitted = fit_members(config, fit, reporter, checkpoints)
            if stages is not None:
                stages.end()
            with phase("saving the model"):
                on_model(fitted.model)
            predict = scoring.predictor(fitted.model, held_out.schema.labels)
            with phase("evaluation"):
                scores = score_source(fitted.model, held_out, reporter, sizes[1], predict=predict)
            with phase("importance"):
                importances = importances_of(fitted.model, held_out, config.seed, reporter, predict)
        histories = [*fitted.members] + ([choice.history] if choice and choice.refit else [])
        speed = throughput(sum(h.examples for h in histories), sum(h.seconds for h in histories))
        validation = {"validation_log_loss": choice.log_loss} if choice else {}
        trained_on = (data.name, sizes[0])
        if choice and not choice.refit:
            trained_on = (choice.fit_source, choice.fit_examples)
        means = scoring.mean_metrics(scoring.metrics_by_label(scores))
        return RunResult(
            fitted.model,
            fitted.history,
            scores,
            {**means, **validation, **speed},
            importances,
            training_facts(
                config,
                data.schema,
                trained_on,
                (held_out.name, sizes[1]),
                fitted.model,
                choice,
                fitted.members,
                choices.model,
                {"data": examined.name, "features": leaks},
                fitted.history,
                None if eval_is_given else holdout,
                command,
                from_objects,
                stages.cluster.start_id if stages else None,
            ),
            epoch_choice=choice,
            known=known,
            statistics=statistics,
            phases=phases,
        )


def _shared_among_workers(
    config: RunConfig, *, stages: ClusterStages | None, chosen: RunConfig
) -> RunConfig:
    """The configuration with which each worker of a cluster trains."""
    if stages is None:
        return config
    return with_shared_batch(config, chosen, len(stages.cluster.workers))


def _runners(stages: ClusterStages | None, parts: TrainingParts | None) -> MakeRunner:
    """Says where the models of a run are trained: in a cluster, or in this process."""
    if stages is None:
        return local_runner

    def make_runner(
        config: RunConfig,
        log_dir: Path | None,
        reporter: Reporter,
        checkpoints: RunCheckpoints | None = None,
        *,
        member: int = 0,
        final: bool = False,
    ) -> Runner:
        del log_dir, checkpoints, member  # a stage has checkpoints and a number of its own
        from twml_ops.training.cluster_runner import ClusterRunner
        from twml_ops.training.peer_training import PeerRunner
        from twml_ops.training.peers import PeerStages

        kind = PeerRunner if isinstance(stages, PeerStages) else ClusterRunner
        return kind(stages, with_learning_rate(config), parts, final, reporter)

    return make_runner


def _opened(
    config: RunConfig, start: WarmStart | None, data: Source | None, eval: Source | None
) -> OpenedData:
    """The data of a training, of which the caller may have opened some."""
    like, holdout = (start.schema, start.holdout) if start else (None, None)
    if data is None:
        if eval is not None:
            raise ValueError("eval: expected data as well, got None")
        return open_data(config, like, holdout)
    holdout = holdout or default_holdout(config.schema_file, data.schema)
    return OpenedData(*((data, eval) if eval is not None else split(data, holdout)), holdout)


def training_facts(
    config: RunConfig,
    schema: Schema,
    train: tuple[str, int],
    evaluation: tuple[str, int],
    model: tf.keras.Model,
    epoch_choice: EpochChoice | None,
    members: Sequence[Member],
    model_choice: ModelChoice | None,
    leaks: dict[str, Any],
    history: History,
    holdout: Holdout | None = None,
    command: str = "",
    from_objects: bool = False,
    cluster_start: str | None = None,
) -> dict[str, Any]:
    """The content of run.json for a training run: what is needed to repeat and to reopen it.

    Args:
        config: configuration of the run.
        schema: the features.
        train: (name, number of examples) of the data that the model was trained on.
        evaluation: (name, number of examples) of the evaluation data.
        model: the model.
        epoch_choice: how the number of epochs was chosen; None if it was not.
        members: the models that were trained; more than one for an ensemble.
        model_choice: how the model was chosen; None if it was not.
        leaks: the features that alone predict the label, and the data that showed it.
        history: the record of the training.
        holdout: how the evaluation data were held out of the data; None: they were given.
        command: the command that repeats the run, if there is one.
        from_objects: whether the data were objects in memory, which nothing can open again.
        cluster_start: id of the start of the cluster that has trained; None: there was none.
    """
    return {
        FORMAT_KEY: FORMAT,
        **config.to_json(),
        "from_objects": from_objects,
        START_KEY: cluster_start,
        "holdout": holdout,
        "train_source": train[0],
        "eval_source": evaluation[0],
        "train_examples": train[1],
        "eval_examples": evaluation[1],
        "weights": num_weights(model),
        "trained_epochs": epoch_choice.epochs if epoch_choice else config.fixed_epochs,
        "epoch_choice": epoch_choice and epoch_choice.facts(),
        "model_choice": model_choice and model_choice.facts(),
        "leaks": leaks,
        "parsed_bytes": history.parsed_bytes or None,
        "data_bytes": history.data_bytes or None,
        "speeds": history.speeds and history.speeds._asdict(),
        "members": [m._asdict() for m in members] if len(members) > 1 else None,
        "schema": dataclasses.asdict(schema),
        **provenance(command),
    }


def provenance(command: str) -> dict[str, Any]:
    """The command of a run, the current time and the versions of what computes a result."""
    return {
        "command": command,
        "finished": datetime.datetime.now().astimezone().isoformat(" ", "seconds"),
        "versions": versions(),
    }


def versions() -> dict[str, str]:
    """The versions of what computes a result."""
    return {
        "twml_ops": twml_ops.__version__,
        "tensorflow": tf.__version__,
        "keras": _keras.VERSION,
        "python": platform.python_version(),
    }
