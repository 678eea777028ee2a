"""Reading a table through its resource handle without hiding it from the gradient tape.

The one file of this package that imports a private TensorFlow module.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

try:
    from tensorflow.python.ops.resource_variable_ops import variable_accessed as _variable_accessed
except ImportError:  # A TensorFlow that moved it: a plain read marks the variable too.

    def _variable_accessed(variable: Any) -> None:
        variable.value()


def tf_variable(variable: Any) -> tf.Variable:
    """The tf.Variable behind a Keras 3 variable; any other variable as it is."""
    value = getattr(variable, "_value", None)
    return value if isinstance(value, tf.Variable) else variable


def table_handle(variable: Any) -> tf.Tensor:
    """The resource handle of `variable`, which the tape is told was read."""
    table = tf_variable(variable)
    _variable_accessed(table)
    # Outside the replicas (a model being built in a strategy's scope) any replica will do.
    if tf.distribute.in_cross_replica_context() and hasattr(table, "values"):
        table = table.values[0]
    return table.handle
