"""cc/core/normalization.h in stock ops: what the running normalizations share."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tensorflow as tf

from twml_ops.ops.stock import check
from twml_ops.ops.stock.sparse_linear import sorted_unique


def check_ranks(
    ids: tf.Tensor, values: tf.Tensor, training: tf.Tensor, bias: Sequence[tf.Tensor]
) -> None:
    """Refuses tensors of another rank, and a bias that is no table of rank 1."""
    check.rank(ids, 1, "ids")
    check.rank(values, 1, "values")
    check.rank(training, 0, "training")
    for handle in bias:
        check.variable_dtype(handle, "bias", 1)


def check_options(epsilon: float, decay: float) -> None:
    """Refuses what no normalization takes."""
    if not 1.2e-38 <= epsilon <= tf.float32.max:
        raise check.invalid_argument(f"epsilon must be a positive normal number, got {epsilon}")
    if not 0 < decay <= 1:
        raise check.invalid_argument(f"decay must be in (0, 1], got {decay}")


def batch_preconditions(
    ids: tf.Tensor,
    values: tf.Tensor,
    state: tf.Tensor,
    bias: Sequence[tf.Tensor],
    state_size: str,
) -> list[check.Precondition]:
    """One value an id, ids that `state` has, and a bias (one or none) of as many items."""

    def input_dim(handle: tf.Tensor = state) -> tf.Tensor:
        return tf.raw_ops.VariableShape(input=handle, out_type=tf.int64)[0]

    message = "values must have {} items, one for each id, got {}"
    found = [check.equal(message, check.size(ids), check.size(values))]
    if bias:
        message = "bias must have {} items, " + state_size + ", got {}"
        found.append(check.equal(message, input_dim, lambda: input_dim(bias[0])))
    return [*found, check.ids_in_range(ids, input_dim())]


def update_if_training(
    training: tf.Tensor, update: Callable[[], tf.Operation | None]
) -> list[tf.Tensor]:
    """What must run before the state is read: nothing in a graph made for inference."""
    always = tf.get_static_value(training)
    if always is not None and not always:
        return []

    def updated() -> tf.Tensor:
        with tf.control_dependencies(as_dependencies(update())):
            return tf.constant(True)

    return [updated() if always else tf.cond(training, updated, lambda: tf.constant(False))]


def as_dependencies(op: tf.Operation | None) -> list[tf.Operation]:
    """What to wait for: in eager mode there is no operation, and nothing."""
    return [] if op is None else [op]


def add_bias(y: tf.Tensor, ids: tf.Tensor, bias: Sequence[tf.Tensor]) -> tf.Tensor:
    """Y + bias[ids], if there is one, with a gradient of unique ids."""
    for handle in bias:
        unique_ids, places = sorted_unique(ids)
        found = tf.raw_ops.ResourceGather(resource=handle, indices=unique_ids, dtype=tf.float32)
        y += tf.gather(found, places)
    return y
