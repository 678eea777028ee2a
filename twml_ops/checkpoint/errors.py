"""Errors of checkpoints that the user can correct."""

from __future__ import annotations


class CheckpointError(ValueError):
    """A checkpoint cannot be written, is damaged, or does not fit. The message says which file."""


class CheckpointDamaged(CheckpointError):
    """A complete checkpoint has changed since it was written, or its format is a later version."""
