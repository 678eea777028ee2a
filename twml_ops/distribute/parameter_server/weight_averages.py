"""The averages of the trained weights of a run, on the servers that have the weights."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from twml_ops.distribute.parameter_server.state import RunState
from twml_ops.distribute.parameter_server.tables import RemoteVariable
from twml_ops.ops._tape import tf_variable


class WeightAverages:
    """Averages of snapshots of the weights that a run trains (Izmailov et al., "Averaging Weights
    Leads to Wider Optima and Better Generalization", UAI 2018).

    Only the chief calls this. The average of a shard is on its server and takes 4 bytes a weight.
    It is not part of checkpoints: a run that is restored from one begins a new average.

    Args:
        state: The shared state of the run, which is joined.
    """

    def __init__(self, state: RunState) -> None:
        self._count = state.snapshots
        shared = {id(s.local): s.remote for s in state.shared_variables}
        self._pairs: list[tuple[Any, Any]] = []  # (weight, its average)
        for table in state.tables:
            for shard in table.shards:
                mean = RemoteVariable(f"{shard.name}/mean", shard.shape, tf.float32, shard.device)
                self._pairs.append((shard, mean))
        for v in state.trained:
            remote = shared.get(id(v))
            if remote is None:  # of the only worker, which has the average as well
                self._pairs.append((tf_variable(v), None))
                continue
            name = f"{remote.name}/mean"
            mean = RemoteVariable(name, remote.shape, tf.float32, remote.device)
            self._pairs.append((remote, mean))

    def take(self) -> None:
        """Adds a snapshot of the current weights to the average."""
        count = int(self._count.numpy()) + 1
        for i, (weight, mean) in enumerate(self._pairs):
            if isinstance(weight, RemoteVariable):
                with tf.device(weight.device):
                    value = tf.cast(weight.value(), tf.float32)
                    if count == 1:
                        tf.raw_ops.AssignVariableOp(resource=mean.handle, value=value)
                    else:
                        change = (value - mean.value()) / tf.constant(count, tf.float32)
                        tf.raw_ops.AssignAddVariableOp(resource=mean.handle, value=change)
            else:  # a dense weight of the only worker
                value = tf.cast(weight.read_value(), tf.float32)
                if mean is None:
                    self._pairs[i] = weight, tf.Variable(value, trainable=False)
                elif count == 1:
                    mean.assign(value)
                else:
                    mean.assign_add((value - mean) / count)
        self._wait()
        self._count.assign(tf.constant(count, tf.int64))

    def use(self) -> None:
        """Puts the average into the weights, if there is one, and begins a new one."""
        if not int(self._count.numpy()):
            return
        for weight, mean in self._pairs:
            if isinstance(weight, RemoteVariable):
                with tf.device(weight.device):
                    value = tf.cast(mean.value(), weight.dtype)
                    tf.raw_ops.AssignVariableOp(resource=weight.handle, value=value)
            elif mean is not None:
                weight.assign(tf.cast(mean, weight.dtype))
        self._wait()
        self._count.assign(tf.constant(0, tf.int64))

    def variables(self) -> list[RemoteVariable]:
        """The averages on servers.

        Returns:
            The variables.
        """
        return [mean for _, mean in self._pairs if isinstance(mean, RemoteVariable)]

    def _wait(self) -> None:
        """Waits for the servers, which run eager ops without outputs later."""
        for weight, _ in self._pairs:
            if isinstance(weight, RemoteVariable):
                weight.wait()
