"""States of layers that batches change, such as moving means, in a step of synchronous workers.

Each worker begins the step with the states on the servers, and its batch changes its own copies.
The followers send these copies with their gradients, and the leader joins them (`LayerStates`), so
that the states learn from the batches of all workers:

- `MaxNorm` and `OnlineStandardize` know the state after the concatenated batch (`joined_state`).
- Other states, such as the moving mean and variance of `BatchNormalization`, change by the mean of
  the workers' changes, weighted by examples. For a moving mean this is the state after the
  concatenated batch. A moving variance gets the mean of the variances within the batches, as among
  replicas in Keras.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tensorflow as tf

from twml_ops import _keras
from twml_ops.distribute.parameter_server.exchange import SharedValues
from twml_ops.distribute.parameter_server.products import reads_only
from twml_ops.distribute.parameter_server.state import SharedVariable
from twml_ops.layers._feature_norm import FeatureNorm
from twml_ops.ops._tape import tf_variable


class LayerStates:
    """The states of the layers of a model in the graph of one step.

    Made after the graph has the values with which the step begins, and before the model is called.

    Args:
        model: The Keras model.
        shared: The dense weights that workers share.
        values: The values with which the step begins.
    """

    def __init__(
        self, model: tf.keras.Model, shared: Sequence[SharedVariable], values: SharedValues
    ) -> None:
        self._values = values
        self._rules: dict[int, Callable[..., tf.Tensor]] = {
            id(tf_variable(layer.state)): layer.joined_state
            for layer in _keras.all_layers(model)
            if isinstance(layer, FeatureNorm)
        }
        graph = tf.compat.v1.get_default_graph()
        self._states = [s for s in shared if not s.trained]
        self._handles = [graph.capture(tf_variable(s.local).handle) for s in self._states]
        self._ops_before = {op for handle in self._handles for op in handle.consumers()}

    def after_batch(self) -> list[tf.Tensor]:
        """Returns the states that the call of the model changes, as they are after the batch."""
        return [tf_variable(s.local).read_value() for s in self._changed()]

    def join(self, by_worker: Sequence[Sequence[tf.Tensor]], shares: Sequence[tf.Tensor]) -> None:
        """Assigns the states after the batches of all workers to the variables of this process.

        Args:
            by_worker: What `after_batch` has returned on each worker.
            shares: The share of each worker in the examples of the step, float32 scalars.
        """
        for i, shared in enumerate(self._changed()):
            variable = tf_variable(shared.local)
            before, after = self._values.value_of(shared.remote), [s[i] for s in by_worker]
            rule = self._rules.get(id(variable))
            joined = _mean_change(before, after, shares) if rule is None else rule(before, after)
            variable.assign(joined)

    def _changed(self) -> list[SharedVariable]:
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
