"""The averages of the trained weights of a run, on the servers that have the weights."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from twml_ops.distribute.parameter_server.rows_in_files import PartInFile
from twml_ops.distribute.parameter_server.state import RunState
from twml_ops.distribute.parameter_server.tables import RemoteVariable
from twml_ops.ops._tape import tf_variable


class WeightAverages:
    """Averages of snapshots of the weights that a run trains (Izmailov et al., "Averaging Weights
    Leads to Wider Optima and Better Generalization", UAI 2018).

    Only the chief calls this. The average of a shard is on its server and takes 4 bytes a weight.
    Checkpoints contain averages that are begun.

    Args:
        state: The shared state of the run, whose tables have shards.

    Attributes:
        count: The number of snapshots, an int64 variable.
        tables: The average of each shard of each table.
        dense: The averages of dense weights by the number of the weight in
            `RunState.dense_weights`.
    """

    def __init__(self, state: RunState) -> None:
        self.count = state.snapshots
        self.tables = [[_mean(shard) for shard in table.shards] for table in state.tables]
        self.dense: dict[int, Any] = {}
        self._pairs: list[tuple[Any, Any]] = []  # (weight, its average)
        for table, means in zip(state.tables, self.tables, strict=True):
            self._pairs += zip(table.shards, means, strict=True)
        trained = {id(v) for v in state.trained}
        shared = {id(s.local): s.remote for s in state.remote_weights}
        for i, v in enumerate(state.dense_weights):
            if id(v) in trained:
                weight = shared.get(id(v), tf_variable(v))
                self.dense[i] = _mean(weight)
                self._pairs.append((weight, self.dense[i]))

    def take(self) -> None:
        """Adds a snapshot of the current weights to the average.

        Raises:
            ValueError: Rows of a table are in files: the average would need the memory of all.
        """
        for weight, _ in self._pairs:
            if isinstance(weight, PartInFile):
                raise ValueError(
                    f"weights are averaged in memory, expected {weight.name} in memory, got rows "
                    "in files"
                )
        count = int(self.count.numpy()) + 1
        for weight, mean in self._pairs:
            with tf.device(weight.device):
                value = tf.cast(_value(weight), tf.float32)
                if count == 1:
                    tf.raw_ops.AssignVariableOp(resource=mean.handle, value=value)
                else:
                    change = (value - _value(mean)) / tf.constant(count, tf.float32)
                    tf.raw_ops.AssignAddVariableOp(resource=mean.handle, value=change)
        self._wait()
        self.count.assign(tf.constant(count, tf.int64))

    def use(self) -> None:
        """Puts the average into the weights, if there is one, and begins a new one."""
        if not int(self.count.numpy()):
            return
        for weight, mean in self._pairs:
            with tf.device(weight.device):
                value = tf.cast(_value(mean), weight.dtype)
                tf.raw_ops.AssignVariableOp(resource=weight.handle, value=value)
        self._wait()
        self.count.assign(tf.constant(0, tf.int64))

    def variables(self) -> list[RemoteVariable]:
        """The averages on servers.

        Returns:
            The variables.
        """
        return [mean for _, mean in self._pairs if isinstance(mean, RemoteVariable)]

    def _wait(self) -> None:
        """Waits for the servers, which run eager ops without outputs later."""
        for pair in self._pairs:
            for variable in pair:
                if isinstance(variable, RemoteVariable):
                    variable.wait()


def _mean(weight: Any) -> Any:
    """A variable beside a weight, on the same device."""
    if isinstance(weight, RemoteVariable):
        return RemoteVariable(f"{weight.name}/mean", weight.shape, tf.float32, weight.device)
    with tf.device(weight.device):
        return tf.Variable(tf.zeros(weight.shape), trainable=False)


def _value(variable: Any) -> tf.Tensor:
    return variable.value() if isinstance(variable, RemoteVariable) else variable.read_value()
