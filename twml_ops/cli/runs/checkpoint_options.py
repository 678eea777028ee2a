"""The options of `twml-ops train` for checkpoints."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

from twml_ops.cli.errors import UserError

_EVERY = re.compile(r"(\d+)([sm]?)")


@dataclasses.dataclass(frozen=True)
class CheckpointOptions:
    """When a run in one process writes checkpoints, and whether it continues from one.

    Attributes:
        steps: between two checkpoints; None: it does not depend on the steps.
        seconds: between two checkpoints; None: it does not depend on the time.
        keep: how many are kept.
        resume: whether to continue from the last one.
        publish: folder in which each checkpoint becomes a version of a scorer; None: there is none.
    """

    steps: int | None = None
    seconds: float | None = 600.0
    keep: int = 2
    resume: bool = False
    publish: Path | None = None


NO_CHECKPOINTS = CheckpointOptions(seconds=None)


def checkpoint_options(
    every: str,
    keep: int,
    resume: bool,
    given: dict[str, Any],
    in_cluster: bool,
    publish: Path | None = None,
) -> CheckpointOptions:
    """The options of the command line.

    Args:
        every: N steps, Ns seconds or Nm minutes; "0" for none.
        keep: how many are kept.
        resume: whether to continue from the last one.
        given: options of the command line that the user gave. `checkpoint_every` becomes the number
            of steps, the option of a cluster, or is removed if there is no cluster.
        in_cluster: whether `TF_CONFIG` describes a cluster.
        publish: folder for versions of a scorer.

    Raises:
        UserError: `every` has another form, or is no number of steps in a cluster; or versions are
            to be published in a cluster or without checkpoints.
    """
    match = _EVERY.fullmatch(every)
    if match is None:
        raise UserError(
            "--checkpoint-every: expected steps, such as 1000, seconds, such as 30s, or minutes, "
            f"such as 10m, got {every!r}"
        )
    number, unit = int(match.group(1)), match.group(2)
    if publish is not None and (in_cluster or not number):
        where = "in a cluster" if in_cluster else "without checkpoints"
        raise UserError(f"--publish: versions cannot be published {where}")
    if given.pop("checkpoint_every", None) is not None and in_cluster:
        if unit or not number:
            raise UserError(f"--checkpoint-every: a cluster counts steps, got {every!r}")
        given["checkpoint_every"] = number
    if not unit:
        return CheckpointOptions(number or None, None, keep, resume, publish)
    seconds = number * (60.0 if unit == "m" else 1.0)
    return CheckpointOptions(None, seconds or None, keep, resume, publish)
