"""The content of run.json."""

from __future__ import annotations

import dataclasses
import datetime
import platform
import shlex
import sys
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

import twml_ops
from twml_ops import _keras
from twml_ops.cli.results.epoch_choice import EpochChoice
from twml_ops.cli.results.history import History
from twml_ops.cli.results.member import Member
from twml_ops.cli.results.model_choice import ModelChoice
from twml_ops.cli.runs import tiered_tables
from twml_ops.cli.runs.config import RunConfig
from twml_ops.cli.runs.folder import FORMAT, FORMAT_KEY
from twml_ops.cli.runs.sources import Holdout
from twml_ops.data import Schema


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
    differs: str | None = None,
    holdout: Holdout | None = None,
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
        differs: what one process would train with the same command; None: the same.
        holdout: how the evaluation data were held out of the data; None: they were given.
    """
    return {
        FORMAT_KEY: FORMAT,
        **config.to_json(),
        "holdout": holdout,
        "train_source": train[0],
        "eval_source": evaluation[0],
        "train_examples": train[1],
        "eval_examples": evaluation[1],
        "weights": tiered_tables.num_weights(model),
        "trained_epochs": epoch_choice.epochs if epoch_choice else config.fixed_epochs,
        "epoch_choice": epoch_choice and epoch_choice.facts(),
        "model_choice": model_choice and model_choice.facts(),
        "leaks": leaks,
        "differs": differs,
        "parsed_bytes": history.parsed_bytes or None,
        "data_bytes": history.data_bytes or None,
        "speeds": history.speeds and history.speeds._asdict(),
        "members": [m._asdict() for m in members] if len(members) > 1 else None,
        "schema": dataclasses.asdict(schema),
        **provenance(),
    }


def provenance() -> dict[str, Any]:
    """The command of this process, the current time and the versions of what computes a result."""
    return {
        "command": shlex.join(["twml-ops", *sys.argv[1:]]),
        "finished": datetime.datetime.now().astimezone().isoformat(" ", "seconds"),
        "versions": {
            "twml_ops": twml_ops.__version__,
            "tensorflow": tf.__version__,
            "keras": _keras.VERSION,
            "python": platform.python_version(),
        },
    }
