"""Whether a model's training step compiles for a TPU, and what it would cost there."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import tensorflow as tf

from twml_ops import _keras
from twml_ops.tpu import chips, step
from twml_ops.tpu.compile_subprocess import Compiled, CompileError, compile_for


@dataclasses.dataclass(frozen=True)
class TableMemory:
    """An embedding table, with its slots.

    Attributes:
        name: its layer's, and its own where a layer has several.
        rows: N.
        units: D.
        bytes: of all rows and what the optimizer keeps of them.
        share: bytes of a device's part, were the rows divided among all of a slice.
    """

    name: str
    rows: int
    units: int
    bytes: int
    share: int


@dataclasses.dataclass(frozen=True)
class CompileReport:
    """What `check` found.

    Attributes:
        chip: compiled for.
        topology: of the slice.
        problem: what does not compile, and where; None if all does.
        compiled: the compiler's figures; None if it did not compile.
        tables: the model's.
    """

    chip: chips.Chip
    topology: str
    problem: step.CompileProblem | None
    compiled: Compiled | None
    tables: list[TableMemory]

    @property
    def fits(self) -> bool:
        """Whether what one device needs is in its memory, every device having all tables."""
        return self.compiled is not None and self.compiled.memory <= self.chip.hbm

    @property
    def compute_seconds(self) -> float:
        """Of the operations at the chip's peak; 0 if it did not compile."""
        return self.compiled.flops / self.chip.flops if self.compiled else 0.0

    @property
    def memory_seconds(self) -> float:
        """Of the bytes at the chip's bandwidth; 0 if it did not compile."""
        return self.compiled.bytes / self.chip.bandwidth if self.compiled else 0.0

    @property
    def seconds(self) -> float:
        """An estimate of the step: the longer of both (the "roofline"), so a lower bound."""
        return max(self.compute_seconds, self.memory_seconds)


def check(
    model: Any,
    chip: str = "v5e",
    *,
    batch_size: int = 1024,
    max_entries: int = 32,
    topology: str | None = None,
) -> CompileReport:
    """Compiles the training step of `model` with the TPU compiler, without a TPU.

    Args:
        model: a functional model of dense, padded or ragged inputs, compiled or not (then with
            Adagrad and binary cross-entropy); ragged inputs get padded batches.
        chip: a name of `chips.CHIPS`.
        batch_size: examples of a device in a step.
        max_entries: entries of a row in inputs of unknown width.
        topology: of the slice, in chips, as in "4x4"; None: one host.

    Raises:
        ValueError: an unknown chip, or a model without known inputs.
        ImportError: the extra `twml_ops[tpu]` is not installed.
    """
    target = chips.get_chip(chip)
    shape = topology or target.topology
    batch = step.zero_batch(model, batch_size, max_entries)
    problem = compiled = None
    try:
        with tf.device("CPU"):
            step.prepare_model(model)
            hlo = step.lower_to_hlo(step.training_step(model), model, batch)
        compiled = compile_for(hlo, f"{target.name}:{shape}")
    except step.NotCompilableError as e:
        problem = e.problem
    except CompileError as e:
        layer = step.find_layer([str(e)], _keras.all_layers(model))
        problem = step.CompileProblem(layer, str(e))
    return CompileReport(target, shape, problem, compiled, tables(model, compiled))


def tables(model: Any, compiled: Compiled | None = None) -> list[TableMemory]:
    """The tables of `model`: variables with a row for each id of a layer's id space."""
    devices = compiled.devices if compiled else 1
    rule = getattr(model.optimizer, "update_rule", None)
    found = []
    for layer in _keras.all_layers(model):
        if not (hasattr(layer, "input_dim") or hasattr(layer, "tables")):
            continue
        big = [v for v in layer.weights if len(v.shape) == 2]
        for variable in big:
            rows, units = (int(size) for size in variable.shape)
            slots = rule.slots((rows, units), variable.dtype) if rule else []
            row = units * tf.as_dtype(variable.dtype).size
            row += sum(math.prod(s.shape[1:]) * s.dtype.size for s in slots)
            own = variable.name.rpartition("/")[2].partition(":")[0]
            name = layer.name if len(big) == 1 else f"{layer.name}/{own}"
            found.append(TableMemory(name, rows, units, rows * row, -(-rows // devices) * row))
    return found
