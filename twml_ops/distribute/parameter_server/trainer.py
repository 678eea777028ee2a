"""`HybridTrainer`: trains an ordinary Keras model with its tables on parameter servers.

It builds the model, joins the run, calls the graph of a step (`step`) in a loop, and evaluates,
exports and saves the model.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import tensorflow as tf

from twml_ops import _keras, placement
from twml_ops.checkpoint import CheckpointError
from twml_ops.distribute.parameter_server import (
    checkpoint,
    encoding,
    modules,
    restore,
    transport,
)
from twml_ops.distribute.parameter_server import (
    micro_batches as micro,
)
from twml_ops.distribute.parameter_server.clipping import clips_by_norm
from twml_ops.distribute.parameter_server.cluster import Cluster, ClusterError
from twml_ops.distribute.parameter_server.dynamic_rows import check_options
from twml_ops.distribute.parameter_server.failures import (
    DatasetFn,
    WorkerBatches,
    join_run,
    run_with_timeout,
)
from twml_ops.distribute.parameter_server.flat_batches import (
    FlatBatch,
    FlatBatches,
    StepCalls,
    unpack_batch,
)
from twml_ops.distribute.parameter_server.optimizer_slots import (
    SavedSlots,
    assign_slots,
    read_slots,
)
from twml_ops.distribute.parameter_server.placement import ParameterServerPlacement
from twml_ops.distribute.parameter_server.state import RunState, component_optimizers
from twml_ops.distribute.parameter_server.step import StepGraph
from twml_ops.distribute.parameter_server.synchronous_workers import OTHER_STEP, GradientQueues
from twml_ops.distribute.parameter_server.table_plan import (
    REPLICATED_ROWS,
    TablePlan,
    resources_of,
)
from twml_ops.distribute.parameter_server.tables import copy_model_weights, find_frozen_tables
from twml_ops.distribute.parameter_server.updates import check_optimizer
from twml_ops.distribute.parameter_server.weight_averages import WeightAverages
from twml_ops.ops._library import require_native
from twml_ops.planning import ShardingPlan

OnStep = Callable[[int, float], None]
_MODES = ("sync", "async", "hogwild")
WireDtype = Literal["float32", "bfloat16", "float16", "int8"]
_MAX_LOSSES = 1000
_POLL_SECONDS = 0.002
_FINISH_POLL_SECONDS = 0.1
_TOKEN_SECONDS = 5.0


@dataclasses.dataclass(frozen=True)
class FitResult:
    """The result of a call of `HybridTrainer.fit`.

    Attributes:
        step: The steps of the whole run, all workers together.
        own_steps: The steps that this process has done in this call.
        losses: The losses of this process' last steps, at most 1000.
        seconds: The time of this call in seconds, without its first steps, which trace the graph.
    """

    step: int
    own_steps: int
    losses: list[float]
    seconds: float


class HybridTrainer:
    """Trains a Keras model whose sparse-linear tables are sharded over parameter servers.

    Each server multiplies with its shard, computes the gradient of it and updates it, by the ops of
    this package. Only ids, values, products and their gradients are sent. The dense part of the
    model runs on workers, each of which runs its own steps on TensorFlow's runtime. There is no
    coordinator.

    The tables are the kernels of `SparseLinear`, `GroupedSparseLinear`, `FieldEmbedding` and
    `DynamicSparseLinear` layers. The servers also compute and train the modules of `research.Tower`
    layers, each where the table of the tower is, which is whole on one server; `pipeline` and
    `exchange_every` > 1 are then not available. Create the trainer before any tensor: it connects
    this process to the servers and waits until they are reachable.

    Args:
        model_builder: () -> an uncompiled Keras model. It is called in every worker and must build
            the same model each time.
        optimizer: An optimizer of `twml_ops.optimizers`, of which the trainer uses a copy. Each
            asynchronous worker clips its gradients by their own norm.
        loss: The loss, as for `Model.compile`.
        cluster: The cluster; None: as `TF_CONFIG` describes it, or without `TF_CONFIG` this process
            alone.
        mode: "sync": a step has the batches of all workers. "async": workers do not wait for each
            other. "hogwild": as "async", and updates take no locks (Niu et al., "Hogwild!", 2011).
        max_staleness: In the modes "async" and "hogwild", the number of steps by which a worker may
            be ahead of the slowest; None: any.
        partition_axis: The axis by which all tables are divided. "row": server p of P has the rows
            with id mod P = p, and the servers' products are added. "column": each server has a
            range of columns, and the products are concatenated. "auto": for each table the axis
            with which a step with the first batch is predicted to be shorter.
        plan: How each table is divided, and over which servers: the path of a plan that `twml-ops
            plan --out-plan` has written, whose tables have the names "layer/weight"; or the result
            of `planning.shard`, whose tables are the ones of the model in the order in which its
            layers create them. None: `partition_axis` says it.
        replicated_rows: With `partition_axis="auto"` and without a `plan`, tables with at most so
            many rows are not on the servers. Each worker has a copy, as of dense weights, so that
            the servers need no time for their products. Tables whose rows ids get in the training
            (`DynamicSparseLinear`), and tables that are created after one, are on servers.
        wire_dtype: The type in which products are sent to workers: "float32", or "bfloat16" or
            "float16", or "int8" with a float32 scale for each row, rounded to the nearest.
        gradient_wire_dtype: The type in which the gradients of products are sent to servers; None:
            `wire_dtype`. For "int8" they are rounded at random, so that they are right on average;
            see `ops.rows_to_int8`.
        deduplicate: Whether an id that occurs several times in a batch is sent once if that is
            smaller.
        pipeline: Whether the products of the next batch are computed during the current step, so
            that communication and computation overlap. These products are of the tables before the
            current update: each step of a `fit`, except the first, uses products that are one
            update old. The dense weights are never old. Not available for several synchronous
            workers, nor for models with a layer before a table that has trained weights or state.
        exchange_every: Steps of a worker between two exchanges with the servers, k, as in Downpour
            SGD (Dean et al., "Large Scale Distributed Deep Networks", 2012). The products of k
            batches are requested together. The worker makes k steps with them, in which its dense
            weights change, but not the products, and then sends the gradients together. The servers
            update each table once, with the sum of the gradients of the k mean losses and with the
            learning rate of the first step, and so are weights in front of a table. The last steps
            of a `fit`, fewer than k, have an exchange each. k > 1 is not available for several
            synchronous workers, for models in which a table is behind another one, nor for
            optimizers that clip by norm.
        micro_batches: In the mode "sync", the number of micro-batches of a step of all workers, M:
            a power of two that is a multiple of the number of workers, W. Each worker computes
            M / W consecutive micro-batches. Gradients are added in a binary tree over the numbers
            of the micro-batches, and products over classes of rows, so that the bits of all weights
            and slots depend neither on W nor on the servers and the plan. Not available with
            `pipeline`, `exchange_every` > 1, types of messages other than "float32", optimizers
            that clip by norm, nor for models with trained layers in front of a table, tables behind
            a table, states that batches change, `DynamicSparseLinear` or towers. None: each worker
            has one batch, and the bits depend on W.
        steps_per_execution: Steps of a call of TensorFlow, a multiple of `exchange_every`; None:
            `exchange_every`. With 8 or more, the CPU time of a call is small beside that of its
            steps. The graph has so many copies of a step, and tracing it takes so many times
            longer. Checkpoints are written, `on_step` is called, failures of other workers are
            handled and slow workers are waited for between two calls. The last steps of a `fit`,
            fewer than one call makes, are calls of `exchange_every` steps, and then of one step.
        checkpoint_dir: The folder for checkpoints, which the chief saves and restores; all servers
            must be able to reach it. None: there are no checkpoints.
        checkpoint_every: Steps between two checkpoints.
        checkpoint_keep: How many checkpoints are kept, at least 1. The ones that these are based on
            are kept as well.
        checkpoint_facts: Facts about the run, as JSON has them, equal in all its processes. A
            checkpoint with other facts is refused, and servers that still have the state of a run
            with other facts start anew. None: nothing is compared.
        facts_may_differ: Names of facts in which a checkpoint may differ.
        checkpoint_policy: Whether checkpoints have all rows of the tables or those that changed;
            see `twml_ops.checkpoint.TablePolicy`.
        storage: Where the servers have the rows of large tables, with their slots: in files in a
            folder `server-NUMBER` of the folder `storage.path`, on the host of each server, with a
            cache of `cache_rows` rows in memory. A table is large if a part of it has more rows
            than the cache. Rows are not read ahead. Not available in the mode "hogwild". None: all
            tables are in the memory of the servers.
        saved_slots: The optimizer's slots of an earlier training, with which the run begins if it
            has no checkpoint; None: the slots are new.
        timeout: Limit in seconds for a step, and for waiting for servers or workers.
        name: The name of the run. Two runs on the same servers need different names.

    Attributes:
        cluster: The cluster.
        mode: The mode.
        max_staleness: The bound of staleness.
        optimizer: The trainer's copy of the optimizer.
        model: The model, with tables on the servers; None before the first `fit` or `evaluate`.
        state: The shared state of the run; None like `model`.

    Raises:
        ValueError: An argument is invalid.
        ImportError: The op library, which hybrid training needs, is not loaded.
        ClusterError: A server cannot be reached within `timeout` seconds.
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
        plan: ShardingPlan | str | os.PathLike[str] | None = None,
        replicated_rows: int = REPLICATED_ROWS,
        wire_dtype: WireDtype = "float32",
        gradient_wire_dtype: WireDtype | None = None,
        deduplicate: bool = True,
        pipeline: bool = False,
        exchange_every: int = 1,
        micro_batches: int | None = None,
        steps_per_execution: int | None = None,
        checkpoint_dir: str | os.PathLike[str] | None = None,
        checkpoint_every: int = 1000,
        checkpoint_keep: int = checkpoint.MAX_TO_KEEP,
        checkpoint_facts: Mapping[str, Any] | None = None,
        facts_may_differ: Sequence[str] = (),
        checkpoint_policy: Literal["full", "one-shot", "consecutive", "intermittent"] = "full",
        storage: placement.Tiered | None = None,
        saved_slots: SavedSlots | None = None,
        timeout: float = 120.0,
        name: str = "hybrid",
    ) -> None:
        for argument, value, known in (
            ("mode", mode, _MODES),
            ("wire_dtype", wire_dtype, encoding.WIRE_DTYPES),
            ("gradient_wire_dtype", gradient_wire_dtype, (None, *encoding.WIRE_DTYPES)),
        ):
            if value not in known:
                raise ValueError(f"{argument} must be one of {known}, got {value!r}")
        if max_staleness is not None and (mode == "sync" or max_staleness < 0):
            raise ValueError(
                'max_staleness must be None or, unless mode is "sync", at least 0, got '
                f'{max_staleness!r} with mode="{mode}"'
            )
        if exchange_every < 1:
            raise ValueError(f"exchange_every must be at least 1, got {exchange_every}")
        if steps_per_execution is None:
            steps_per_execution = exchange_every
        if steps_per_execution < 1 or steps_per_execution % exchange_every:
            raise ValueError(
                f"steps_per_execution must be a positive multiple of exchange_every, "
                f"{exchange_every}, got {steps_per_execution}"
            )
        if checkpoint_every < 1:
            raise ValueError(f"checkpoint_every must be at least 1, got {checkpoint_every}")
        if checkpoint_keep < 1:
            raise ValueError(f"checkpoint_keep must be at least 1, got {checkpoint_keep}")
        if not timeout > 0:
            raise ValueError(f"timeout must be positive, got {timeout}")
        require_native("HybridTrainer")
        check_optimizer(optimizer, exchange_every)
        hogwild = any(e.concurrency == "hogwild" for e in component_optimizers(optimizer))
        if storage is not None and (mode == "hogwild" or hogwild):
            raise ValueError(
                'storage needs updates with locks, expected mode "sync" or "async" and optimizers '
                f'with concurrency="locked", got mode="{mode}"'
            )
        self.cluster = Cluster.from_environment() if cluster is None else cluster
        workers = len(self.cluster.workers)
        for option, is_used in (
            ("pipeline=True", pipeline),
            (f"exchange_every={exchange_every}", exchange_every > 1),
        ):
            if is_used and mode == "sync" and workers > 1:
                raise ValueError(
                    f'{option} needs one worker, or mode="async" or "hogwild", got mode="sync" and '
                    f"{workers} workers"
                )
        gradient = gradient_wire_dtype or wire_dtype
        self._wire = encoding.WireTypes(tf.as_dtype(wire_dtype), tf.as_dtype(gradient))
        if micro_batches is not None:
            options = mode, self._wire, pipeline, exchange_every, optimizer
            micro.check_options(micro_batches, workers, *options)
        self._micro_batches = micro_batches
        self.mode = mode
        self.max_staleness = max_staleness
        self._builder = model_builder
        self._loss = loss
        self._table_plan = TablePlan(
            partition_axis, plan, len(self.cluster.devices), replicated_rows
        )
        self._timeout = timeout
        self._checkpoint_dir = None if checkpoint_dir is None else str(checkpoint_dir)
        self._checkpoint_every, self._checkpoint_keep = checkpoint_every, checkpoint_keep
        self._facts = None if checkpoint_facts is None else json.loads(json.dumps(checkpoint_facts))
        self._facts_may_differ = tuple(facts_may_differ)
        changes = checkpoint.ChangedRows(checkpoint_policy)
        self._changes = None if checkpoint_policy == "full" else changes
        self._deduplicate = deduplicate
        self._pipeline = pipeline
        self._exchange_every = exchange_every
        self._steps_per_execution = steps_per_execution
        self._saved_slots, self._storage = saved_slots, storage
        self._prefix = f"twml/{name}"
        if self._facts is not None:  # servers may outlive a run
            digest = hashlib.sha256(json.dumps(self._facts, sort_keys=True).encode()).hexdigest()
            self._prefix += f"-{digest[:16]}"
        self._fit_until = 0  # the steps of the run up to which earlier calls of fit have trained
        self._averages: WeightAverages | None = None
        self._flat_batches = FlatBatches()  # of all calls of fit, which share the traced graphs
        self.model: Any = None
        self.state: Any = None
        config = optimizer.get_config()
        run_with_timeout(timeout + 5, "connecting", self.cluster.connect, timeout)
        # TensorFlow does not allow variables that were created before the servers were connected
        # in a graph with theirs, and an optimizer has variables.
        self.optimizer = type(optimizer).from_config(config)
        if mode == "hogwild":
            for each in component_optimizers(self.optimizer):
                each.concurrency = "hogwild"

    def fit(
        self,
        dataset_fn: DatasetFn,
        steps: int,
        on_step: OnStep | None = None,
        *,
        begin: int | None = None,
        save_last: bool = True,
    ) -> FitResult:
        """Trains until the whole run has done `steps` steps.

        Args:
            dataset_fn: `tf.distribute.InputContext` -> a dataset of batches (x, y) or
                (x, y, weights) for this worker, which is repeated as often as needed. The context
                has the number of workers and the number of this worker as `num_input_pipelines` and
                `input_pipeline_id`. With `micro_batches` it is called once for each micro-batch of
                this worker, whose numbers the context has in their place, and each step takes one
                batch of each dataset. A process that was
                restarted goes on with the batch that follows: it drops those before, or the
                function has an argument `first_batch`, an integer, and returns a dataset whose
                first iteration begins with that batch of all iterations.
            steps: Steps of all workers together, including the steps of previous calls and of the
                restored checkpoint. A synchronous step of all workers counts once.
            on_step: Called after each call of `steps_per_execution` steps of this process, with the
                run's step and the mean of their losses, before a checkpoint of this step.
            begin: The step of the run to which the first batch of the dataset belongs; None: the
                `steps` of the call before, or 0.
            save_last: Whether a checkpoint is written after the last step.

        Returns:
            What this call has done.

        Raises:
            ClusterError: A server or another worker has ended or does not respond. If this process
                is restarted, it continues with the values on the servers or with the last
                checkpoint.
            ValueError: The dataset has no batches, or the model cannot be trained with the
                trainer's `partition_axis`, `plan`, `pipeline` or `exchange_every`.
        """
        begin = self._fit_until if begin is None else begin
        self._fit_until = max(self._fit_until, steps)
        batches = [
            WorkerBatches(dataset_fn, context, self._flat_batches) for context in self.contexts()
        ]
        if self.model is None:
            self.build(batches[0].first().restored())
        last = steps if save_last else None
        done = self.steps_done()
        if done < steps:
            self._seek(batches, done - begin)
        own_steps, own_calls, start = 0, 0, 0.0
        losses: list[float] = []
        prefetched, ahead = None, 0  # products of the next batches and their number
        while done < steps:
            own = self._own_steps(steps - done)
            count = self._steps_of_call(own)
            group = [each.peek(i) for i in range(count) for each in batches]
            next_group = None
            if self._pipeline:
                first = [batch.restored()[0] for batch in group[: self._exchange_every]]
                if ahead != len(first):
                    prefetched = self._call("prefetching products", self._prefetch, first)
                next_group = group[-self._exchange_every :]
                if done + count < steps:
                    following = min(self._steps_of_call(own - count), self._exchange_every)
                    next_group = [batches[0].peek(count + i) for i in range(following)]
                ahead = len(next_group)
            result = self._run_steps(done, group, prefetched, next_group)
            if result is None:  # a new generation of queues, in which the step may be another one
                before, done = done, self.steps_done()
                self._save_if_due(before, done, last)
                if done != before and done < steps:
                    self._seek(batches, done - begin)
                continue
            for each in batches:
                each.drop(count)
            found, step, worker_steps, prefetched = result
            before, done = done, step
            own_steps += count
            own_calls += 1
            losses = [*losses, *found.tolist()][-_MAX_LOSSES:]
            if on_step is not None:
                on_step(done, found.mean())
            self._save_if_due(before, done, last)
            if own_calls == 1:
                start = time.perf_counter()
            if done < steps:
                self._wait_for_slow_workers(worker_steps)
        seconds = time.perf_counter() - start if own_steps else 0.0
        return FitResult(done, own_steps, losses, seconds)

    def contexts(self) -> list[tf.distribute.InputContext]:
        """Returns the contexts for which `fit` calls its function, in the order of the calls.

        Returns:
            One context; with `micro_batches` one for each micro-batch of this worker.
        """
        workers = len(self.cluster.workers)
        count = self._micro_batches or workers
        own = count // workers
        first = self.cluster.index * own
        return [tf.distribute.InputContext(count, first + i, count) for i in range(own)]

    def steps_done(self) -> int:
        """Reads the step of the run, of all workers together; after `build`.

        Returns:
            The number of steps.

        Raises:
            ClusterError: A server has ended or does not respond.
        """
        return int(self._call("reading the step", self.state.step.numpy))

    def wait_for_workers(self, step: int) -> None:
        """Waits until all workers have called this with a step, and `fit` up to it.

        Afterwards no worker changes the weights until it calls `fit` again. Only the chief waits.
        The others say that they are there, and learn from the chief by other means, such as
        `ChiefDecisions`, how to go on.

        Args:
            step: The step.

        Raises:
            ClusterError: A worker has not called this within `timeout` seconds.
        """
        self._call("a note for the chief", self.state.reach, self.cluster.index, step)
        deadline = time.monotonic() + self._timeout
        while self.cluster.is_chief:
            if self._call("waiting for workers", self.state.all_have_reached, step):
                return
            if time.monotonic() > deadline:
                raise ClusterError(
                    f"not all workers have reached step {step} within {self._timeout:g} s"
                )
            time.sleep(_POLL_SECONDS)

    @property
    def averages(self) -> WeightAverages:
        """The averages of the weights, which the chief may take; after the first `fit`."""
        if self._averages is None:
            self._averages = self._call("creating averages", WeightAverages, self.state)
        return self._averages

    def take_snapshot(self) -> None:
        """Adds a snapshot of the weights to their average. Only the chief calls this."""
        self._call("taking a snapshot", self.averages.take)

    def use_average(self) -> None:
        """Puts the average of the snapshots into the weights. Only the chief calls this.

        It is called when no worker changes the weights; see `wait_for_workers`.
        """
        self._call("averaging weights", self.averages.use)

    def release(self) -> None:
        """Removes the values of the run from the servers, which have their memory again.

        Only the chief calls this, when no worker will use the run again.
        """
        if self.state is None:
            return
        averages = [] if self._averages is None else self._averages.variables()

        def remove() -> None:
            self.state.close_files()
            for variable in (*self.state.variables(), *averages):
                variable.destroy()

        self._call("releasing variables", remove)

    def release_files(self) -> None:
        """Removes tables whose rows are in files from the servers, with their files.

        Only the chief calls this, when no worker will use the tables again. A chief that is started
        again fills the servers anew.
        """
        if self.state is not None and self._storage is not None:
            self._call("removing files", self.state.close_files)

    def evaluate(self, dataset: Any, metrics: Any = ()) -> dict[str, float]:
        """Evaluates the model with the tables on the servers.

        Args:
            dataset: An iterable of batches (x, y) or (x, y, weights).
            metrics: Keras metrics, which are updated but not reset.

        Returns:
            The mean loss as "loss" and the result of each metric, by name.

        Raises:
            ClusterError: A server has ended or does not respond.
        """
        mean = tf.keras.metrics.Mean(name="loss")
        for i, batch in enumerate(dataset):
            if not i:
                self.build(unpack_batch(batch))
            x, y, weights = unpack_batch(batch)
            prediction, loss = self._call("an evaluation step", self._forward, x, y, weights)
            mean.update_state(loss, tf.shape(y)[0])
            for metric in metrics:
                metric.update_state(y, prediction, weights)
        return {m.name: float(m.result()) for m in (mean, *metrics)}

    def predict(self, x: Any, model: tf.keras.Model | None = None) -> Any:
        """Computes the outputs for a batch, with the weights that are on the servers now.

        Args:
            x: The features of the batch.
            model: A model of layers of the trained one; None: the trained one itself.

        Returns:
            The outputs of the model.

        Raises:
            ClusterError: A server has ended or does not respond.
            ValueError: The trainer is not built.
        """
        if self.model is None:
            raise ValueError("predict needs a HybridTrainer that is built, got none: call build")
        of = self.model if model is None else model
        return self._call("a prediction", self._outputs, x, of)

    def export(self, path: str | os.PathLike[str] | None = None) -> tf.keras.Model:
        """Copies the trained model to this process, as an ordinary Keras model with whole tables.

        Args:
            path: A `.keras` file to write as well; None: no file.

        Returns:
            The model, uncompiled.

        Raises:
            ClusterError: A server has ended or does not respond.
        """
        model = self._builder()
        weights = self.state.remote_weights
        self._call("reading dense weights", self._graph.pull, weights)
        self._call("reading tables", copy_model_weights, self.model, model)
        if path is not None:
            model.save(str(Path(path)))
        return model

    def export_slots(self, model: tf.keras.Model) -> None:
        """Copies the optimizer's slots and its number of updates to an exported model.

        Args:
            model: What `export` has returned, compiled with an optimizer like the trainer's, which
                is built.

        Raises:
            ClusterError: A server has ended or does not respond.
        """
        self._call("reading slots", read_slots, self.state, self.model, model)

    def save(self) -> str:
        """Saves a checkpoint of the run.

        Returns:
            The folder of the checkpoint.

        Raises:
            ValueError: The trainer has no `checkpoint_dir`.
            ClusterError: A server has ended or does not respond.
        """
        if self._checkpoint_dir is None:
            raise ValueError("save needs a HybridTrainer with checkpoint_dir, got None")
        folder, facts = self._checkpoint_dir, self._facts or {}
        args = self.state, folder, facts, self._changes, self.averages, self._checkpoint_keep
        return self._call("saving", checkpoint.save, *args)

    def finish(self) -> None:
        """Ends the part of this process in the run, after its last call of this trainer.

        A process that runs servers itself waits here until all workers have called this, since its
        servers end with it, but not longer than `timeout` seconds. Other processes do not wait.
        """
        if self.state is None or not self.cluster.servers:
            return
        with contextlib.suppress(ClusterError):  # a process with servers that was waiting has ended
            deadline = time.monotonic() + self._timeout
            while not self._call("finishing", self.state.finish, self.cluster.index):
                if not self.cluster.own_servers or time.monotonic() > deadline:
                    return
                time.sleep(_FINISH_POLL_SECONDS)

    def build(self, batch: Any) -> None:
        """Builds the model and joins the run. The chief initializes or restores the servers.

        `fit` and `evaluate` call this with their first batch. Further calls do nothing.

        Args:
            batch: A batch (x, y) or (x, y, weights).
        """
        if self.model is not None:
            return
        x, *_ = unpack_batch(batch)
        cluster = self.cluster
        links = self._call("connecting", transport.connect, cluster)
        self.placement = ParameterServerPlacement(
            self._prefix,
            links,
            self._wire,
            self._deduplicate,
            self._table_plan.replicates,
            self._micro_batches is not None,
        )
        if self._micro_batches is not None:  # each has the same random numbers in every worker
            _keras.keep_random_state_in_variables()
        with placement.placement_scope(self.placement):
            model = self._builder()
            self.placement.forget_calls()
            model(x, training=False)  # creates all weights and shows the placement the batch
        find_frozen_tables(model)
        self._table_plan.check(self.placement)
        self._pipeline = self._pipeline and bool(self.placement.tables)
        asynchronous = len(cluster.workers) if self.mode != "sync" else 1
        if self.placement.lookups:
            clips = clips_by_norm(self.optimizer)
            check_options(asynchronous, self._pipeline, self._exchange_every, clips)
        for lookup in self.placement.lookups if asynchronous > 1 else ():
            lookup.share(asynchronous, cluster.own_device)
        modules.check_options(self.placement.tables, self._pipeline, self._exchange_every)
        model.compile(loss=self._loss)
        share_dense = len(cluster.workers) > 1
        if self._micro_batches is not None:
            micro.check_tables(self.placement.tables, self.placement.lookups)
            share_dense = True  # one worker makes the same update as several
        args = (self._prefix, cluster, self.placement.tables, model, self.optimizer, share_dense)
        before = 0 if self._saved_slots is None else self._saved_slots.step
        after = (before, self.placement.lookups, self._storage)
        self.state = self._call("creating the shared variables", RunState, *args, *after)
        if not share_dense or self._exchange_every > 1:
            tables = [self.placement.tables] if hasattr(self.optimizer, "optimizer_of") else []
            self.optimizer.build(model.trainable_variables, *tables)
        for each in component_optimizers(self.optimizer):
            _ = each.iterations  # creates the variable
        self.model = model
        needs_queues = share_dense and self.mode == "sync"
        self._queues = GradientQueues(cluster, self.state) if needs_queues else None
        self.placement.turns = self._queues
        self._call(
            "joining the run",
            join_run,
            cluster,
            self.state,
            self._queues,
            self._timeout,
            self._lock_checkpoints,
            self._fill_servers,
        )
        if self._micro_batches is not None:
            micro.check_divisions(self.placement.tables)
        for lookup in self.placement.lookups:
            if lookup.shared is not None:
                self._call("joining the lookups", lookup.shared.join)
        self._graph = StepGraph(
            model,
            self.optimizer,
            cluster,
            self.state,
            self.placement,
            self._queues,
            bounded=self.max_staleness is not None,
            exchange_every=self._exchange_every,
            seeds=self._call("reading seeds", self.state.read_seeds),
            micro_batches=self._micro_batches,
        )
        self._create_functions()

    def _lock_checkpoints(self) -> None:
        if self._checkpoint_dir is not None:
            checkpoint.manager_of(self._checkpoint_dir).lock()

    def _fill_servers(self) -> None:
        """Creates the parts of all tables, and restores or initializes all values."""
        state, folder = self.state, self._checkpoint_dir
        hosts = resources_of(self.cluster, self.mode != "sync", self._steps_per_execution)
        state.create(self._table_plan.divide(self.placement, hosts))
        state.open_files()
        state.write_layout()
        for lookup in state.lookups:
            if lookup.shared is not None:
                lookup.shared.close()
        saved = folder and restore.restore_newest(
            state, folder, self._facts, self._facts_may_differ, self.averages
        )
        if not saved:
            state.initialize()
            if self._saved_slots is not None:
                assign_slots(state, self.model, self._saved_slots.read())

    def _create_functions(self) -> None:
        self._train = StepCalls(self._graph.train)
        self._prefetch = tf.function(self._graph.prefetch, reduce_retracing=True, autograph=False)
        self._forward = tf.function(self._graph.forward, reduce_retracing=True, autograph=False)
        self._outputs = tf.function(self._graph.outputs, reduce_retracing=True, autograph=False)

    def _seek(self, batches: Sequence[WorkerBatches], steps: int) -> None:
        """Goes to the batches that follow after `steps` steps of the run."""
        workers = 1 if self.mode == "sync" else len(self.cluster.workers)
        for each in batches:
            each.seek(max(0, steps) // workers)

    def _own_steps(self, steps: int) -> int:
        """Returns the steps of this worker, if the run still needs `steps`."""
        asynchronous = 1 if self.mode == "sync" else len(self.cluster.workers)
        return -(-steps // asynchronous)

    def _steps_of_call(self, own: int) -> int:
        """Returns the steps of the next call, if this worker still needs `own`."""
        counts = self._steps_per_execution, self._exchange_every
        return next((count for count in counts if own >= count), 1)

    def _run_steps(
        self,
        done: int,
        group: list[FlatBatch],
        prefetched: Any,
        next_group: list[FlatBatch] | None,
    ) -> Any:
        """Returns the result of `StepGraph.train`; None if there is a new generation of queues."""
        number = tf.constant(done, tf.int64)
        try:
            return self._call(
                f"step {done + 1}",
                lambda: self._train_and_results(number, group, prefetched, next_group),
            )
        except ClusterError as e:
            # A process that was stopped for long finds its step too late.
            with contextlib.suppress(ClusterError):
                run_with_timeout(
                    min(self._timeout, _TOKEN_SECONDS),
                    "the token of this worker",
                    self.state.worker_token.check,
                )
            if self._queues is None:
                raise
            if not self._call("joining a new generation of queues", self._queues.rejoin):
                if OTHER_STEP not in str(e):
                    raise
                self._call("starting a generation of queues", self._queues.start_generation)
            self._create_functions()
            return None

    def _train_and_results(self, *args: Any) -> Any:
        next_products = self._train(*args)
        losses, step, worker_steps = self._graph.results()
        # Not an empty list, for which the graph would be traced again.
        return losses.numpy(), step, worker_steps, next_products or None

    def _wait_for_slow_workers(self, worker_steps: Any) -> None:
        """Waits while this worker is more than `max_staleness` steps ahead of the slowest."""
        if self.max_staleness is None or len(self.cluster.workers) == 1:
            return
        deadline = time.monotonic() + self._timeout
        while worker_steps[self.cluster.index] - worker_steps.min() > self.max_staleness:
            if time.monotonic() > deadline:
                raise ClusterError(
                    f"worker {int(worker_steps.argmin())} has done no step for {self._timeout:g} "
                    f"s: it has done {worker_steps.min()} steps, worker {self.cluster.index} "
                    f"{worker_steps[self.cluster.index]} steps, and max_staleness is "
                    f"{self.max_staleness}"
                )
            time.sleep(_POLL_SECONDS)
            worker_steps = self._call("reading the steps", self.state.worker_steps.numpy)

    def _save_if_due(self, before: int, done: int, last: int | None) -> None:
        if self._checkpoint_dir is None or not self.cluster.is_chief or done == before:
            return
        every = self._checkpoint_every
        if done // every > before // every or (last is not None and done >= last):
            self.save_if_possible(done)

    def save_if_possible(self, step: int) -> None:
        """Saves a checkpoint, as `save` does; if its files cannot be written, that is a warning.

        Args:
            step: The step of the run, for the warning.

        Raises:
            ValueError: The trainer has no `checkpoint_dir`.
            ClusterError: A server has ended or does not respond.
        """
        try:
            self.save()
        except (ClusterError, CheckpointError, tf.errors.OpError) as e:
            if not checkpoint.is_write_error(e):
                raise
            warnings.warn(
                f"the checkpoint of step {step} cannot be written to {self._checkpoint_dir}: "
                f"{str(e).strip().splitlines()[0][:300]}; earlier checkpoints are unchanged",
                RuntimeWarning,
                stacklevel=3,
            )

    def _call(self, description: str, function: Any, *args: Any) -> Any:
        if not self.cluster.servers:
            return function(*args)
        return run_with_timeout(self._timeout, description, function, *args)
