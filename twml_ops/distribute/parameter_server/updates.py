"""Who applies an update: each server to its shards, by the user's optimizer.

`Updates` has the updates of a step. The shards of tables are updated on their servers
(`update_part`). Dense weights that several workers share are updated on the server that has the
copy (`update_dense_variable`). The dense weights of a single worker are updated by its own
optimizer (`Updates.update_local`).
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from twml_ops import ops
from twml_ops.distribute.parameter_server import clipping, encoding, micro_batches
from twml_ops.distribute.parameter_server.cluster import Cluster
from twml_ops.distribute.parameter_server.layer_states import StateChange
from twml_ops.distribute.parameter_server.modules import RemoteModule
from twml_ops.distribute.parameter_server.placement import ParameterServerPlacement
from twml_ops.distribute.parameter_server.products import TableProduct, depends_on
from twml_ops.distribute.parameter_server.state import (
    RunState,
    component_optimizers,
    optimizer_of,
)
from twml_ops.distribute.parameter_server.tables import RemoteTable, RemoteVariable
from twml_ops.distribute.parameter_server.transport import Link
from twml_ops.ops._tape import tf_variable
from twml_ops.optimizers import SparseOptimizer


class ShardGradient(NamedTuple):
    """What the update of a shard needs of a product, as tensors on the server of the shard.

    Attributes:
        entries: The entries of a batch.
        gradient: The gradient of their product with the shard, float32 [B, columns of the shard].
        weights: The gradients of the weights of the module of the product; none without a module.
        sizes: int64 [micro-batches], the examples of each micro-batch of the batch, whose gradients
            are of its own mean loss; None: there are no micro-batches.
    """

    entries: encoding.ShardEntries
    gradient: tf.Tensor
    weights: Sequence[tf.Tensor] = ()
    sizes: tf.Tensor | None = None


ShardGradients = dict[int, ShardGradient]
"""The entries and gradients on one server by the number of the product, in ascending order."""

_EXCLUSIONS = (  # what a call of `exclude_from_weight_decay` sets in Keras 2 and 3
    "_exclude_from_weight_decay",
    "_exclude_from_weight_decay_names",
    "_exclude_from_weight_decay_pattern",
)
_NO_NORMS: clipping.Norms = {}


def check_optimizer(optimizer: Any, exchange_every: int) -> None:
    """Checks that an optimizer can update a shard without the rest of the table.

    Args:
        optimizer: An optimizer of this package.
        exchange_every: Steps between two exchanges with the servers.

    Raises:
        ValueError: The optimizer is not of this package, or has an option that is not possible with
            tables on servers.
    """
    for each in component_optimizers(optimizer):
        if not isinstance(each, SparseOptimizer):
            raise ValueError(
                "optimizer must be one of twml_ops.optimizers, which can update a table on a "
                f"server, got {type(each).__name__}"
            )
        if each.use_ema:
            raise ValueError("use_ema is not supported with tables on servers, expected False")
        if any(getattr(each, name, None) for name in _EXCLUSIONS):
            raise ValueError(
                "exclude_from_weight_decay is not supported with tables on servers: it is none of "
                "the arguments of an optimizer, which servers have; expected a CompositeOptimizer "
                "with an optimizer without weight_decay for these weights"
            )
        if getattr(each, "loss_scale_factor", None):
            raise ValueError(
                "loss_scale_factor is not supported with tables on servers, which do not scale the "
                f"loss, expected None, got {each.loss_scale_factor!r}"
            )
        if getattr(each, "gradient_accumulation_steps", None):
            raise ValueError(
                "gradient_accumulation_steps is not supported with tables on servers, expected "
                f"None, got {each.gradient_accumulation_steps}"
            )
    if exchange_every > 1 and clipping.clips_by_norm(optimizer):
        raise ValueError(
            f"clipnorm and global_clipnorm need exchange_every=1, got {exchange_every}: the dense "
            "weights change in each step, and the gradients of tables are known after the last one"
        )


class Updates:
    """The updates of a training step. Used in the graph of a step.

    Args:
        optimizer: The optimizer of all weights.
        cluster: The cluster.
        state: The shared state of the run.
        placement: The placement of the tables.
        micro_batches: The micro-batches of a step of all workers; None: there are none.
    """

    def __init__(
        self,
        optimizer: Any,
        cluster: Cluster,
        state: RunState,
        placement: ParameterServerPlacement,
        micro_batches: int | None = None,
    ) -> None:
        self._micro_batches = micro_batches
        self._optimizer, self._cluster = optimizer, cluster
        self._state, self._placement = state, placement
        self._scalars: dict[tuple[int, str], tuple[tf.Tensor, tf.Tensor]] = {}
        self._sent: dict[int, tf.Tensor] = {}
        self._sizes: dict[str, tf.Tensor] = {}

    def rates_and_steps(self) -> list[tf.Tensor]:
        """Returns the learning rates and the steps of all optimizers, [optimizers] each."""
        optimizers = component_optimizers(self._optimizer)
        rates = [each.current_learning_rate() for each in optimizers]
        steps = [tf.cast(tf_variable(each.iterations), tf.int64) for each in optimizers]
        return [tf.stack(rates), tf.stack(steps)]

    def send_gradients(
        self,
        number: tf.Tensor,
        scalars: list[tf.Tensor],
        gradients: Sequence[Any],
        changes: Sequence[StateChange] = (),
    ) -> None:
        """Sends the gradients of the products and, with the first to a server, what updates need.

        Args:
            number: The run's step before this step, an int64 scalar.
            scalars: What `rates_and_steps` has returned, and with micro-batches the number of
                examples of each one of this worker, int64 [micro-batches].
            gradients: The gradients of `RunState.trained`, or an empty list. Gradients that depend
                on the answer of a server are not sent.
            changes: How the step changes states of layers.
        """
        optimizers = component_optimizers(self._optimizer)
        self._scalars, self._sent = {}, {}
        dense = self._dense_by_server(gradients)
        for of_server, device in zip(dense, self._cluster.devices, strict=True):
            of_server += [
                (c.value, c.shared.local) for c in changes if c.shared.remote.device == device
            ]
        streams = itertools.count(self._cluster.index << 32)  # of no other worker
        random_bits = (encoding.RandomBits(number, stream) for stream in streams)
        shared = {s.remote.device for s in self._state.shared_variables}
        # The gradients of an exchange may depend on gradients by values of later ones.
        for exchange in reversed(self._placement.exchanges):
            others = [
                [*scalars, *(t for g, _ in pairs for t in encoding.tensors_of_gradient(g))]
                if (id(optimizers[0]), device) not in self._scalars
                and (device in shared or exchange.uses(p))
                else []
                for p, (device, pairs) in enumerate(zip(self._cluster.devices, dense, strict=True))
            ]
            sent = exchange.send_gradients(others, random_bits)
            for device, pairs, found in zip(self._cluster.devices, dense, sent, strict=False):
                if not found:
                    continue
                # All updates on a server need the learning rate.
                guards = self._state.worker_token.guards(device)
                with tf.device(device), tf.control_dependencies(guards):
                    rates, steps = (tf.unstack(t, len(optimizers)) for t in found[:2])
                    for each, rate, step in zip(optimizers, rates, steps, strict=True):
                        self._scalars[id(each), device] = rate, step
                    if self._micro_batches is not None:
                        self._sizes[device] = found[2]
                    arrived = iter(found[len(scalars) :])
                    for gradient, v in pairs:
                        self._sent[id(v)] = encoding.gradient_of_tensors(arrived, gradient)

    def _dense_by_server(self, gradients: Sequence[Any]) -> list[list[tuple[Any, Any]]]:
        """Returns, for each server, the gradients that are known now, and its dense weights."""
        remote = {id(s.local): s.remote.device for s in self._state.shared_variables}
        products = [p for exchange in self._placement.exchanges for p in exchange.products]
        by_batch = [each.values_gradient for p in products for each in p.by_batch]
        later = [gradient.tensor for gradient in by_batch if gradient is not None]
        found: dict[str, list[tuple[Any, Any]]] = {d: [] for d in self._cluster.devices}
        for gradient, v in zip(gradients, self._state.trained, strict=False):
            if gradient is None or id(v) not in remote:
                continue
            if not depends_on(encoding.tensors_of_gradient(gradient), later):
                found[remote[id(v)]].append((gradient, v))
        return list(found.values())

    def gradients_by_server(self, used: list[TableProduct]) -> list[ShardGradients]:
        """Returns what each server has of the entries and the gradients of the products."""
        found: list[ShardGradients] = [{} for _ in self._cluster.devices]
        for number, product in enumerate(used):
            for i, server in enumerate(product.table.division.servers):
                found[server][number] = ShardGradient(
                    product.shard_entries[i],
                    product.sent_gradients[i],
                    product.weights_gradients,
                    self._sizes.get(self._cluster.devices[server]),
                )
        return found

    def update(
        self,
        used: list[TableProduct],
        sparse: Sequence[ShardGradients],
        gradients: list[Any],
        changes: Sequence[StateChange],
    ) -> None:
        """Updates tables and dense weights.

        Args:
            used: The products that have gradients.
            sparse: [server] entries and gradients of all workers.
            gradients: The dense gradients; None where there is none.
            changes: How the step changes states of layers.
        """
        norms = self.update_tables(used, sparse, gradients)
        if self._state.shared_variables:
            self.update_on_servers(gradients, norms=norms, changes=changes)
        else:
            self.update_local(gradients, norms)

    def update_tables(
        self,
        used: list[TableProduct],
        sparse: Sequence[ShardGradients],
        gradients: Sequence[Any] = (),
    ) -> clipping.Norms:
        """Updates each shard on its server, with the sum of the gradients of all workers.

        Args:
            used: The products that have gradients.
            sparse: [server] entries and gradients of all workers.
            gradients: The dense gradients, if an optimizer clips by norm; None where there is none.

        Returns:
            The norms by which these gradients are clipped as well; none if they are not.
        """
        norms = _NO_NORMS
        parts: Iterable[clipping.PartGradient] = self._gradients_of_parts(used, sparse)
        if clipping.clips_by_norm(self._optimizer):
            parts = [clipping.sum_repeated_rows(part) for part in parts]
            dense = [
                (g, optimizer_of(self._optimizer, v)) for g, v in self._trained_pairs(gradients)
            ]
            shared = {s.remote.device for s in self._state.shared_variables if s.trained}
            norms = clipping.exchange_norms(self._placement.links, parts, dense, shared)
        for each in parts:
            rate, step = self._rate_and_step(each.optimizer, each.shard.device)
            norm = clipping.norm_of(norms, each.owner, each.shard.device)
            update_part(each, norm, rate, step)
        for table in self._placement.tables:
            if table.lookup is not None and any(p.table is table for p in used):
                table.lookup.release()
        return norms

    def _gradients_of_parts(
        self, used: list[TableProduct], sparse: Sequence[ShardGradients]
    ) -> Iterator[clipping.PartGradient]:
        """Iterates over the parts of trained tables that have gradients, and computes these.

        While a caller has a gradient, no other worker lets rows of that part begin anew. The
        weights of the module of a table follow it.
        """
        for table in self._placement.tables:
            uses = [i for i, p in enumerate(used) if p.table is table]
            if not uses:
                continue
            optimizer = optimizer_of(self._optimizer, table)
            for part, server in enumerate(table.division.servers if table.trainable else ()):
                shard, of_server = table.shards[part], sparse[server]
                sent = [of_server[i].gradient for i in uses]
                with _section_of(table, part, sent):
                    with tf.device(shard.device):
                        by_use = [
                            self._by_micro_batch(
                                shard, _current(used[i], part, of_server[i]), used[i].binary
                            )
                            for i in uses
                        ]
                        gradients = [add_gradients(each) for each in zip(*by_use, strict=True)]
                        gradient = gradients[0]
                        sizes = of_server[uses[0]].sizes
                        if sizes is not None:
                            total = micro_batches.weighted_tree_sum(gradients, sizes)
                            gradient = micro_batches.divided(total, tf.reduce_sum(sizes))
                    slots, is_whole = table.slots[part], len(table.shards) == 1
                    yield clipping.PartGradient(optimizer, table, is_whole, shard, slots, gradient)
            if table.module is not None:
                of_uses = [sparse[table.division.servers[0]][i].weights for i in uses]
                yield from self._gradients_of_module(table.module, [w for w in of_uses if w])

    def _by_micro_batch(
        self, shard: RemoteVariable, use: ShardGradient, binary: bool
    ) -> list[tf.IndexedSlices]:
        """Returns the gradients of a shard from one use of its table, for each micro-batch."""
        if use.sizes is None or self._micro_batches is None:
            return [_shard_gradient(shard, use, binary)]
        args = use.entries, use.gradient, use.sizes, self._micro_batches, binary
        return [
            _shard_gradient(shard, ShardGradient(*own), binary)
            for own in micro_batches.split_examples(*args)
        ]

    def _gradients_of_module(
        self, module: RemoteModule, by_use: Sequence[Sequence[tf.Tensor]]
    ) -> Iterator[clipping.PartGradient]:
        """Iterates over the weights of a module that have gradients."""
        for shared, gradients in zip(module.shared, zip(*by_use, strict=True), strict=False):
            if shared.trained:
                optimizer = optimizer_of(self._optimizer, shared.local)
                with tf.device(shared.remote.device):
                    gradient = add_gradients(gradients)
                yield clipping.PartGradient(
                    optimizer, shared.local, True, shared.remote, shared.slots, gradient
                )

    def update_local(self, gradients: list[Any], norms: clipping.Norms = _NO_NORMS) -> None:
        """Updates the dense weights of this process, with the slots that this process has.

        Args:
            gradients: The dense gradients; None where there is none.
            norms: What `update_tables` has returned.
        """
        components = component_optimizers(self._optimizer)
        iterations = [each.iterations + 1 for each in components]
        pairs = self._trained_pairs(gradients)
        for i, (gradient, v) in enumerate(pairs if norms else []):
            optimizer = optimizer_of(self._optimizer, v)
            norm = clipping.norm_of(norms, optimizer, clipping.WORKER)
            if norm is not None:  # the optimizer has nothing more to clip: a part is not longer
                pairs[i] = optimizer.clip_gradients([gradient], norm)[0], v
        if pairs:
            self._optimizer.apply_gradients(pairs)
        # An optimizer of tables only would not have counted the step.
        for each, steps in zip(components, iterations, strict=True):
            each.iterations.assign(steps)

    def update_on_servers(
        self,
        gradients: list[Any],
        steps: int = 1,
        norms: clipping.Norms = _NO_NORMS,
        changes: Sequence[StateChange] = (),
    ) -> None:
        """Updates the dense weights that workers share.

        Args:
            gradients: The dense gradients; None where there is none.
            steps: The number of steps whose gradients were added; see `_decay_of`.
            norms: What `update_tables` has returned.
            changes: How the steps change states of layers.
        """
        pairs = self._trained_pairs(gradients)
        shared_variables = {id(s.local): s for s in self._state.shared_variables}
        for link in self._placement.links:
            device = link.server
            of_device = [
                (g, v) for g, v in pairs if shared_variables[id(v)].remote.device == device
            ]
            of_states = [c for c in changes if c.shared.remote.device == device]
            wanted = [*of_device, *((c.value, c.shared.local) for c in of_states)]
            missing = [(g, v) for g, v in wanted if id(v) not in self._sent]
            sent = _send_dense([g for g, _ in missing], link)
            found = {**self._sent, **{id(v): g for g, (_, v) in zip(sent, missing, strict=True)}}
            of_device = [(found[id(v)], v) for _, v in of_device]
            self._update_shared(of_device, shared_variables, steps, norms)
            for change in of_states:
                change.apply(found[id(change.shared.local)])

    def update_in_front(
        self, gradients: list[Any], steps: int, scalars: Sequence[tf.Tensor]
    ) -> None:
        """Updates dense weights of this process that are in front of a table.

        Args:
            gradients: The sums of the gradients of several steps; None where there is none.
            steps: The number of these steps.
            scalars: What `rates_and_steps` has returned before the first of them.
        """
        components = component_optimizers(self._optimizer)
        for gradient, v in self._trained_pairs(gradients):
            optimizer, variable = optimizer_of(self._optimizer, v), tf_variable(v)
            rate, step = (s[components.index(optimizer)] for s in scalars)
            decay = _decay_of(optimizer, v, gradient, steps)
            slots = optimizer.slots_of(v)
            (gradient,) = optimizer.clip_gradients([gradient])
            update_dense_variable(optimizer, gradient, variable, slots, decay, rate, step)

    def _rate_and_step(self, optimizer: Any, device: str) -> tuple[tf.Tensor, Any]:
        """Returns the learning rate and the step of an optimizer, on the server if it got them."""
        return self._scalars.get((id(optimizer), device)) or (
            optimizer.current_learning_rate(),
            optimizer.iterations,
        )

    def _trained_pairs(self, gradients: Sequence[Any]) -> list[tuple[Any, Any]]:
        pairs = zip(gradients, self._state.trained, strict=True)
        return [(g, v) for g, v in pairs if g is not None]

    def _update_shared(
        self,
        pairs: list[tuple[Any, Any]],
        shared_variables: dict[int, Any],
        steps: int,
        norms: clipping.Norms,
    ) -> None:
        for gradient, v in pairs:
            optimizer, shared = optimizer_of(self._optimizer, v), shared_variables[id(v)]
            rate, step = self._rate_and_step(optimizer, shared.remote.device)
            decay = _decay_of(optimizer, v, gradient, steps)
            norm = clipping.norm_of(norms, optimizer, shared.remote.device)
            with tf.device(shared.remote.device):
                (gradient,) = optimizer.clip_gradients([gradient], norm)
            update_dense_variable(
                optimizer, gradient, shared.remote, shared.slots, decay, rate, step
            )


def _decay_of(optimizer: Any, weight: Any, gradient: Any, steps: int) -> float:
    """Returns the weight decay of an update with the sum of the gradients of several steps.

    Rows of a replicated table decay once, as rows on servers do.
    """
    times = 1 if isinstance(gradient, tf.IndexedSlices) else steps
    return float(optimizer.weight_decay_of(weight)) * times


def update_part(
    each: clipping.PartGradient, norm: tf.Tensor | None, rate: tf.Tensor, step: Any
) -> None:
    """Updates a part of a table, or a weight of a module, on its server.

    Args:
        each: The part and its gradient.
        norm: The norm that the optimizer limits; None: the norm of the gradient of the part.
        rate: The learning rate of this step.
        step: The number of steps before this one, an integer scalar or variable.
    """
    optimizer = each.optimizer
    with tf.device(each.shard.device):
        (gradient,) = optimizer.clip_gradients([each.gradient], norm)
        decay = optimizer.weight_decay_of(each.whole)
        optimizer.update_variable(
            gradient, each.shard, each.slots, rate, weight_decay=decay, step=step
        )


def _section_of(table: RemoteTable, part: int, after: Sequence[tf.Tensor]) -> Any:
    """Returns the context in which a part of a table is updated."""
    return contextlib.nullcontext() if table.lookup is None else table.lookup.section(part, after)


def _current(product: TableProduct, part: int, gradient: ShardGradient) -> ShardGradient:
    """Returns the gradient with the entries whose rows still have the ids of the batch."""
    lookup, number = product.table.lookup, product.lookups.get(part)
    if lookup is None:
        return gradient
    entries = lookup.of_known_rows(part, gradient.entries, number, product.binary)
    return gradient._replace(entries=entries)


def _shard_gradient(shard: RemoteVariable, of_use: ShardGradient, binary: bool) -> tf.IndexedSlices:
    """Returns the gradient of a shard from one use of its table."""
    shape = tf.constant(shard.shape.as_list(), tf.int64)
    return ops.weights_grad(*of_use.entries, of_use.gradient, shape, binary)


def update_dense_variable(
    optimizer: Any,
    gradient: Any,
    variable: RemoteVariable,
    slots: Sequence[RemoteVariable],
    weight_decay: float,
    rate: tf.Tensor,
    step: Any,
) -> None:
    """Updates a dense variable on its server.

    Args:
        optimizer: The optimizer of the variable.
        gradient: Its gradient, clipped, a tensor or `tf.IndexedSlices`.
        variable: The variable.
        slots: The optimizer's slots of the variable.
        weight_decay: The weight decay of the variable; 0: none.
        rate: The learning rate of this step.
        step: The number of steps before this one, an integer scalar or variable.
    """
    with tf.device(variable.device):
        optimizer.update_variable(
            gradient, variable, slots, rate, weight_decay=weight_decay, step=step
        )


def _send_dense(gradients: Sequence[Any], link: Link) -> list[Any]:
    """Sends gradients or values of dense weights to a server in one message.

    Args:
        gradients: Tensors with known shapes, or `tf.IndexedSlices`.
        link: The way to the server.

    Returns:
        The gradients on the server.
    """
    tensors = [t for g in gradients for t in encoding.tensors_of_gradient(g)]
    sent = iter(link.to_server(tensors) if tensors else [])
    with tf.device(link.server):
        return [encoding.gradient_of_tensors(sent, g) for g in gradients]


def add_gradients(gradients: Sequence[Any]) -> Any:
    """Adds gradients of one variable.

    Args:
        gradients: At least one: tensors, or `tf.IndexedSlices`, or None if there is no gradient.

    Returns:
        The sum; a single gradient is returned as it is.
    """
    first = gradients[0]
    if first is None or len(gradients) == 1:
        return first
    if isinstance(first, tf.IndexedSlices):
        values = tf.concat([g.values for g in gradients], axis=0)
        indices = tf.concat([g.indices for g in gradients], axis=0)
        return tf.IndexedSlices(values, indices, first.dense_shape)
    return tf.add_n(list(gradients))


def weighted_sum(gradients: Sequence[Any], shares: Sequence[tf.Tensor]) -> Any:
    """Adds gradients of one variable that are multiplied by numbers.

    Args:
        gradients: At least one: tensors or `tf.IndexedSlices`.
        shares: A scalar for each.

    Returns:
        The sum.
    """
    return add_gradients([_scaled(g, share) for g, share in zip(gradients, shares, strict=True)])


def _scaled(gradient: Any, share: tf.Tensor) -> Any:
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(gradient.values * share, gradient.indices, gradient.dense_shape)
    return gradient * share
