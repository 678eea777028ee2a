"""Access to variables through their resource handles, in a way that the gradient tape sees.

This file and `_tensorflow_import.py` are the only ones that import private TensorFlow modules.
"""

from __future__ import annotations

import contextlib
import re
from typing import Any

import tensorflow as tf

from twml_ops.ops._library import library

try:
    from tensorflow.python.ops.resource_variable_ops import variable_accessed as _variable_accessed
except ImportError:  # In another place in this TensorFlow. A plain read is recorded as well.

    def _variable_accessed(variable: Any) -> None:
        variable.value()


def tf_variable(variable: Any) -> tf.Variable:
    """The `tf.Variable` behind a Keras 3 variable; any other argument is returned unchanged."""
    value = getattr(variable, "_value", None)
    return value if isinstance(value, tf.Variable) else variable


def has_kernel_for(variable: Any, *, as_table: bool = False) -> bool:
    """Whether the active ops have kernels for the device of `variable`.

    A variable of a version 1 graph may have no device yet; TensorFlow then places it where its ops
    run.

    Args:
        variable: A variable.
        as_table: Whether the op also runs on GPUs: products with a table, their
            gradients, and updates of it.
    """
    if not library.is_host_only or _device_type(variable) in (None, "CPU"):
        return True
    return as_table and library.is_on_gpu(device_of(variable))


def device_of(value: Any) -> str:
    """The device of a variable or a tensor, or an empty string."""
    return str(getattr(tf_variable(value), "device", None) or "")


def device_scope_of(value: Any) -> contextlib.AbstractContextManager[Any]:
    """The device scope for ops and variables that belong to a variable or tensor.

    Optimizers use it to place slots and updates next to their variables. It is the host's scope if
    the value is on the host and TensorFlow would place the new ops elsewhere.
    """
    if library.is_host_only and _device_type(value) == "CPU":
        return library.on_host()
    return contextlib.nullcontext()


def _device_type(value: Any) -> str | None:
    return tf.DeviceSpec.from_string(device_of(value)).device_type


def table_handle(variable: Any, *, as_table: bool = False) -> tf.Tensor:
    """Records a read of `variable` on the tape and returns its resource handle.

    Args:
        variable: The variable.
        as_table: See `has_kernel_for`.

    Raises:
        ValueError: The active ops have no kernels for the variable's device.
    """
    table = tf_variable(variable)
    _variable_accessed(table)
    # Outside of the replicas, as while a model is built in a strategy's scope, use any replica.
    if tf.distribute.in_cross_replica_context() and hasattr(table, "values"):
        table = table.values[0]
    if not has_kernel_for(table, as_table=as_table):
        name = getattr(variable, "path", table.name)  # a tf.Variable has no path
        why = library.cuda.problem() if as_table else None
        raise ValueError(
            f"variable {name!r} must be on the host, since this op has kernels for CPUs only"
            + (f" ({why})" if why else "")
            + f", got device {table.device}; create or load it under tf.device('CPU:0')"
        )
    return table.handle


def in_same_control_flow(op: tf.Operation) -> bool:
    """Whether an op created now is in the same branch or loop body as `op`, in the same graph.

    Version 1 conditions and loops are parts of a graph that only TensorFlow's control flow contexts
    tell apart.
    """
    now = getattr(tf.compat.v1.get_default_graph(), "_get_control_flow_context", None)
    of_op = getattr(op, "_get_control_flow_context", None)
    return now is None or of_op is None or now() is of_op()


def in_version_1_control_flow(graph: tf.Graph) -> bool:
    """Whether an op created now would be in a version 1 condition or loop of the graph."""
    context = getattr(graph, "_get_control_flow_context", None)
    return context is not None and context() is not None


# The ops of TensorFlow and of this package that write to a variable.
_WRITES = re.compile(
    r"Assign(Add|Sub)?VariableOp|Resource(Scatter|Sparse|Apply|StridedSliceAssign)\w*"
    r"|Twml>(ApplyRows|SparseLinearBackwardApply)"
)


def check_not_written_since(output: tf.Tensor, handle: tf.Tensor) -> None:
    """Checks that a gradient reads a variable in the state in which `output` was computed.

    Only updates that are traced into the same `tf.function` are found. In eager mode, and across
    functions, nothing records that a variable has changed.

    Raises:
        ValueError: The variable of `handle` is updated between `output` and its gradient.
    """
    if tf.executing_eagerly():
        return
    graph = tf.compat.v1.get_default_graph()
    if not graph.building_function:  # a version 1 graph does not run in the order of calls
        return
    if any(getattr(tensor, "graph", None) is not graph for tensor in (output, handle)):
        return
    writes = [op for op in handle.consumers() if _WRITES.fullmatch(op.type)]
    if not writes:
        return
    order = {op.name: i for i, op in enumerate(graph.get_operations())}
    late = [op for op in writes if order[op.name] > order[output.op.name]]
    if late:
        raise ValueError(
            "the gradient of a sparse product by its values reads the table, so it must be "
            "computed before the table is updated: expected no update between the product "
            f"{output.op.name!r} and its gradient, got {late[0].type} {late[0].name!r}"
        )
