"""The graph of a training step, over the devices of this process and of all servers.

`StepGraph.train` has the order of a step: the products with tables (`placement`, `products`), the
messages with the servers (`exchange`), the gradients of the dense part, what synchronous workers
wait for (`synchronous_workers`), and the updates (`updates`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from twml_ops.distribute.parameter_server import micro_batches, synchronous_workers
from twml_ops.distribute.parameter_server.cluster import Cluster
from twml_ops.distribute.parameter_server.exchange import Exchange, SharedValues
from twml_ops.distribute.parameter_server.failures import RandomStates
from twml_ops.distribute.parameter_server.flat_batches import Batch
from twml_ops.distribute.parameter_server.layer_states import LayerStates, StateChange
from twml_ops.distribute.parameter_server.placement import ParameterServerPlacement
from twml_ops.distribute.parameter_server.products import (
    StoredProducts,
    TableProduct,
    check_only_read,
    depends_on,
    join_gradients,
    variables_read_by,
)
from twml_ops.distribute.parameter_server.state import (
    RunState,
    SharedVariable,
    component_optimizers,
)
from twml_ops.distribute.parameter_server.synchronous_workers import GradientQueues, effects_so_far
from twml_ops.distribute.parameter_server.updates import (
    ShardGradients,
    Updates,
    add_gradients,
)
from twml_ops.ops._tape import tf_variable


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
        seeds: The seeds of the random layers, as `RunState.read_seeds` returns them.
        micro_batches: The micro-batches of a step of all workers; None: each worker has one batch.
    """

    model: tf.keras.Model
    optimizer: Any
    cluster: Cluster
    state: RunState
    placement: ParameterServerPlacement
    queues: GradientQueues | None
    bounded: bool
    exchange_every: int
    seeds: Sequence[int]
    micro_batches: int | None = None

    def __post_init__(self) -> None:
        """Makes what the graph of each step uses, and variables of this process."""
        prefix = f"{self.state.prefix}/ahead/{self.cluster.index}"
        self._stored = StoredProducts(prefix, self.placement.in_process)
        args = self.optimizer, self.cluster, self.state, self.placement, self.micro_batches
        self._updates = Updates(*args)
        self._random_states = RandomStates(self.model, self.seeds)
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
            batches: For each step, the features of the batch, its labels, and its weights or None;
                with micro-batches, the ones of this worker for each step.
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
        if self.micro_batches is not None:
            every = self.micro_batches // len(self.cluster.workers)
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
                if self.micro_batches is not None:
                    loss, step, worker_steps = self._train_micro_batches(first, group, values)
                    losses.append(loss)
                elif len(group) == 1:
                    self._random_states.set(first, self.cluster.index)
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
        states = self._layer_states(values)
        loss, products, gradients = self._backward(x, y, weights, products, values)
        after = [] if states is None else states.see_batch()
        sent: list[Any] = []  # the leader of synchronous workers combines theirs first
        changes: list[StateChange] = []
        if self.queues is None:
            sent, changes = gradients, [] if states is None else states.changes()
        self._updates.send_gradients(number, self._updates.rates_and_steps(), sent, changes)
        used = [p for p in products if p.gradient is not None]
        by_server = self._updates.gradients_by_server(used)
        not_counted = tf.zeros([0], tf.int64)
        if self.queues is None:
            self._updates.update(used, by_server, gradients, changes)
            return loss, self._count_step(number), self._count_own_step()
        num_rows = tf.cast(num_examples(y), tf.float32)
        return (
            loss,
            self._update_together(number, used, by_server, gradients, num_rows, states, after),
            not_counted,
        )

    def _train_micro_batches(
        self, number: tf.Tensor, group: Sequence[Batch], values: SharedValues | None
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Runs a step with the micro-batches of this worker, which have one exchange."""
        assert values is not None
        exchange = self.placement.exchange_of((), values)
        states = LayerStates(self.model, self.state.shared_variables, values)
        first = self.cluster.index * len(group)
        losses, dense = [], []
        for i, (x, y, weights) in enumerate(group):
            self._random_states.set(number, first + i)
            loss, own, gradients = self._backward(x, y, weights, None, values, exchange)
            micro_batches.check_micro_batch(states.changed(), own)
            losses.append(loss)
            dense.append(gradients)
        products = self.placement.join_batches(len(group))
        if products:
            exchange.determine_products()
        values.request()
        if len(group) > 1:
            join_gradients(products)
        sizes = tf.cast(tf.stack([num_examples(y) for _, y, _ in group]), tf.int64)
        self._updates.send_gradients(number, [*self._updates.rates_and_steps(), sizes], [])
        used = [p for p in products if p.gradient is not None]
        by_server = self._updates.gradients_by_server(used)
        sums = micro_batches.dense_sums(dense, sizes)
        num_rows = tf.cast(tf.reduce_sum(sizes), tf.float32)
        step = self._update_together(number, used, by_server, sums, num_rows)
        return tf.reduce_mean(tf.stack(losses)), step, tf.zeros([0], tf.int64)

    def _update_together(
        self,
        number: tf.Tensor,
        used: list[TableProduct],
        by_server: Sequence[ShardGradients],
        gradients: list[Any],
        num_rows: tf.Tensor,
        states: LayerStates | None = None,
        after: Sequence[tf.Tensor] = (),
    ) -> tf.Tensor:
        """Contributes to the update of synchronous workers, which the leader makes.

        Returns:
            The run's step after the update.
        """
        assert self.queues is not None
        devices = self.cluster.devices
        own = synchronous_workers.contributions_of(devices, by_server, gradients, num_rows, after)
        if self.queues.worker:
            return self.queues.send_to_leader(own, number)
        collected, same_step = self.queues.collect(own, number)
        with tf.control_dependencies([same_step]):
            begun = self.state.set_updating(True)
        # A step that fails because a worker is missing must not be counted either.
        arrived = [t for tensors in collected.values() for t in tensors[-1]]
        with tf.device(devices[0]):  # tells each device once
            all_arrived = tf.group(*arrived, begun)
        with tf.control_dependencies([all_arrived]):
            joined = synchronous_workers.combine(
                devices, collected, by_server, gradients, after, self.micro_batches is not None
            )
            changes = [] if states is None else states.join(joined.states, joined.shares)
            self._updates.update(used, joined.sparse, joined.gradients, changes)
        with tf.control_dependencies([effects_so_far(devices[0])]):
            step = self._count_step(number)
        with tf.control_dependencies([step]):
            self.state.set_updating(False)
        self.queues.release_followers(step)
        return step

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
        scalars = self._updates.rates_and_steps()
        exchange = self.placement.exchange_of(products or (), values)
        states = self._layer_states(values)
        in_front: list[bool] = []
        losses, dense = [], []
        for i, (x, y, weights) in enumerate(group):
            self._random_states.set(number + i, self.cluster.index)
            own = None if products is None else [p.batches[i] for p in products]
            loss, own, gradients = self._backward(x, y, weights, own, values, exchange)
            if states is not None:
                states.see_batch()
            in_front = in_front or self._in_front(own)
            now = [None if front else g for g, front in zip(gradients, in_front, strict=True)]
            self._updates.update_local(now)
            losses.append(loss)
            dense.append(gradients)
        if products is None:
            products = self.placement.join_batches(len(group))
            if products:
                exchange.determine_products()
        if values is not None:
            values.request()
        join_gradients(products)
        sums = [add_gradients(each) for each in zip(*dense, strict=True)]
        changes = [] if states is None else states.changes()
        self._updates.send_gradients(number, scalars, sums, changes)
        used = [p for p in products if p.gradient is not None]
        self._updates.update_tables(used, self._updates.gradients_by_server(used))
        if self.state.shared_variables:
            self._updates.update_on_servers(sums, len(group), changes=changes)
        else:
            late = [g if front else None for g, front in zip(sums, in_front, strict=True)]
            self._updates.update_in_front(late, len(group), scalars)
        return losses, self._count_step(number, len(group)), self._count_own_step(len(group))

    def _layer_states(self, values: SharedValues | None) -> LayerStates | None:
        """Returns the states of layers to which all workers contribute; None: one has them."""
        if values is None:
            return None
        return LayerStates(self.model, self.state.shared_variables, values)

    def _in_front(self, products: list[TableProduct]) -> list[bool]:
        """Returns for each dense weight whether entries depend on it."""
        entries = [t for p in products for t in p.entries or () if t is not None]
        graph = tf.compat.v1.get_default_graph()
        handles = [graph.capture(tf_variable(v).handle) for v in self.state.trained]
        return [depends_on(entries, [handle]) for handle in handles]

    def _pull_state(self) -> SharedValues | None:
        """Reads the dense weights and the step that all workers share; None: there are none."""
        if not self.state.shared_variables:
            return None
        optimizers = component_optimizers(self.optimizer)
        weights = [(s.remote, [tf_variable(s.local)]) for s in self.state.shared_variables]
        iterations = [tf_variable(each.iterations) for each in optimizers]
        values = SharedValues([*weights, (self.state.step, iterations)], self.placement.links)
        for each in iterations if self.state.steps_before else ():
            each.assign_add(tf.cast(self.state.steps_before, each.dtype))
        return values

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
        of_modules = {id(tf_variable(s.local)) for s in self.state.module_weights}
        for gradient, v in zip(gradients, trained, strict=False):
            if gradient is not None and id(v) in of_modules:
                raise ValueError(
                    f"{v.name} is a weight of a tower, which only its server trains; expected a "
                    "loss that depends on it by the output of the tower alone"
                )
            if isinstance(gradient, tf.Tensor):
                gradient.set_shape(v.shape)
            elif gradient is not None:
                gradient.values.set_shape([None, *v.shape[1:]])
        return loss, recorded, gradients[: len(trained)]

    def _count_step(self, number: tf.Tensor, steps: int = 1) -> tf.Tensor:
        device = self.state.step.device
        guards = self.state.worker_token.guards(device)
        with tf.device(device), tf.control_dependencies(guards):  # the number needs no message
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
        prediction = self.outputs(x, self.model)
        with tf.device(self.cluster.own_device):
            return prediction, self.model.compute_loss(x, y, prediction, weights)

    def outputs(self, x: Any, model: Any) -> Any:
        """Calls a model of layers of the trained one, with the weights on the servers now."""
        with tf.device(self.cluster.own_device):
            self.pull(self.state.shared_variables)
            with self.placement.recording():
                return model(x, training=False)

    def pull(self, weights: Sequence[SharedVariable]) -> None:
        """Reads dense weights that are on servers, with one message a server.

        Args:
            weights: The weights, whose variables of this process get the values.
        """
        for link in self.placement.links:
            group = [s for s in weights if s.remote.device == link.server]
            if not group:
                continue
            way = link.without_session() if tf.executing_eagerly() else link
            values = way.to_worker([s.remote.value() for s in group])
            for shared, value in zip(group, values, strict=True):
                tf_variable(shared.local).assign(tf.reshape(value, shared.remote.shape))


def num_examples(labels: Any) -> tf.Tensor:
    """Returns the number of examples of a batch, an int32 scalar."""
    return tf.shape(tf.nest.flatten(labels)[0])[0]
