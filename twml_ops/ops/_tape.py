"""Reading a table through its resource handle without hiding it from the gradient tape.

The one file of this package that imports a private TensorFlow module.
"""

from __future__ import annotations

import contextlib
import re
from typing import Any

import tensorflow as tf

from twml_ops.ops._library import library

try:
    from tensorflow.python.ops.resource_variable_ops import variable_accessed as _variable_accessed
except ImportError:  # A TensorFlow that moved it: a plain read marks the variable too.

    def _variable_accessed(variable: Any) -> None:
        variable.value()


def tf_variable(variable: Any) -> tf.Variable:
    """The tf.Variable behind a Keras 3 variable; any other variable as it is."""
    value = getattr(variable, "_value", None)
    return value if isinstance(value, tf.Variable) else variable


def has_kernel_for(variable: Any) -> bool:
    """Whether the ops in force have kernels for the device that `variable` is on.

    A graph of version 1 need not say which that is, and puts it where its ops can be.
    """
    return not library.is_host_only or _device_type(variable) in (None, "CPU")


def device_scope_of(value: Any) -> contextlib.AbstractContextManager[Any]:
    """The device scope of what is computed from a variable or a tensor and should stay with it.

    An optimizer's slots and updates are with their variables. It is the host's scope where the
    value is known to be there and would not stay by itself.
    """
    if library.is_host_only and _device_type(value) == "CPU":
        return library.on_host()
    return contextlib.nullcontext()


def _device_type(value: Any) -> str | None:
    device = getattr(tf_variable(value), "device", None) or ""
    return tf.DeviceSpec.from_string(device).device_type


def table_handle(variable: Any) -> tf.Tensor:
    """The resource handle of `variable`, which the tape is told was read.

    Raises:
        ValueError: the ops in force have no kernels for its device.
    """
    table = tf_variable(variable)
    _variable_accessed(table)
    # Outside the replicas (a model being built in a strategy's scope) any replica will do.
    if tf.distribute.in_cross_replica_context() and hasattr(table, "values"):
        table = table.values[0]
    if not has_kernel_for(table):
        name = getattr(variable, "path", table.name)  # a tf.Variable has no path
        raise ValueError(
            f"the variable {name!r} must be on the host, as this op has kernels for CPUs "
            f"only, got the device {table.device}; create or load it under tf.device('CPU:0')"
        )
    return table.handle


def in_same_control_flow(op: tf.Operation) -> bool:
    """Whether an op made now is in the same branch or loop body as `op`, of the same graph.

    Conditions and loops of version 1 are parts of a graph that only TensorFlow itself tells apart.
    """
    now = getattr(tf.compat.v1.get_default_graph(), "_get_control_flow_context", None)
    of_op = getattr(op, "_get_control_flow_context", None)
    return now is None or of_op is None or now() is of_op()


# The ops that change a variable, of TensorFlow and of this package.
_WRITES = re.compile(
    r"Assign(Add|Sub)?VariableOp|Resource(Scatter|Sparse|Apply|StridedSliceAssign)\w*"
    r"|Twml>(ApplyRows|SparseLinearBackwardApply)"
)


def check_not_written_since(output: tf.Tensor, handle: tf.Tensor) -> None:
    """Refuses a gradient that would read a variable in another state than `output` was made in.

    It sees updates between both that are traced into the same `tf.function`. In eager mode, and
    across functions, nothing tells that a variable has changed.

    Raises:
        ValueError: the variable of `handle` is updated in between.
    """
    if tf.executing_eagerly():
        return
    graph = tf.compat.v1.get_default_graph()
    if not graph.building_function:  # in a graph of version 1 the order of calls means nothing
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
            "the gradient of a sparse product by its values reads the table when it is computed, "
            "so it must be computed before the table is updated; expected no update between the "
            f"product {output.op.name!r} and its gradient, got {late[0].type} {late[0].name!r}"
        )
