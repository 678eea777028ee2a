"""The norms by which gradients are clipped, of which each process knows a part.

`clipnorm` limits the norm of the gradient of each variable, and `global_clipnorm` the norm of all
gradients of an optimizer, as in a single process. Dense gradients are on the worker that makes the
step. The gradient of a table is on its servers, where the rows of repeated ids are added first.
Each server sends half of the sum of squares of each of its parts, and the worker sends the norms
back: two messages of a few numbers with each server (`exchange_norms`). The norm of a table that is
on one server needs no message for `clipnorm`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from twml_ops.distribute.parameter_server.state import component_optimizers
from twml_ops.distribute.parameter_server.tables import RemoteVariable
from twml_ops.distribute.parameter_server.transport import Link
from twml_ops.optimizers.gradients import half_squared_norm, sum_duplicates

WORKER = ""
"""Stands for the device of the worker in `Norms`."""

Norms = Mapping[tuple[int, str], tf.Tensor]
"""The norm of the gradients of an optimizer or a table, by its id and the device of the tensor."""


class PartGradient(NamedTuple):
    """The gradient of a part of a table, or of a weight of a module, on its server.

    Attributes:
        optimizer: The optimizer of the whole.
        whole: The table, or the weight in this process.
        is_whole: Whether there are no other parts.
        shard: The variable of the part, on its server.
        slots: The optimizer's slots of the part.
        gradient: The gradient of the part, a tensor or `tf.IndexedSlices`.
    """

    optimizer: Any
    whole: Any
    is_whole: bool
    shard: RemoteVariable
    slots: Sequence[RemoteVariable]
    gradient: Any

    @property
    def owner(self) -> Any:
        """The optimizer or the table whose norm is limited; None: this part has all of it."""
        if self.optimizer.global_clipnorm:
            return self.optimizer
        return self.whole if self.optimizer.clipnorm and not self.is_whole else None


def clips_by_norm(optimizer: Any) -> bool:
    """Tells whether an optimizer, or one of a `CompositeOptimizer`, clips by norm."""
    return any(each.clipnorm or each.global_clipnorm for each in component_optimizers(optimizer))


def sum_repeated_rows(each: PartGradient) -> PartGradient:
    """Returns a gradient whose norm can be computed: the rows of repeated ids are added."""
    if each.owner is None:
        return each
    with tf.device(each.shard.device):
        return each._replace(gradient=sum_duplicates(each.gradient))


def exchange_norms(
    links: Sequence[Link],
    parts: Sequence[PartGradient],
    dense: Sequence[tuple[Any, Any]],
    shared: Collection[str],
) -> Norms:
    """Computes the norms that servers and the worker do not know alone. Used in a graph.

    Args:
        links: The way to each server.
        parts: The gradients of the parts of tables, with unique ids.
        dense: The dense gradients on the worker, and the optimizer of each.
        shared: The devices of servers with dense weights, which need the norms as well.

    Returns:
        The norms, on each device that needs them.
    """
    halves: dict[int, list[tf.Tensor]] = {}  # of the squared norms, by the id of the owner
    for gradient, optimizer in dense:
        if optimizer.global_clipnorm:
            half = half_squared_norm(sum_duplicates(gradient))
            halves.setdefault(id(optimizer), []).append(half)
    needed = set(shared)
    for link in links:
        on_server = [p for p in parts if p.owner is not None and p.shard.device == link.server]
        if not on_server:
            continue
        needed.add(link.server)
        with tf.device(link.server):
            own = tf.stack([half_squared_norm(p.gradient) for p in on_server])
        (received,) = link.to_worker([own])
        for part, half in zip(on_server, tf.unstack(received, len(on_server)), strict=True):
            halves.setdefault(id(part.owner), []).append(half)
    if not halves:
        return {}
    norms = [tf.sqrt(2.0 * tf.add_n(each)) for each in halves.values()]
    found = {(owner, WORKER): norm for owner, norm in zip(halves, norms, strict=True)}
    for link in links:
        if link.server not in needed:
            continue
        (sent,) = link.to_server([tf.stack(norms)])
        with tf.device(link.server):
            for owner, norm in zip(halves, tf.unstack(sent, len(norms)), strict=True):
                found[owner, link.server] = norm
    return found


def norm_of(norms: Norms, owner: Any, device: str) -> tf.Tensor | None:
    """Returns the norm of an optimizer or a table on a device; None: a gradient has its own."""
    return norms.get((id(owner), device))
