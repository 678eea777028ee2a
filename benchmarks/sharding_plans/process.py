"""A process on a host: a parameter server, or the worker, which trains with several plans."""

from __future__ import annotations

import functools
import itertools
import time
from typing import Any

from benchmarks.distributed import json_lines
from benchmarks.sharding_plans.generator import ids_of_batch, power_law_job

SECONDS = 600.0
BATCHES = 4  # which the training repeats
FIRST_STEPS = 3
RATE = 0.05


class Host:
    """The state of this process between requests."""

    def __init__(self) -> None:
        self._server: Any = None
        self._cluster: Any = None
        self._trainers: dict[str, Any] = {}
        self._model: Any = None
        self._data: list[Any] = []

    def handle(self, message: dict[str, Any]) -> dict[str, Any]:
        """Answers a request; its "do" names the method."""
        return getattr(self, message.pop("do"))(**message)

    def serve(self, servers: list[str], workers: list[str], index: int) -> dict[str, Any]:
        """Starts a parameter server."""
        from twml_ops.distribute.parameter_server.cluster import Cluster, start_server

        self._server = start_server(Cluster(servers, workers, "ps", index))
        return {}

    def connect(
        self, servers: list[str], workers: list[str], job: dict[str, Any]
    ) -> dict[str, Any]:
        """Connects the worker, and makes the batches.

        Args:
            servers: addresses of the servers.
            workers: the address of the worker.
            job: arguments of `power_law_job`.
        """
        from twml_ops.distribute import Cluster

        self._cluster = Cluster(servers, workers)
        self._cluster.connect(SECONDS)  # before any tensor is created
        import tensorflow as tf

        from twml_ops import layers

        made = power_law_job(**job)
        names = [f"table{i}" for i in range(len(made.tables))]
        for seed in range(BATCHES):
            ragged = {
                name: tf.RaggedTensor.from_row_lengths(*entries)
                for name, entries in zip(names, ids_of_batch(made, seed), strict=True)
            }
            self._data.append((ragged, tf.ones([made.batch, 1])))

        def model() -> Any:
            inputs = {n: tf.keras.Input([None], dtype="int64", ragged=True, name=n) for n in names}
            tables = {
                n: layers.SparseTable(t.input_dim, t.units)
                for n, t in zip(names, made.tables, strict=True)
            }
            found = layers.GroupedSparseLinear(tables, {n: n for n in names}, name="group")(inputs)
            joined = tf.keras.layers.Concatenate()([found[n] for n in names])
            return tf.keras.Model(inputs, tf.keras.layers.Dense(1)(joined))

        self._model = model
        return {}

    def build(self, name: str, places: list[tuple[str, int]]) -> dict[str, Any]:
        """Begins a training with a plan, whose first steps trace the graph.

        Args:
            name: of the training.
            places: for each table its way and first server.
        """
        from twml_ops import optimizers
        from twml_ops.distribute import HybridTrainer
        from twml_ops.planning import ShardedTable, ShardingPlan

        zeros = (0.0,) * len(self._cluster.servers)
        plan = ShardingPlan(tuple(ShardedTable(*place) for place in places), zeros, zeros)
        self._trainers[name] = HybridTrainer(
            self._model,
            optimizers.Adagrad(RATE),
            "mse",
            cluster=self._cluster,
            plan=plan,
            timeout=SECONDS,
            name=name,
        )
        return self.run(name, FIRST_STEPS)

    def run(self, name: str, steps: int) -> dict[str, Any]:
        """Makes so many steps of a training.

        Args:
            name: of the training.
            steps: their number.

        Returns:
            The `seconds` of each step but the first one, which begins with the reading of batches.
        """
        trainer = self._trainers[name]
        done = 0 if trainer.state is None else trainer.steps_done()
        ends: list[float] = []
        trainer.fit(lambda _: self._data, done + steps, lambda *_: ends.append(time.perf_counter()))
        return {"seconds": [b - a for a, b in itertools.pairwise(ends)]}

    def release(self, name: str) -> dict[str, Any]:
        """Ends a training; the servers have their memory again."""
        self._trainers.pop(name).release()
        return {}

    def cpu(self) -> dict[str, Any]:
        """The `seconds` of CPU time of all threads of this process so far."""
        return {"seconds": time.process_time()}


def main() -> None:
    """Answers requests until the standard input ends."""
    json_lines.serve(functools.partial(Host.handle, Host()))


if __name__ == "__main__":
    main()
