"""`twml-ops train` as a contender: each run is a process of its own, as a user starts it."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import typer

from benchmarks.quality.cpu_time import cpu_seconds
from benchmarks.quality.data_sets import DataSet

METRICS = ("auc", "log_loss", "calibration")


def is_command(contender: str) -> bool:
    """Whether a contender is `train` with options, and not the name of a peer."""
    return contender.split()[:1] == ["train"]


def is_available(contender: str) -> bool:
    """Whether `twml-ops train` of this checkout has the options and the model of a contender."""
    from twml_ops import models
    from twml_ops.cli.app import app

    words = shlex.split(contender)
    group: Any = typer.main.get_command(app)
    _, command, _ = group.resolve_command(group.make_context("twml-ops", ["info"]), ["train"])
    if not {w for w in words if w.startswith("--")} <= {o for p in command.params for o in p.opts}:
        return False
    if "--model" not in words:
        return True
    model = words[words.index("--model") + 1]
    return model in models.names() or f"{model!r}" in repr(command.params) or model == "auto"


def run(contender: str, data: DataSet, seed: int, threads: int) -> dict[str, Any]:
    """Trains and evaluates in a new process.

    Args:
        contender: `train`, with options.
        data: the data set.
        seed: the seed of the run.
        threads: number of threads of TensorFlow.

    Returns:
        The metrics of the test data, and `cpu_seconds`, the CPU time of the process.

    Raises:
        subprocess.CalledProcessError: the command failed; its output was printed.
    """
    environment = {
        **os.environ,
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "TF_NUM_INTRAOP_THREADS": str(threads),
        "TF_NUM_INTEROP_THREADS": str(threads),
    }
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        command = [sys.executable, "-m", "twml_ops.cli", *shlex.split(contender)]
        command += ["--data", data.source, "--out", str(out), "--seed", str(seed)]
        if data.evaluation is not None:
            command += ["--eval", data.evaluation]
        start = cpu_seconds()
        _checked(command, environment)
        seconds = cpu_seconds() - start
        metrics: Mapping[str, float] = json.loads((out / "metrics.json").read_text())
    return {**{name: metrics[name] for name in METRICS}, "cpu_seconds": seconds}


def _checked(command: list[str], environment: Mapping[str, str]) -> None:
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        print(done.stdout[-4000:], done.stderr[-4000:], file=sys.stderr)
    done.check_returncode()
