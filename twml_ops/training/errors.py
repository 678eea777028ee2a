"""Errors of a training that its user can correct."""

from __future__ import annotations


class UserError(Exception):
    """An error that the user can correct. Its message is the line that is printed."""


class RunInterrupted(UserError):
    """A signal has ended a run.

    Args:
        message: when.
        can_continue: whether enough is kept to continue the run.
    """

    def __init__(self, message: str, can_continue: bool = False) -> None:
        super().__init__(message)
        self.can_continue = can_continue
