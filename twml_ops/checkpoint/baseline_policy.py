"""Decides when a checkpoint of changed rows pays, and on which earlier one it is based.

The policies have the names that Check-N-Run gives them (Eisenman et al., NSDI 2022, "Check-N-Run: a
Checkpointing System for Training Deep Learning Recommendation Models"). A baseline has all rows.
"""

from __future__ import annotations

from typing import Literal, get_args

Policy = Literal["full", "one-shot", "consecutive", "intermittent"]
"""The part of the rows of tables that a checkpoint has.

"full": all rows. "one-shot": the rows that changed since the first checkpoint, which is a baseline.
"consecutive": the rows that changed since the checkpoint before. "intermittent": the rows that
changed since the last baseline, with a new baseline when that is predicted to write fewer bytes.
"""


def check_policy(policy: str) -> None:
    """Checks the name of a policy.

    Args:
        policy: the name.

    Raises:
        ValueError: there is no such policy.
    """
    if policy not in get_args(Policy):
        raise ValueError(f"policy must be one of {', '.join(get_args(Policy))}, got {policy!r}")


def baseline_pays(baseline_bytes: int, changed_bytes: list[int]) -> bool:
    """Whether the next checkpoint of the intermittent policy should be a baseline.

    The rule of this package, after the idea of Check-N-Run to predict sizes from those so far: with
    S_1, ..., S_i the sizes of the checkpoints since the baseline, as parts of its size, a new
    baseline and i checkpoints after it are predicted to cost F = 1 + S_1 + ... + S_i, as the last
    ones did, and i + 1 more checkpoints of the old one at least I = (i + 1) S_i, as they do not
    shrink. A baseline pays if F <= I.

    Args:
        baseline_bytes: size of the baseline.
        changed_bytes: sizes of the checkpoints since then, from the oldest to the newest.

    Returns:
        Whether it pays.
    """
    if not changed_bytes:
        return False
    return baseline_bytes + sum(changed_bytes) <= (len(changed_bytes) + 1) * changed_bytes[-1]
