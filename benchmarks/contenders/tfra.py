"""TensorFlow Recommenders Addons (TFRA), in a process with the TensorFlow version that it needs.

A call sends the index of a batch and receives the output, which takes less than a millisecond.
"""

from __future__ import annotations

import os
import subprocess
from functools import partial
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

from benchmarks.contender import FORWARD, NotAvailable, Prepare, PreparedContender
from benchmarks.workload import Case

ROOT = Path(__file__).parents[2]
PYTHON = Path(os.environ.get("TWML_OPS_TFRA_PYTHON", ROOT / ".venv/tfra/bin/python"))


def _start(rule: str, case: Case) -> PreparedContender:
    if not PYTHON.exists():
        raise NotAvailable("TFRA is not installed: `make .venv/tfra/.installed`")
    channel, child_end = Pipe()
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "TF_USE_LEGACY_KERAS": "1",
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }
    number = child_end.fileno()
    command = [PYTHON, "-m", "benchmarks.tfra_process", rule, str(number)]
    quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with child_end:
        child = subprocess.Popen(command, env=environment, pass_fds=[number], **quiet)
    try:
        channel.send(case)
        error = channel.recv()
    except (EOFError, OSError):
        error = f"its process exited with status {child.wait()}"
    if error:
        raise NotAvailable(error)

    def request(batch: int | None) -> Any:
        channel.send(batch)
        return channel.recv()

    return PreparedContender(request, partial(request, None))


def no_rowwise_adagrad(case: Case) -> PreparedContender:
    """TFRA does not offer it."""
    raise NotAvailable("TFRA has no row-wise Adagrad")


CONTENDERS: dict[str, dict[str, Prepare]] = {
    FORWARD: {"TFRA lookup, segment_sum": partial(_start, "")},
    "sgd": {"TFRA + legacy Keras SGD": partial(_start, "sgd")},
    "adagrad": {"TFRA + legacy Keras Adagrad": partial(_start, "adagrad")},
    "rowwise_adagrad": {"TFRA": no_rowwise_adagrad},
    "lazy_adam": {"TFRA + legacy Keras Adam": partial(_start, "lazy_adam")},
}
