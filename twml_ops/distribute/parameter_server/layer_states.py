"""States of layers that batches change, such as moving means, in a step of several workers.

Each worker begins the step with the states on the servers, and its batch changes its own copies.
The states on the servers learn from the batches of all workers.

Synchronous followers send their copies with their gradients, and the leader joins them
(`LayerStates.join`):

- `MaxNorm` and `OnlineStandardize` know the state after the concatenated batch (`joined_state`).
- Other states, such as the moving mean and variance of `BatchNormalization`, change by the mean of
  the workers' changes, weighted by examples. For a moving mean this is the state after the
  concatenated batch. A moving variance gets the mean of the variances within the batches, as among
  replicas in Keras.

Asynchronous workers send what their batches add, with their gradients (`LayerStates.changes`). The
state on the server may have changed since the worker has read it:

- `MaxNorm` and `OnlineStandardize` add the batch to the state that is there (`state_with`), so the
  state is the one of a process that has seen the batches in the order of their updates.
- The change of any other state is added, as a gradient is.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from itertools import pairwise
from typing import Any, NamedTuple

import tensorflow as tf

from twml_ops import _keras
from twml_ops.distribute.parameter_server.exchange import SharedValues
from twml_ops.distribute.parameter_server.products import reads_only
from twml_ops.distribute.parameter_server.state import SharedVariable
from twml_ops.layers._feature_norm import FeatureNorm
from twml_ops.ops._tape import tf_variable


class StateChange(NamedTuple):
    """How a step changes a state on its server.

    Attributes:
        shared: The state.
        value: The new state, or what is added to the one that is there, on the worker.
        is_added: Whether `value` is added.
        layer: The layer that adds it; None: it is the difference.
    """

    shared: SharedVariable
    value: tf.Tensor
    is_added: bool = False
    layer: FeatureNorm | None = None

    def apply(self, value: tf.Tensor) -> None:
        """Changes the state. Used in a graph.

        Args:
            value: `value` on the server.
        """
        remote = self.shared.remote
        with tf.device(remote.device):
            if not self.is_added:
                remote.assign(value)
            elif self.layer is None:
                remote.assign_add(value)
            else:
                with self.shared.lock.held([value]):
                    remote.assign(self.layer.state_with(remote.value(), value))


class LayerStates:
    """The states of the layers of a model in the graph of the steps between two exchanges.

    Made after the graph has the values with which the steps begin, and before the model is called.

    Args:
        model: The Keras model.
        shared: The dense weights that workers share.
        values: The values with which the steps begin.
    """

    def __init__(
        self, model: tf.keras.Model, shared: Sequence[SharedVariable], values: SharedValues
    ) -> None:
        self._values = values
        self._norms: dict[int, FeatureNorm] = {
            id(tf_variable(layer.state)): layer
            for layer in _keras.all_layers(model)
            if isinstance(layer, FeatureNorm)
        }
        graph = tf.compat.v1.get_default_graph()
        self._states = [s for s in shared if not s.trained]
        self._handles = [graph.capture(tf_variable(s.local).handle) for s in self._states]
        self._ops_before = {op for handle in self._handles for op in handle.consumers()}
        self._seen: list[list[tf.Tensor]] = []  # after each batch

    def see_batch(self) -> list[tf.Tensor]:
        """Returns the states that the call of the model has changed, as they are after the batch.

        Called after each call of the model.
        """
        self._seen.append([tf_variable(s.local).read_value() for s in self.changed()])
        return self._seen[-1]

    def join(
        self, by_worker: Sequence[Sequence[tf.Tensor]], shares: Sequence[tf.Tensor]
    ) -> list[StateChange]:
        """Returns the states after the batches of all synchronous workers.

        Args:
            by_worker: What `see_batch` has returned on each worker.
            shares: The share of each worker in the examples of the step, float32 scalars.
        """
        found = []
        for i, shared in enumerate(self.changed()):
            before, after = self._values.value_of(shared.remote), [s[i] for s in by_worker]
            norm = self._norm_of(shared)
            joined = (
                _mean_change(before, after, shares)
                if norm is None
                else norm.joined_state(before, after)
            )
            found.append(StateChange(shared, joined))
        return found

    def changes(self) -> list[StateChange]:
        """Returns what the batches of an asynchronous worker add to the states."""
        found = []
        for i, shared in enumerate(self.changed()):
            states = [self._values.value_of(shared.remote), *(s[i] for s in self._seen)]
            norm = self._norm_of(shared)
            if norm is None:
                change = states[-1] - states[0]
            else:
                by_batch = (norm.state_of_batch(*pair) for pair in pairwise(states))
                change = reduce(norm.join_batches, by_batch)
            found.append(StateChange(shared, change, True, norm))
        return found

    def _norm_of(self, shared: SharedVariable) -> Any:
        return self._norms.get(id(tf_variable(shared.local)))

    def changed(self) -> list[SharedVariable]:
        """Returns the states that the calls of the model so far change."""
        pairs = zip(self._states, self._handles, strict=True)
        return [s for s, handle in pairs if not reads_only(handle, self._ops_before)]


def _mean_change(
    before: tf.Tensor, after: Sequence[tf.Tensor], shares: Sequence[tf.Tensor]
) -> tf.Tensor:
    """A state after changes whose mean is weighted; unchanged elements keep their bits."""
    changes = [
        (a - before) * tf.cast(share, before.dtype) for a, share in zip(after, shares, strict=True)
    ]
    return before + tf.add_n(changes)
