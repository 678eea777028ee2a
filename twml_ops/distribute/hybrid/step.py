"""The graph of a training step, over the devices of this process and of all servers."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from twml_ops.distribute.hybrid import contributions, dense_gradients, updates
from twml_ops.distribute.hybrid.cluster import Cluster
from twml_ops.distribute.hybrid.deferred_tensor import depends_on
from twml_ops.distribute.hybrid.exchange import Exchange
from twml_ops.distribute.hybrid.gradient_queues import GradientQueues, effects_so_far
from twml_ops.distribute.hybrid.joined_batches import join_gradients
from twml_ops.distribute.hybrid.parameter_server_placement import ParameterServerPlacement
from twml_ops.distribute.hybrid.prefetch_checks import check_only_read, variables_read_by
from twml_ops.distribute.hybrid.random_states import RandomStates
from twml_ops.distribute.hybrid.shared_values import SharedValues
from twml_ops.distribute.hybrid.state import RunState, SharedVariable
from twml_ops.distribute.hybrid.stored_products import StoredProducts
from twml_ops.distribute.hybrid.table_product import TableProduct
from twml_ops.distribute.hybrid.updates import ShardGradient
from twml_ops.ops._tape import tf_variable

Batch = tuple[Any, Any, Any]
"""The features of a batch, its labels, and its weights or None."""


@dataclasses.dataclass(eq=False)
class StepGraph:
    """The computations of a step, which `HybridTrainer` traces as functions.

    Attributes:
        model: The Keras model, whose tables have `placement`.
        optimizer: The optimizer of all its weights.
        cluster: The cluster.
        state: The shared state of the run.
        placement: The placement of the tables.
        queues: The queues of a synchronous run of several workers; None for all other runs.
        bounded: Whether the steps of each worker are counted, since their staleness is bounded.
        exchange_every: Steps between two exchanges with the servers.
    """

    model: tf.keras.Model
    optimizer: Any
    cluster: Cluster
    state: RunState
    placement: ParameterServerPlacement
    queues: GradientQueues | None
    bounded: bool
    exchange_every: int
    _scalars: dict[tuple[int, str], tuple[tf.Tensor, tf.Tensor]] = dataclasses.field(
        default_factory=dict, init=False
    )
    _sent: dict[int, tf.Tensor] = dataclasses.field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        """Makes what the graph of each step uses, and variables of this process."""
        prefix = f"{self.state.prefix}/ahead/{self.cluster.index}"
        self._stored = StoredProducts(self.placement, prefix)
        self._random_states = RandomStates(self.model, self.cluster.index)
        counted = len(self.cluster.workers) if self.bounded else 0
        with tf.device(self.cluster.own_device):
            self._losses = tf.Variable(
                [], dtype=tf.keras.backend.floatx(), trainable=False, shape=[None]
            )
            self._step = tf.Variable(0, dtype=tf.int64, trainable=False)
            self._worker_steps = tf.Variable(tf.zeros([counted], tf.int64), trainable=False)

    def train(
        self,
        number: tf.Tensor,
        batches: Sequence[Batch],
        prefetched: Any = None,
        next_xs: Any = None,
    ) -> list[list[tf.Tensor]]:
        """Runs one training step for each batch, whose results `results` returns.

        The graph has all steps one after the other, not a loop: a loop over several processes would
        send a message in each of its iterations, and wait in each for all effects of the last one.
        Each `exchange_every` steps have one exchange with the servers, or all steps if there are
        fewer.

        Random layers get a state that depends on their initial state, the worker and `number`, so
        that a step which is repeated after a failure is the same step.

        Args:
            number: The run's step before these steps, an int64 scalar.
            batches: For each step, the features of the batch, its labels, and its weights or None.
            prefetched: The products of the batches of the first exchange, from `prefetch` or the
                previous call; None: they are computed in its steps.
            next_xs: The features of the batches of the exchange after these, whose products are
                computed before the last update of the tables; None: they are not, and neither are
                the products of other batches.

        Returns:
            The products of the next batches.
        """
        losses: list[tf.Tensor] = []
        every = self.exchange_every
        groups = [batches[i : i + every] for i in range(0, len(batches), every)]
        ahead = [[x for x, _, _ in group] for group in groups[1:]] + [next_xs]
        step = worker_steps = None
        for group, after in zip(groups, ahead, strict=True):
            # The step of the leader tells the others when a synchronous step has ended.
            before: list[Any] = [] if self.queues is None or step is None else [step]
            with tf.device(self.cluster.own_device), tf.control_dependencies(before):
                first = number + len(losses)
                values = self._pull_state()
                products: list[TableProduct] | None = None
                read: list[Any] = []
                if next_xs is not None:
                    # Before the variables that hold the messages of this group are overwritten.
                    products = self._stored.restore(prefetched)
                    prefetched, read = self._prefetch(after, values)
                if len(group) == 1:
                    self._random_states.set(first)
                    loss, step, worker_steps = self._train(first, *group[0], products, values)
                    losses.append(loss)
                else:
                    found, step, worker_steps = self._train_group(first, group, products, values)
                    losses += found
                check_only_read(read)
        with tf.device(self.cluster.own_device):
            self._keep_results(losses, step, worker_steps)
        return [] if next_xs is None else prefetched

    def results(self) -> tuple[tf.Tensor, int, Any]:
        """Returns the results of the last call of `train`.

        Returns:
            The losses, a vector; the run's step after these steps; the steps of each worker, or an
            empty array if they are not counted.
        """
        return self._losses.read_value(), int(self._step.numpy()), self._worker_steps.numpy()

    def _keep_results(
        self, losses: list[tf.Tensor], step: tf.Tensor, worker_steps: tf.Tensor
    ) -> None:
        """Keeps results in variables of this process.

        TensorFlow lets the tensors that a function returns wait for all ops of the function that
        have effects. For each such op a server would send a message.
        """
        self._losses.assign(tf.cast(tf.stack(losses), self._losses.dtype))
        if len(self.cluster.workers) > 1:  # they are on the first server
            link = self.placement.links[0]
            received = link.to_worker([step, worker_steps] if self.bounded else [step])
            step = tf.reshape(received[0], [])
            worker_steps = received[1] if self.bounded else worker_steps
        self._step.assign(step)
        self._worker_steps.assign(worker_steps)

    def prefetch(self, xs: Sequence[Any]) -> list[list[tf.Tensor]]:
        """Computes the products of the batches of an exchange and keeps entries on the servers.

        Args:
            xs: The features of the batches.

        Returns:
            The products, for each table that is used [B, D] of each batch.
        """
        with tf.device(self.cluster.own_device):
            return self._prefetch(xs, None)[0]

    def _prefetch(
        self, xs: Sequence[Any], values: SharedValues | None
    ) -> tuple[list[list[tf.Tensor]], list[Any]]:
        """Returns the products and the variables that the entries depend on."""
        products, read = self._multiply(xs, values)
        return self._stored.store(products), read

    def _multiply(
        self, xs: Sequence[Any], values: SharedValues | None
    ) -> tuple[list[TableProduct], list[Any]]:
        """Returns the products of joined batches and the variables that the entries depend on.

        The servers send `values` with the products.
        """
        with self.placement.recording(values=values) as products:
            for x in xs:
                self.model(x, training=False)  # TensorFlow prunes what the products do not need
            read = variables_read_by(
                [t for p in products for t in p.entries or () if t is not None]
            )
            products = self.placement.join_batches(len(xs))
        return products, read

    def _train(
        self,
        number: tf.Tensor,
        x: Any,
        y: Any,
        weights: Any,
        products: list[TableProduct] | None,
        values: SharedValues | None,
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        loss, products, gradients = self._backward(x, y, weights, products, values)
        sent = gradients if self.queues is None else []  # the leader combines the others first
        self._send_gradients(self._rates_and_steps(), sent)
        used = [p for p in products if p.gradient is not None]
        by_server = self._gradients_by_server(used)
        not_counted = tf.zeros([0], tf.int64)
        if self.queues is None:
            self._update(used, [[uses] for uses in by_server], gradients)
            return loss, self._count_step(number), self._count_own_step()
        num_rows = tf.cast(tf.shape(tf.nest.flatten(y)[0])[0], tf.float32)
        devices = self.cluster.devices
        own = contributions.of_worker(devices, by_server, gradients, num_rows)
        if self.queues.worker:
            return loss, self.queues.send_to_leader(own, number), not_counted
        collected, same_step = self.queues.collect(own, number)
        with tf.control_dependencies([same_step]):
            begun = self.state.set_updating(True)
        # A step that fails because a worker is missing must not be counted either.
        arrived = [t for tensors in collected.values() for t in tensors[-1]]
        with tf.device(devices[0]):  # tells each device once
            all_arrived = tf.group(*arrived, begun)
        with tf.control_dependencies([all_arrived]):
            self._update(used, *contributions.combine(devices, collected, len(used), gradients))
        with tf.control_dependencies([effects_so_far(devices[0])]):
            step = self._count_step(number)
        with tf.control_dependencies([step]):
            self.state.set_updating(False)
        self.queues.release_followers(step)
        return loss, step, not_counted

    def _train_group(
        self,
        number: tf.Tensor,
        group: Sequence[Batch],
        products: list[TableProduct] | None,
        values: SharedValues | None,
    ) -> tuple[list[tf.Tensor], tf.Tensor, tf.Tensor]:
        """Runs the steps between two exchanges, with products of joined batches.

        Weights in front of a table determine the entries of all batches, and their gradients are
        known after the exchange. Like tables they change once, at the end.
        """
        scalars = self._rates_and_steps()
        exchange = self.placement.exchange_of(products or (), values)
        in_front: list[bool] = []
        losses, dense = [], []
        for i, (x, y, weights) in enumerate(group):
            self._random_states.set(number + i)
            parts = None if products is None else [p.parts[i] for p in products]
            loss, parts, gradients = self._backward(x, y, weights, parts, values, exchange)
            in_front = in_front or self._in_front(parts)
            own = [None if front else g for g, front in zip(gradients, in_front, strict=True)]
            self._update_local(own)
            losses.append(loss)
            dense.append(gradients)
        if products is None:
            products = self.placement.join_batches(len(group))
            if products:
                exchange.determine_products()
        if values is not None:
            values.request()
        join_gradients(products)
        sums = [dense_gradients.add(each) for each in zip(*dense, strict=True)]
        self._send_gradients(scalars, sums)
        used = [p for p in products if p.gradient is not None]
        self._update_tables(used, [[uses] for uses in self._gradients_by_server(used)])
        if self.state.shared_variables:
            self._update_on_servers(sums, len(group))
        else:
            late = [g if front else None for g, front in zip(sums, in_front, strict=True)]
            self._update_in_front(late, len(group), scalars)
        return losses, self._count_step(number, len(group)), self._count_own_step(len(group))

    def _in_front(self, products: list[TableProduct]) -> list[bool]:
        """Returns for each dense weight whether entries depend on it."""
        entries = [t for p in products for t in p.entries or () if t is not None]
        graph = tf.compat.v1.get_default_graph()
        handles = [graph.capture(tf_variable(v).handle) for v in self.state.trained]
        return [depends_on(entries, [handle]) for handle in handles]

    def _update_in_front(
        self, gradients: list[Any], steps: int, scalars: Sequence[tf.Tensor]
    ) -> None:
        """Updates dense weights of this process by sums of gradients of so many steps."""
        components = updates.component_optimizers(self.optimizer)
        for gradient, v in self._trained_pairs(gradients):
            optimizer, variable = updates.optimizer_of(self.optimizer, v), tf_variable(v)
            rate, step = (s[components.index(optimizer)] for s in scalars)
            decay = optimizer.weight_decay_of(v) * steps
            slots = optimizer.slots_of(v)
            updates.update_dense_variable(optimizer, gradient, variable, slots, decay, rate, step)

    def _rates_and_steps(self) -> list[tf.Tensor]:
        """Returns the learning rates and the steps of all optimizers, [optimizers] each."""
        optimizers = updates.component_optimizers(self.optimizer)
        rates = [each.current_learning_rate() for each in optimizers]
        steps = [tf.cast(tf_variable(each.iterations), tf.int64) for each in optimizers]
        return [tf.stack(rates), tf.stack(steps)]

    def _send_gradients(self, scalars: list[tf.Tensor], gradients: Sequence[Any]) -> None:
        """Sends the gradients of the products, and with the first ones what updates need.

        Args:
            scalars: What `_rates_and_steps` has returned.
            gradients: The gradients of `state.trained`, or none. Those that are known are sent.
        """
        optimizers = updates.component_optimizers(self.optimizer)
        self._scalars, self._sent = {}, {}
        dense = self._dense_by_server(gradients)
        # The gradients of an exchange may depend on gradients by values of later ones.
        for exchange in reversed(self.placement.exchanges):
            if self._scalars:
                exchange.send_gradients()
                continue
            parts = [[t for g, _ in d for t in dense_gradients.tensors_of(g)] for d in dense]
            sent = exchange.send_gradients([[*scalars, *p] for p in parts])
            for device, pairs, found in zip(self.cluster.devices, dense, sent, strict=False):
                with tf.device(device):
                    rates, steps = (tf.unstack(t, len(optimizers)) for t in found[:2])
                    for each, rate, step in zip(optimizers, rates, steps, strict=True):
                        self._scalars[id(each), device] = rate, step
                    tensors = iter(found[2:])
                    for gradient, v in pairs:
                        self._sent[id(v)] = dense_gradients.from_tensors(tensors, gradient)

    def _dense_by_server(self, gradients: Sequence[Any]) -> list[list[tuple[Any, Any]]]:
        """Returns, for each server, the gradients of its dense weights known now, and these."""
        remote = {id(s.local): s.remote.device for s in self.state.shared_variables}
        products = [p for exchange in self.placement.exchanges for p in exchange.products]
        parts = [part.values_gradient for p in products for part in p.by_batch]
        later = [gradient.tensor for gradient in parts if gradient is not None]
        found: dict[str, list[tuple[Any, Any]]] = {d: [] for d in self.cluster.devices}
        for gradient, v in zip(gradients, self.state.trained, strict=False):
            if gradient is None or id(v) not in remote:
                continue
            if not depends_on(dense_gradients.tensors_of(gradient), later):
                found[remote[id(v)]].append((gradient, v))
        return list(found.values())

    def _rate_and_step(self, optimizer: Any, device: str) -> tuple[tf.Tensor, Any]:
        """Returns the learning rate and the step of an optimizer, on a server if it has them."""
        return self._scalars.get((id(optimizer), device)) or (
            optimizer.current_learning_rate(),
            optimizer.iterations,
        )

    def _gradients_by_server(self, used: list[TableProduct]) -> list[list[ShardGradient]]:
        """Returns [server][use]: entries and gradients of each product, on the servers."""
        servers = range(len(self.cluster.devices))
        return [[(u.shard_entries[p], u.sent_gradients[p]) for u in used] for p in servers]

    def _pull_state(self) -> SharedValues | None:
        """Reads the dense weights and the step that all workers share; None: there are none."""
        if not self.state.shared_variables:
            return None
        optimizers = updates.component_optimizers(self.optimizer)
        weights = [(s.remote, [tf_variable(s.local)]) for s in self.state.shared_variables]
        steps = (self.state.step, [tf_variable(each.iterations) for each in optimizers])
        return SharedValues([*weights, steps], self.placement.links)

    def _backward(
        self,
        x: Any,
        y: Any,
        weights: Any,
        products: list[TableProduct] | None,
        values: SharedValues | None = None,
        group: Exchange | None = None,
    ) -> tuple[tf.Tensor, list[TableProduct], list[Any]]:
        """Returns the loss, the products with their gradients, and the dense gradients."""
        recording = self.placement.recording
        with tf.GradientTape() as tape, recording(tape, products, values, group) as recorded:
            prediction = self.model(x, training=True)
            loss = self.model.compute_loss(x, y, prediction, weights)
        trained = [tf_variable(v) for v in self.state.trained]
        sources = [*trained, *(p.output for p in recorded)]
        gradients = tape.gradient(loss, sources)
        for product, gradient in zip(recorded, gradients[len(trained) :], strict=True):
            product.gradient = gradient
        for gradient, v in zip(gradients, trained, strict=False):
            if isinstance(gradient, tf.Tensor):
                gradient.set_shape(v.shape)
        return loss, recorded, gradients[: len(trained)]

    def _update(
        self,
        used: list[TableProduct],
        sparse: list[list[list[ShardGradient]]],
        gradients: list[Any],
    ) -> None:
        """Updates tables, by [server][worker][use] entries and gradients, and dense weights."""
        self._update_tables(used, sparse)
        if self.state.shared_variables:
            self._update_on_servers(gradients)
        else:
            self._update_local(gradients)

    def _update_tables(
        self, used: list[TableProduct], sparse: list[list[list[ShardGradient]]]
    ) -> None:
        for table in self.placement.tables:
            uses = [i for i, p in enumerate(used) if p.table is table]
            if not uses:
                continue
            optimizer = updates.optimizer_of(self.optimizer, table)
            for p, workers in enumerate(sparse):
                by_use = [([worker[i] for worker in workers], used[i].binary) for i in uses]
                rate, step = self._rate_and_step(optimizer, table.shards[p].device)
                updates.update_shard(optimizer, table, p, by_use, rate, step)

    def _trained_pairs(self, gradients: list[Any]) -> list[tuple[Any, Any]]:
        pairs = zip(gradients, self.state.trained, strict=True)
        return [(g, v) for g, v in pairs if g is not None]

    def _update_local(self, gradients: list[Any]) -> None:
        """Updates the dense weights of this process, with the slots that this process has."""
        components = updates.component_optimizers(self.optimizer)
        iterations = [each.iterations + 1 for each in components]
        pairs = self._trained_pairs(gradients)
        if pairs:
            self.optimizer.apply_gradients(pairs)
        # An optimizer of tables only would not have counted the step.
        for each, steps in zip(components, iterations, strict=True):
            each.iterations.assign(steps)

    def _update_on_servers(self, gradients: list[Any], steps: int = 1) -> None:
        """Updates the dense weights that workers share, by gradients that are sums of so many."""
        pairs = self._trained_pairs(gradients)
        shared_variables = {id(s.local): s for s in self.state.shared_variables}
        for link in self.placement.links:
            device = link.server
            of_device = [
                (g, v) for g, v in pairs if shared_variables[id(v)].remote.device == device
            ]
            missing = [(g, v) for g, v in of_device if id(v) not in self._sent]
            states = self._states_of_layers(device)
            values = [tf_variable(s.local).read_value() for s in states]
            sent = dense_gradients.send([*(g for g, _ in missing), *values], link)
            found = {**self._sent, **{id(v): g for g, (_, v) in zip(sent, missing, strict=False)}}
            of_device = [(found[id(v)], v) for _, v in of_device]
            self._update_shared(of_device, shared_variables, steps)
            for shared, value in zip(states, sent[len(missing) :], strict=True):
                shared.remote.assign(value)

    def _states_of_layers(self, device: str) -> list[SharedVariable]:
        """The variables of a server that are not trained, such as moving means, for the chief."""
        shared = self.state.shared_variables if self.cluster.is_chief else []
        return [s for s in shared if not s.trained and s.remote.device == device]

    def _update_shared(
        self, pairs: list[tuple[Any, Any]], shared_variables: dict[int, Any], steps: int
    ) -> None:
        for gradient, v in pairs:
            optimizer, shared = updates.optimizer_of(self.optimizer, v), shared_variables[id(v)]
            rate, step = self._rate_and_step(optimizer, shared.remote.device)
            decay = optimizer.weight_decay_of(v) * steps
            updates.update_dense_variable(
                optimizer, gradient, shared.remote, shared.slots, decay, rate, step
            )

    def _count_step(self, number: tf.Tensor, steps: int = 1) -> tf.Tensor:
        with tf.device(self.state.step.device):  # the number needs no message, either
            step = self.state.step.assign_add(tf.constant(steps, tf.int64))
        return step if len(self.cluster.workers) > 1 else number + steps  # without a message

    def _count_own_step(self, steps: int = 1) -> tf.Tensor:
        if not self.bounded:
            return tf.zeros([0], tf.int64)
        counts = self.state.worker_steps
        with tf.device(counts.device):  # without a message
            own = tf.one_hot(self.cluster.index, counts.shape[0], steps, 0, dtype=tf.int64)
        return counts.assign_add(own)

    def forward(self, x: Any, y: Any, weights: Any) -> tuple[tf.Tensor, tf.Tensor]:
        """Evaluates the model on a batch, with the weights that are on the servers now.

        Args:
            x: The features of the batch.
            y: Its labels.
            weights: Its weights, or None.

        Returns:
            The prediction and the loss.
        """
        with tf.device(self.cluster.own_device):
            self.pull()
            with self.placement.recording():
                prediction = self.model(x, training=False)
            return prediction, self.model.compute_loss(x, y, prediction, weights)

    def pull(self) -> None:
        """Reads the dense weights that all workers share, with one message a server."""
        for link in self.placement.links:
            group = [s for s in self.state.shared_variables if s.remote.device == link.server]
            if not group:
                continue
            way = link.without_session() if tf.executing_eagerly() else link
            values = way.to_worker([s.remote.value() for s in group])
            for shared, value in zip(group, values, strict=True):
                tf_variable(shared.local).assign(tf.reshape(value, shared.remote.shape))
