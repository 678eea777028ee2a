"""What a training is. It knows neither the command line nor the console.

`train` is the function that `twml-ops train` calls. The other modules are what it consists of.
Importing this package does not import TensorFlow.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from twml_ops.training.config import ClusterOptions, RunConfig
from twml_ops.training.errors import RunInterrupted, UserError
from twml_ops.training.reporter import SILENT, Reporter

if TYPE_CHECKING:
    from twml_ops.data import Source
    from twml_ops.training.checkpoints import RunCheckpoints
    from twml_ops.training.results import RunResult

__all__ = ["ClusterOptions", "Reporter", "RunConfig", "RunInterrupted", "UserError", "train"]


def train(
    config: RunConfig,
    data: Source | None = None,
    eval: Source | None = None,
    *,
    reporter: Reporter = SILENT,
    logs: Path | None = None,
    checkpoints: RunCheckpoints | None = None,
) -> RunResult:
    """Trains and evaluates a model in this process.

    Trainings in several threads wait for each other, because seeds belong to the whole process.

    Args:
        config: what is trained, and how. Its defaults are the defaults of `twml-ops train`.
        data: training data; None: `config.data` is opened.
        eval: evaluation data, if `data` are given; None: a part of `data` is held out.
        reporter: is told what happens; by default nobody is.
        logs: folder for the TensorBoard logs; None: none are written.
        checkpoints: when and where checkpoints are written; None: none are.

    Returns:
        The trained model, its metrics, and how they came about.

    Raises:
        UserError: the configuration is invalid, or the loss became NaN.
        ValueError: the model is unknown, or data cannot be read.
    """
    from twml_ops.training import run
    from twml_ops.training.one_at_a_time import one_at_a_time

    with one_at_a_time():
        return run.train(config, data, eval, reporter=reporter, logs=logs, checkpoints=checkpoints)
