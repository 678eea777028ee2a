"""Errors of a training that its user can correct."""

from __future__ import annotations


class UserError(Exception):
    """An error that the user can correct. Its message is the line that is printed."""


class RunInterrupted(UserError):
    """A signal has ended a run that can be continued. Its message says how."""
