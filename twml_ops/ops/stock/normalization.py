"""cc/core/normalization.h in stock ops: what `max_norm` and `online_standardize` share."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tensorflow as tf

from twml_ops.ops.stock import check
from twml_ops.ops.stock.sparse_linear import sorted_unique


def check_ranks(
    ids: tf.Tensor, values: tf.Tensor, training: tf.Tensor, bias: Sequence[tf.Tensor]
) -> None:
    """Raises if a tensor has a wrong rank, or if the bias is not a float32 variable of rank 1."""
    check.rank(ids, 1, "ids")
    check.rank(values, 1, "values")
    check.rank(training, 0, "training")
    for handle in bias:
        check.variable_dtype(handle, "bias", 1)


def check_options(epsilon: float, decay: float) -> None:
    """Raises if an option that both ops have is out of range."""
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
    """Requires one value for each id, ids that `state` has, and a bias of the state's size.

    Args:
        ids: Ids of the entries.
        values: Values of the entries.
        state: Resource handle of the state.
        bias: Resource handle of the bias, or nothing.
        state_size: How the message describes the expected size of the bias.

    Returns:
        The preconditions.
    """

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
    """Runs `update` in training, and returns what must run before the state is read."""
    always = tf.get_static_value(training)
    if always is not None and not always:
        return []

    def updated() -> tf.Tensor:
        with tf.control_dependencies(as_dependencies(update())):
            return tf.constant(True)

    return [updated() if always else tf.cond(training, updated, lambda: tf.constant(False))]


def as_dependencies(op: tf.Operation | None) -> list[tf.Operation]:
    """The control inputs for an operation; none in eager mode, where `op` is None."""
    return [] if op is None else [op]


def add_bias(y: tf.Tensor, ids: tf.Tensor, bias: Sequence[tf.Tensor]) -> tf.Tensor:
    """Adds `bias[ids]` if there is a bias; its gradient has unique ids."""
    for handle in bias:
        unique_ids, positions = sorted_unique(ids)
        found = tf.raw_ops.ResourceGather(resource=handle, indices=unique_ids, dtype=tf.float32)
        y += tf.gather(found, positions)
    return y
