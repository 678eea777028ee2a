"""Checks that the products of the next batch can be computed before the current update."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

_READS = ("ReadVariableOp", "ResourceGather", "VariableShape")


def variables_read_by(tensors: list[tf.Tensor]) -> list[tf.Tensor]:
    """Finds the variables that tensors of a graph depend on.

    Args:
        tensors: The entries of which products are prefetched.

    Returns:
        The handles of the variables.

    Raises:
        ValueError: The tensors depend on an op that has another state than variables.
    """
    visited, ops, handles = set(), [t.op for t in tensors], []
    while ops:
        op = ops.pop()
        if op in visited:
            continue
        visited.add(op)
        op_handles = [t for t in op.inputs if t.dtype == tf.resource]
        if (op_handles and op.type not in _READS) or (
            not op_handles and op.type != "Placeholder" and op.op_def.is_stateful
        ):
            raise _state_error(op)
        handles += op_handles
        ops += [t.op for t in op.inputs if t.dtype != tf.resource]
    return handles


def check_only_read(handles: list[tf.Tensor]) -> None:
    """Checks that a step does not write the variables that prefetched entries depend on.

    Args:
        handles: What `variables_read_by` has returned, in the finished graph of the step.

    Raises:
        ValueError: An op of the graph writes one of the variables.
    """
    for op in (op for handle in handles for op in handle.consumers()):
        if op.type not in _READS:
            raise _state_error(op)


def _state_error(op: Any) -> ValueError:
    return ValueError(
        "pipeline=True needs a model in which no layer before a table has state that training "
        f"changes, got entries that depend on {op.name} ({op.type}); the products of a batch are "
        "computed before the update of the previous batch"
    )
