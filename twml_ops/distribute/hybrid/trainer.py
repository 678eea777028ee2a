"""`HybridTrainer`: an ordinary Keras model, its tables on parameter servers."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import tensorflow as tf

from twml_ops import placement
from twml_ops.distribute.hybrid import checkpoint, model_weights, updates
from twml_ops.distribute.hybrid.cluster import Cluster, ClusterError
from twml_ops.distribute.hybrid.gradient_queues import GradientQueues
from twml_ops.distribute.hybrid.state import RunState
from twml_ops.distribute.hybrid.step import StepGraph
from twml_ops.distribute.hybrid.tables import ParameterServerPlacement, RemoteTable
from twml_ops.distribute.hybrid.timeouts import run_with_timeout
from twml_ops.ops._library import require_native

DatasetFn = Callable[[tf.distribute.InputContext], tf.data.Dataset]
OnStep = Callable[[int, tf.Tensor], None]
_AXES = ("row", "column", "auto")
_MODES = ("sync", "async", "hogwild")
_WIRE = ("float32", "bfloat16", "float16")


@dataclasses.dataclass(frozen=True)
class FitResult:
    """What a call of `fit` has done.

    Attributes:
        step: steps of the whole run, all workers together.
        own_steps: of this process in this call.
        losses: of this process' last steps, at most 1000.
        seconds: that this call took, without the first step, which builds the graph.
    """

    step: int
    own_steps: int
    losses: list[float]
    seconds: float


class HybridTrainer:
    """Trains a Keras model whose sparse-linear tables are divided over parameter servers.

    Each server multiplies with its shard, and does backward and update of it, through the ops of
    this package; only ids, values, products and their gradients travel. The dense rest of the model
    runs on workers, each of which drives its own steps on TensorFlow's runtime; there is no
    coordinator.

    `model_builder` is called in every worker and must build the same model; what makes it up
    is not changed. Tables are those of `SparseLinear` and `GroupedSparseLinear` layers. Make the
    trainer before any tensor: it connects this process to the servers, which it waits for.

    Args:
        model_builder: () -> an uncompiled Keras model.
        optimizer: one of `twml_ops.optimizers`, without clipping by norm; a copy of it is used.
        loss: as for `Model.compile`.
        cluster: who takes part; None: as `TF_CONFIG` says, or without it this process alone.
        mode: "sync": the workers' batches are one joined batch. "async": workers do not wait for
            each other. "hogwild": as async, and updates take no locks.
        max_staleness: async: by how many steps a worker may be ahead of the slowest; None: any.
        partition_axis: "row": server p has the rows with id mod P = p, and products are
            added. "column": it has a part of the columns, and products are concatenated. "auto":
            whichever sends less, by the first batch.
        wire_dtype: of products and their gradients as they travel.
        deduplicate: whether an id that a batch repeats is sent once, where that is less.
        pipeline: whether the next batch's products are asked for while this batch is worked on, so
            that the wire and the arithmetic overlap. They are of the tables before this batch's
            update: each step but the first of a `fit` uses products one update old (the weights of
            the dense part are never old). Not for several synchronous workers, nor where a layer
            with weights or state stands before a table.
        checkpoint_dir: where the chief saves all state, and whence it is restored; a folder that
            all servers can reach. None: nowhere.
        checkpoint_every: steps between checkpoints.
        timeout: seconds that a step, or the wait for servers or peers, may take.
        name: of the run; two runs on the same servers need different ones.

    Raises:
        ValueError: an argument out of its range.
        ImportError: stock ops stand in for the op library, which hybrid training needs.
        ClusterError: a server cannot be reached within `timeout`.
    """

    def __init__(
        self,
        model_builder: Callable[[], tf.keras.Model],
        optimizer: Any,
        loss: Any,
        *,
        cluster: Cluster | None = None,
        mode: Literal["sync", "async", "hogwild"] = "sync",
        max_staleness: int | None = None,
        partition_axis: Literal["row", "column", "auto"] = "auto",
        wire_dtype: Literal["float32", "bfloat16", "float16"] = "float32",
        deduplicate: bool = True,
        pipeline: bool = False,
        checkpoint_dir: str | os.PathLike[str] | None = None,
        checkpoint_every: int = 1000,
        timeout: float = 120.0,
        name: str = "hybrid",
    ) -> None:
        for argument, value, known in (
            ("mode", mode, _MODES),
            ("partition_axis", partition_axis, _AXES),
            ("wire_dtype", wire_dtype, _WIRE),
        ):
            if value not in known:
                raise ValueError(f"{argument} must be one of {known}, got {value!r}")
        if max_staleness is not None and (mode == "sync" or max_staleness < 0):
            raise ValueError(
                f"max_staleness must be None or, unless mode is sync, at least 0, got "
                f"{max_staleness!r} in mode {mode}"
            )
        if checkpoint_every < 1:
            raise ValueError(f"checkpoint_every must be at least 1, got {checkpoint_every}")
        if not timeout > 0:
            raise ValueError(f"timeout must be positive, got {timeout}")
        require_native("HybridTrainer")
        updates.check_optimizer(optimizer)
        self.cluster = Cluster.from_environment() if cluster is None else cluster
        workers = len(self.cluster.workers)
        if pipeline and mode == "sync" and workers > 1:
            raise ValueError(
                "pipeline=True needs one worker, or a mode in which workers do not wait for each "
                f'other, got mode="sync" and {workers} workers'
            )
        self.mode = mode
        self.max_staleness = max_staleness
        self._builder = model_builder
        self._loss = loss
        self._axis = partition_axis
        self._timeout = timeout
        self._checkpoint_dir = None if checkpoint_dir is None else str(checkpoint_dir)
        self._checkpoint_every = checkpoint_every
        self._wire_dtype = tf.as_dtype(wire_dtype)
        self._deduplicate = deduplicate
        self._pipeline = pipeline
        self._prefix = f"twml/{name}"
        self.model: Any = None
        self.state: Any = None
        settings = optimizer.get_config()
        run_with_timeout(timeout + 5, "connecting", self.cluster.connect, timeout)
        # Variables that were made before the servers were connected cannot be in one graph with
        # them, and an optimizer has some.
        self.optimizer = type(optimizer).from_config(settings)
        if mode == "hogwild":
            for each in updates.component_optimizers(self.optimizer):
                each.concurrency = "hogwild"

    # What users call ----------------------------------------------------------------------------

    def fit(self, dataset_fn: DatasetFn, steps: int, on_step: OnStep | None = None) -> FitResult:
        """Trains until the whole run has done `steps` steps.

        Args:
            dataset_fn: `tf.distribute.InputContext` -> batches (x, y) or (x, y, weights) of this
                worker, which are repeated as long as needed. The context has the number of
                workers and which one this is.
            steps: of all workers together; a synchronous step of all counts once.
            on_step: called after each of this process' steps with the run's step and the loss.

        Raises:
            ClusterError: a server or another worker is gone or silent. Started anew, this process
                goes on from what the servers hold, or from the last checkpoint.
        """
        count = len(self.cluster.workers)
        context = tf.distribute.InputContext(count, self.cluster.index, count)
        batches = _repeat(dataset_fn(context))
        batch = next(batches)
        self.build(batch)
        done = int(self._call("reading the step", self.state.step.numpy))
        own, start = 0, 0.0
        losses: list[tf.Tensor] = []
        next_batch, prefetched = None, None
        while done < steps:
            if self._pipeline:
                if prefetched is None:
                    prefetched = self._call("prefetching products", self._prefetch, batch[0])
                next_batch = next(batches) if done + 1 < steps else batch
            result = self._run_step(f"step {done + 1}", batch, prefetched, next_batch)
            if result is None:
                continue  # the same batch, in a new generation
            loss, step, worker_steps, prefetched = result
            before, done = done, step
            own += 1
            self._maybe_save(before, done, steps)
            losses = [*losses[-999:], loss]
            if on_step is not None:
                on_step(done, loss)
            if own == 1:
                start = time.perf_counter()
            if done < steps:
                batch = next(batches) if next_batch is None else next_batch
                self._wait_for_slow_workers(worker_steps)
        seconds = time.perf_counter() - start if own else 0.0
        return FitResult(done, own, [float(x) for x in losses], seconds)

    def evaluate(self, dataset: Any, metrics: Any = ()) -> dict[str, float]:
        """Loss and metrics on `dataset`, batches as in `fit`, tables staying where they are."""
        mean = tf.keras.metrics.Mean(name="loss")
        for i, batch in enumerate(dataset):
            if not i:
                self.build(_unpack_batch(batch))
            x, y, weights = _unpack_batch(batch)
            prediction, loss = self._call("an evaluation step", self._forward, x, y, weights)
            mean.update_state(loss, tf.shape(y)[0])
            for metric in metrics:
                metric.update_state(y, prediction, weights)
        return {m.name: float(m.result()) for m in (mean, *metrics)}

    def export(self, path: str | os.PathLike[str] | None = None) -> tf.keras.Model:
        """The trained model as an ordinary Keras model in this process, its tables whole.

        Args:
            path: of a `.keras` file to write too; None: none.

        Raises:
            ClusterError: a server is gone or silent.
        """
        plain = self._builder()
        self._call("reading dense weights", self._graph.pull)
        self._call("reading tables", model_weights.copy_weights, self.model, plain)
        if path is not None:
            plain.save(str(Path(path)))
        return plain

    def save(self) -> str:
        """Writes a checkpoint of the run, and returns its folder; needs `checkpoint_dir`."""
        if self._checkpoint_dir is None:
            raise ValueError("checkpoint_dir must be given to save, got None")
        return self._call("saving", checkpoint.save, self.state, self._checkpoint_dir)

    # Building -----------------------------------------------------------------------------------

    def build(self, batch: Any) -> None:
        """Connects, builds the model and, as the chief, fills the servers; once."""
        if self.model is not None:
            return
        x, *_ = _unpack_batch(batch)
        cluster = self.cluster
        self.placement = ParameterServerPlacement(
            self._prefix, cluster.devices, self._wire_dtype, self._deduplicate
        )
        with placement.placement_scope(self.placement):
            model = self._builder()
            self.placement.entries.clear()
            model(x, training=False)  # creates the weights of any model, and shows the batch
        model.compile(loss=self._loss)
        share_dense = len(cluster.workers) > 1
        what = (self._prefix, cluster, self.placement.tables, model, self.optimizer, share_dense)
        self.state = self._call("naming the variables", RunState, *what)
        if not share_dense:
            self.optimizer.build(model.trainable_variables)
        for each in updates.component_optimizers(self.optimizer):
            _ = each.iterations
        self.model = model
        several = share_dense and self.mode == "sync"
        self._queues = GradientQueues(cluster, self.state) if several else None
        self._call("joining the run", self._attach)
        self._graph = StepGraph(
            model,
            self.optimizer,
            cluster,
            self.state,
            self.placement,
            self._queues,
            bounded=self.max_staleness is not None,
        )
        self._trace()

    def _attach(self) -> None:
        state, folder = self.state, self._checkpoint_dir
        if not self.cluster.is_chief:
            state.await_marker(self._timeout)
            state.create(state.read_layout())
        elif state.shared_variables and state.marker():
            state.create(state.read_layout())
        else:
            state.invalidate()
            state.create(self._by_row())
            state.write_layout()
            saved = None if folder is None else checkpoint.latest(folder)
            if saved is None:
                state.initialize()
            else:
                checkpoint.restore(state, saved)
            state.reset_counters()
            state.validate()
        if self._queues is not None and self.cluster.job == "worker":
            self._queues.start_generation()

    def _trace(self) -> None:
        self._step = tf.function(self._graph.train, reduce_retracing=True, autograph=False)
        self._prefetch = tf.function(self._graph.prefetch, reduce_retracing=True, autograph=False)
        self._forward = tf.function(self._graph.forward, reduce_retracing=True, autograph=False)

    def _by_row(self) -> list[bool]:
        servers = len(self.cluster.devices)
        return [_by_row(t, servers, self._axis, self.placement) for t in self.placement.tables]

    # Steps --------------------------------------------------------------------------------------

    def _run_step(self, what: str, batch: Any, prefetched: Any, next_batch: Any) -> Any:
        """What `StepGraph.train` returns; None if the workers have to begin it anew."""
        x = None if next_batch is None else next_batch[0]
        try:
            return self._call(what, lambda: _fetch_counters(self._step(*batch, prefetched, x)))
        except ClusterError:
            if self._queues is None:
                raise
            if not self._call("joining the others again", self._queues.rejoin):
                raise
            self._trace()
            return None

    def _wait_for_slow_workers(self, counts: Any) -> None:
        """With bounded staleness: waits while too far ahead of the slowest worker."""
        if self.max_staleness is None or len(self.cluster.workers) == 1:
            return
        deadline = time.monotonic() + self._timeout
        while counts[self.cluster.index] - counts.min() > self.max_staleness:
            if time.monotonic() > deadline:
                raise ClusterError(
                    f"worker {int(counts.argmin())} has done {counts.min()} steps, worker "
                    f"{self.cluster.index} {counts[self.cluster.index]}, and max_staleness is "
                    f"{self.max_staleness}: it has not moved for {self._timeout:g} s"
                )
            time.sleep(0.002)
            counts = self._call("reading the steps", self.state.worker_steps.numpy)

    def _maybe_save(self, before: int, done: int, steps: int) -> None:
        """A checkpoint, if it is time."""
        if self._checkpoint_dir is None or not self.cluster.is_chief:
            return
        every = self._checkpoint_every
        if done // every > before // every or done >= steps:
            self.save()

    def _call(self, what: str, function: Any, *args: Any) -> Any:
        if not self.cluster.servers:
            return function(*args)
        return run_with_timeout(self._timeout, what, function, *args)


def _by_row(table: RemoteTable, servers: int, axis: str, remote: ParameterServerPlacement) -> bool:
    """Whether to divide by row; if that is open, by what the first batch would send."""
    columns = table.shape[1]
    if axis == "column" and columns % servers:
        raise ValueError(
            f'partition_axis="column" needs units that {servers} servers divide, got {columns} '
            f"of {table.name}"
        )
    if axis != "auto":
        return axis == "row"
    if servers == 1 or columns % servers:
        return True
    seen = [(int(k), b, v) for t, k, b, v in remote.entries if t is table]
    entries = sum(k * (8 if v else 4) for k, _, v in seen)
    products = sum(int(b) for _, b, _ in seen) * columns * remote.wire_dtype.size
    # The worker sends entries and gradients: to one server or to all; it gets products likewise.
    return entries + 2 * servers * products <= servers * entries + 2 * products


def _fetch_counters(result: Any) -> Any:
    """What a step returns, its counts brought here while the time limit runs."""
    loss, step, worker_steps, *more = result
    return loss, int(step), worker_steps.numpy(), *more


def _unpack_batch(batch: Any) -> tuple[Any, Any, Any]:
    x, y, *weights = batch
    return x, y, weights[0] if weights else None


def _repeat(dataset: Any) -> Iterator[Any]:
    while True:
        some = False
        for batch in dataset:
            some = True
            yield _unpack_batch(batch)
        if not some:
            raise ValueError("dataset_fn must give at least one batch, got none")
