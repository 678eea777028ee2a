"""TensorFlow Recommenders Addons, in a process with the TensorFlow that it wants.

A call hands over a batch's number and takes the output: less than a millisecond of its time.
"""

from __future__ import annotations

import os
import subprocess
from functools import partial
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

from benchmarks.contender import FORWARD, NotOffered, Prepare, Running
from benchmarks.workload import Case

ROOT = Path(__file__).parents[2]
PYTHON = Path(os.environ.get("TWML_OPS_TFRA_PYTHON", ROOT / ".venv/tfra/bin/python"))


def _start(rule: str, case: Case) -> Running:
    if not PYTHON.exists():
        raise NotOffered("TFRA is not installed: `make .venv/tfra/.installed`")
    ours, its = Pipe()
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "TF_USE_LEGACY_KERAS": "1",
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }
    number = its.fileno()
    command = [PYTHON, "-m", "benchmarks.tfra_child", rule, str(number)]
    quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with its:
        child = subprocess.Popen(command, env=environment, pass_fds=[number], **quiet)
    try:
        ours.send(case)
        why = ours.recv()
    except (EOFError, OSError):
        why = f"its process ended with {child.wait()}"
    if why:
        raise NotOffered(why)

    def answer(request: Any) -> Any:
        ours.send(request)
        return ours.recv()

    return Running(answer, partial(answer, None))


def no_rowwise_adagrad(case: Case) -> Running:
    """There is none."""
    raise NotOffered("TFRA has no row-wise Adagrad")


CONTENDERS: dict[str, dict[str, Prepare]] = {
    FORWARD: {"TFRA lookup, segment_sum": partial(_start, "")},
    "sgd": {"TFRA + legacy Keras SGD": partial(_start, "sgd")},
    "adagrad": {"TFRA + legacy Keras Adagrad": partial(_start, "adagrad")},
    "rowwise_adagrad": {"TFRA": no_rowwise_adagrad},
    "lazy_adam": {"TFRA + legacy Keras Adam": partial(_start, "lazy_adam")},
}
