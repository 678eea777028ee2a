"""Checkpoints of training: complete, atomic, written in the background, and found by checksum."""

from twml_ops.checkpoint.callback import CheckpointCallback
from twml_ops.checkpoint.callback_state import State, Stateful
from twml_ops.checkpoint.errors import CheckpointDamaged, CheckpointError
from twml_ops.checkpoint.facts import check_facts
from twml_ops.checkpoint.incremental import TablePolicy
from twml_ops.checkpoint.interrupt import Interrupt, TrainingInterrupted, deferred_interrupt
from twml_ops.checkpoint.maintenance import compact, prune
from twml_ops.checkpoint.manager import CheckpointManager
from twml_ops.checkpoint.manifest import Manifest, VariableEntry
from twml_ops.checkpoint.reader import CheckpointReader
from twml_ops.checkpoint.restore import restore
from twml_ops.checkpoint.variables import NamedVariable, variables_of
from twml_ops.checkpoint.writer import CheckpointWriter

__all__ = [
    "CheckpointCallback",
    "CheckpointDamaged",
    "CheckpointError",
    "CheckpointManager",
    "CheckpointReader",
    "CheckpointWriter",
    "Interrupt",
    "Manifest",
    "NamedVariable",
    "State",
    "Stateful",
    "TablePolicy",
    "TrainingInterrupted",
    "VariableEntry",
    "check_facts",
    "compact",
    "deferred_interrupt",
    "prune",
    "restore",
    "variables_of",
]
