"""The content of run.json."""

from __future__ import annotations

import dataclasses
import datetime
import platform
import shlex
import sys
from typing import Any

import tensorflow as tf

import twml_ops
from twml_ops import _keras
from twml_ops.cli.runs.config import RunConfig
from twml_ops.cli.runs.folder import FORMAT, FORMAT_KEY
from twml_ops.data import Source


def training_facts(
    config: RunConfig, train: Source, held_out: Source, sizes: tuple[int, int], weights: int
) -> dict[str, Any]:
    """The content of run.json for a training run: what is needed to repeat and to reopen it.

    Args:
        config: configuration of the run.
        train: training data.
        held_out: evaluation data.
        sizes: number of examples of each of them.
        weights: number of weights of the model.
    """
    return {
        FORMAT_KEY: FORMAT,
        **config.to_json(),
        "train_source": train.name,
        "eval_source": held_out.name,
        "train_examples": sizes[0],
        "eval_examples": sizes[1],
        "weights": weights,
        "schema": dataclasses.asdict(train.schema),
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
