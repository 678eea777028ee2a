"""Compiles a model's training step for a TPU or a GPU that is not there, and estimates its cost."""

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
    """The memory of one embedding table.

    Attributes:
        name: "layer", or "layer/variable" if the layer has several tables.
        rows: N, the number of rows.
        units: D, the number of columns.
        bytes: Size of the table and the optimizer's slots, in bytes.
        share: Size of one device's part in bytes if the rows were sharded over all devices of the
            slice.
    """

    name: str
    rows: int
    units: int
    bytes: int
    share: int


@dataclasses.dataclass(frozen=True)
class CompileReport:
    """The result of `check`.

    The estimate of time is that of the roofline model (Williams, Waterman and Patterson, 2009).

    Attributes:
        chip: The chip that the model was compiled for.
        topology: The topology of the slice, in chips, such as "2x2".
        problem: What does not compile, and where; None if the step compiles.
        compiled: The compiler's figures; None if the step does not compile.
        tables: The tables of the model.
    """

    chip: chips.Chip
    topology: str
    problem: step.CompileProblem | None
    compiled: Compiled | None
    tables: list[TableMemory]

    @property
    def fits(self) -> bool:
        """Whether the step fits into the memory of a device that has all tables."""
        return self.compiled is not None and self.compiled.memory <= self.chip.hbm

    @property
    def in_place(self) -> bool:
        """Whether the step updates the tables in their own memory, without a copy."""
        tables = sum(table.bytes for table in self.tables)
        return self.compiled is not None and self.compiled.aliased >= tables

    @property
    def compute_seconds(self) -> float:
        """Time of the step's operations at the chip's peak, in seconds."""
        return self.compiled.flops / self.chip.flops if self.compiled else 0.0

    @property
    def memory_seconds(self) -> float:
        """Time of the step's memory traffic at the chip's bandwidth, in seconds."""
        return self.compiled.bytes / self.chip.bandwidth if self.compiled else 0.0

    @property
    def seconds(self) -> float:
        """Estimate of the step's time in seconds: the longer of both times."""
        return max(self.compute_seconds, self.memory_seconds)

    @property
    def seconds_are_lower_bound(self) -> bool:
        """Whether a step cannot take less than `seconds`.

        For an absent GPU, XLA counts operations and bytes before it fuses operations, so that a
        step may take less.
        """
        return self.chip.gpu is None


def check(
    model: Any,
    chip: str = "v5e",
    *,
    batch_size: int = 1024,
    max_entries: int = 32,
    topology: str | None = None,
) -> CompileReport:
    """Compiles the training step of a model with XLA, without a TPU or GPU.

    Args:
        model: A functional model with dense, padded or ragged inputs; ragged inputs get padded
            batches. If it is not compiled, this compiles it with Adagrad and binary cross-entropy.
        chip: The name of a chip in `CHIPS` or `GPUS`.
        batch_size: Examples per device and step.
        max_entries: Entries of an example, in inputs whose width is unknown.
        topology: The topology of the slice of TPUs, in chips, such as "4x4"; None: one host, or
            one GPU.

    Returns:
        What does not compile, or the compiler's figures.

    Raises:
        ValueError: There is no chip of that name, or the model's inputs are unknown or sparse.
        ImportError: The packages of the extra `twml_ops[tpu]` or `twml_ops[gpu-check]` are not
            installed.
    """
    target = chips.get_chip(chip)
    shape = topology or target.topology
    batch = step.zero_batch(model, batch_size, max_entries)
    problem = compiled = None
    try:
        with tf.device("CPU"):
            step.prepare_model(model)
            hlo = step.lower_to_hlo(step.training_step(model), model, batch)
        if target.gpu is None:
            compiled = compile_for(hlo, f"{target.name}:{shape}")
        else:
            compiled = compile_for(hlo, shape, chips.gpu_target_config(target))
    except step.NotCompilableError as e:
        problem = e.problem
    except CompileError as e:
        layer = step.find_layer([str(e)], _keras.all_layers(model))
        problem = step.CompileProblem(layer, str(e))
    return CompileReport(target, shape, problem, compiled, tables(model, compiled))


def tables(model: Any, compiled: Compiled | None = None) -> list[TableMemory]:
    """Returns the memory of a model's tables, the variables with a row for each id.

    Args:
        model: The model, compiled or not.
        compiled: The compiler's figures, which say how many devices there are; None: one.

    Returns:
        One entry for each table.
    """
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
