"""JAX on the CPU: jitted gather and segment sum, with updates in donated memory.

Shapes are static: batches are padded to the longest one with entries of value 0.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import reference
from benchmarks.contender import FORWARD, RULES, Prepare, PreparedContender
from benchmarks.workload import Batch, Case

Arrays = tuple[Any, ...]
Update = Callable[[Any, Arrays, Any, Any, Any], tuple[Any, Arrays]]


def padded(batch: Batch, entries: int) -> Arrays:
    """(ids, values, rows) of a batch, each [entries]."""
    pad = (0, entries - len(batch.ids))
    rows = np.pad(batch.row_indices, pad, constant_values=batch.num_rows - 1)
    ids = np.pad(batch.ids, pad)
    return jnp.asarray(ids, jnp.int32), jnp.asarray(np.pad(batch.values, pad)), jnp.asarray(rows)


def product(table: Any, ids: Any, values: Any, rows: Any, num_rows: int) -> Any:
    """The product of a batch and the table, [num_rows, D]."""
    return jax.ops.segment_sum(
        values[:, None] * table[ids], rows, num_segments=num_rows, indices_are_sorted=True
    )


def _adagrad(w: Any, slots: Arrays, g: Any, _: Any, mean: bool) -> tuple[Any, Arrays]:
    squares = g * g
    a = slots[0] + (squares.mean(axis=1) if mean else squares)
    root = jnp.sqrt(a + reference.EPSILON)
    return w - reference.LEARNING_RATE * g / (root[:, None] if mean else root), (a,)


def _lazy_adam(w: Any, slots: Arrays, g: Any, t: Any) -> tuple[Any, Arrays]:
    b1, b2 = reference.BETA_1, reference.BETA_2
    rate = reference.LEARNING_RATE * jnp.sqrt(1 - b2**t) / (1 - b1**t)
    m, v = b1 * slots[0] + (1 - b1) * g, b2 * slots[1] + (1 - b2) * g * g
    return w - rate * m / (jnp.sqrt(v) + reference.EPSILON), (m, v)


RULE: dict[str, Callable[..., tuple[Any, Arrays]]] = {
    "adagrad": partial(_adagrad, mean=False),
    "rowwise_adagrad": partial(_adagrad, mean=True),
    "lazy_adam": _lazy_adam,
}


def scatter_sgd(table: Any, slots: Arrays, batch: Arrays, grad: Any, _: Any) -> tuple[Any, Arrays]:
    """SGD by one scatter-add, which does not need distinct ids."""
    ids, values, rows = batch
    return table.at[ids].add(-reference.LEARNING_RATE * values[:, None] * grad[rows]), slots


def rows_update(
    rule: str, table: Any, slots: Arrays, batch: Arrays, grad: Any, t: Any
) -> tuple[Any, Arrays]:
    """Sums the gradients of equal ids, gathers rows and slots, updates them, scatters them."""
    ids, values, rows = batch
    unique, inverse = jnp.unique(ids, size=len(ids), return_inverse=True, fill_value=len(table))
    g = jax.ops.segment_sum(values[:, None] * grad[rows], inverse, num_segments=len(ids))
    w, new = RULE[rule](table[unique], tuple(s[unique] for s in slots), g, t)
    options = {"mode": "drop", "unique_indices": True, "indices_are_sorted": True}
    slots = tuple(s.at[unique].set(n, **options) for s, n in zip(slots, new, strict=True))
    return table.at[unique].set(w, **options), slots


def forward(case: Case) -> PreparedContender:
    """The forward pass alone."""
    table, batches = jnp.array(case.table), _batches(case)
    call = jax.jit(partial(product, num_rows=case.batches[0].num_rows))
    return PreparedContender(lambda i: call(table, *batches[i]).block_until_ready())


def step(rule: str, case: Case) -> PreparedContender:
    """Product and update in one jitted function, which may reuse the memory of the old table."""
    update: Any = scatter_sgd if rule == "sgd" else partial(rows_update, rule)
    grad, batches = jnp.asarray(case.grad_output), _batches(case)

    @partial(jax.jit, donate_argnums=(0, 1))
    def call(table: Any, slots: Arrays, t: Any, batch: Arrays) -> Any:
        output = product(table, *batch, case.batches[0].num_rows)
        return output, *update(table, slots, batch, grad, t)

    state = [jnp.array(case.table), _slots(rule, case.table.shape), 0]

    def run(i: int) -> Any:
        state[2] += 1
        output, state[0], state[1] = call(*state[:2], np.float32(state[2]), batches[i])
        return jax.block_until_ready((output, state[0]))[0]

    return PreparedContender(run, lambda: np.asarray(state[0]))


def _batches(case: Case) -> list[Arrays]:
    entries = max(len(b.ids) for b in case.batches)
    return [padded(b, entries) for b in case.batches]


def _slots(rule: str, shape: tuple[int, ...]) -> Arrays:
    if rule == "lazy_adam":
        return jnp.zeros(shape), jnp.zeros(shape)
    if rule == "sgd":
        return ()
    return (
        jnp.full(shape[:1] if rule == "rowwise_adagrad" else shape, reference.INITIAL_ACCUMULATOR),
    )


CONTENDERS: dict[str, dict[str, Prepare]] = {
    FORWARD: {"JAX gather + segment_sum": forward},
    **{rule: {"JAX gather, segment_sum, scatter": partial(step, rule)} for rule in RULES},
}
