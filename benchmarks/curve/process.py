"""A process on a host: a server, or a training that goes on until the process is killed."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.curve import cells
from benchmarks.curve.cells import Cell
from benchmarks.distributed import json_lines

PEER_SECONDS = 300.0
ENDLESS = 10**7  # steps
DECAY_STEPS = 10**6  # in which the learning rate falls to 0
BATCHES = 4  # of the stock clusters
OnSteps = Callable[[int, float], None]  # (number of steps, their mean loss)


class Host:
    """The state of this process between requests."""

    def __init__(self) -> None:
        self._calls: list[tuple[float, int, float]] = []
        self._failure: BaseException | None = None
        self._server: Any = None
        self._evaluate: Callable[[], float] | None = None
        self._go_on = threading.Event()

    def handle(self, message: dict[str, Any]) -> dict[str, Any]:
        """Answers a request; its "do" names the method."""
        return getattr(self, message.pop("do"))(**message)

    def serve(self, servers: list[str], workers: list[str], index: int) -> dict[str, Any]:
        """Starts a parameter server."""
        from twml_ops.distribute.parameter_server.cluster import Cluster, start_server

        self._server = start_server(Cluster(servers, workers, "ps", index))
        return {}

    def train(
        self,
        cell: dict[str, Any],
        servers: list[str],
        workers: list[str],
        index: int,
        batches: int | None = None,
    ) -> dict[str, Any]:
        """Starts the training of a worker.

        Args:
            cell: the cell.
            servers: addresses of the servers.
            workers: addresses of the workers.
            index: the index of this worker.
            batches: the batches of all workers, after which the training ends; None: it does not
                end.
        """
        target = functools.partial(self._train, Cell(**cell), servers, workers, index, batches)
        threading.Thread(target=target, daemon=True).start()
        return {}

    def go_on(self) -> dict[str, Any]:
        """Lets a training of so many batches continue, which waits after its first call."""
        self._go_on.set()
        return {}

    def evaluate(self) -> dict[str, Any]:
        """The mean loss of the held-out batches after a training that has ended."""
        assert self._evaluate is not None
        return {"loss": self._evaluate()}

    def calls(self, after: int) -> dict[str, Any]:
        """The calls so far, except the first `after`: (end by the clock, steps, mean loss)."""
        if self._failure is not None:
            raise self._failure
        return {"calls": self._calls[after:], "ended": self._evaluate is not None}

    def _train(
        self,
        cell: Cell,
        servers: Sequence[str],
        workers: Sequence[str],
        index: int,
        batches: int | None,
    ) -> None:
        def on_steps(steps: int, loss: float) -> None:
            self._calls.append((time.monotonic(), steps, float(loss)))
            if batches is not None:
                self._go_on.wait()

        try:
            if cell.way in cells.ONE_HOST:
                self._evaluate = _on_one_host(cell, batches, on_steps)
            elif cell.way in cells.MODES:
                self._evaluate = _hybrid(cell, servers, workers, index, batches, on_steps)
            else:
                _stock_cluster(cell, servers, workers, index, on_steps)
        except BaseException as e:
            self._failure = e


def _on_one_host(cell: Cell, batches: int | None, on_steps: OnSteps) -> Callable[[], float]:
    import tensorflow as tf

    from benchmarks.cluster_cost.trainings import TRAININGS
    from benchmarks.curve import stock_layers

    steps = None if batches is None else batches // cell.joined
    training = TRAININGS[cell.training](steps or DECAY_STEPS)
    model, optimizer = training.model, training.optimizer
    if cell.way == cells.STOCK:
        model = functools.partial(stock_layers.model, training.model)
        optimizer = stock_layers.optimizer(training.optimizer)
    together = cell.steps_per_execution
    built = model()
    built.compile(optimizer, training.loss, jit_compile=False, steps_per_execution=together)

    class Report(tf.keras.callbacks.Callback):
        def __init__(self) -> None:
            super().__init__()
            self.total = 0.0

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            before, self.total = self.total, (batch + 1) * float(logs["loss"])
            on_steps(together, (self.total - before) / together)

    data = joined([training.batches(i) for i in range(cell.joined)])
    built.fit(data, steps_per_epoch=steps or ENDLESS, callbacks=[Report()], verbose=0)
    return lambda: float(built.evaluate(training.held_out(), verbose=0))


def joined(datasets: Sequence[Any]) -> Any:
    """Batches that each consist of one batch of every dataset."""
    import tensorflow as tf

    def join(*batches: Any) -> Any:
        return tf.nest.map_structure(lambda *parts: tf.concat(parts, axis=0), *batches)

    return datasets[0] if len(datasets) == 1 else tf.data.Dataset.zip(tuple(datasets)).map(join)


def _hybrid(
    cell: Cell,
    servers: Sequence[str],
    workers: Sequence[str],
    index: int,
    batches: int | None,
    on_steps: OnSteps,
) -> Callable[[], float]:
    from benchmarks.cluster_cost.trainings import TRAININGS
    from twml_ops.distribute import Cluster, HybridTrainer

    own_servers = (index,) if cell.inside and index < cell.servers else ()
    cluster = Cluster(servers, workers, "worker", index, own_servers=own_servers)
    cluster.connect(PEER_SECONDS)  # before any tensor is created
    mode, together = cells.MODES[cell.way], cell.steps_per_execution
    steps = batches if batches is None or mode != "sync" else batches // len(workers)
    training = TRAININGS[cell.training](steps or DECAY_STEPS)
    trainer = HybridTrainer(
        training.model,
        training.optimizer,
        training.loss,
        cluster=cluster,
        mode=mode,
        partition_axis=cell.axis,
        exchange_every=cell.exchange_every,
        wire_dtype=cell.wire_dtype,
        steps_per_execution=together,
        timeout=PEER_SECONDS,
    )
    trainer.fit(
        lambda _: training.batches(index),
        steps or ENDLESS,
        lambda _, loss: on_steps(together, loss),
    )
    return lambda: trainer.evaluate(training.held_out())["loss"]


def _stock_cluster(
    cell: Cell, servers: Sequence[str], workers: Sequence[str], index: int, on_steps: OnSteps
) -> None:
    from benchmarks.distributed import builders
    from benchmarks.distributed.grid import WORKLOAD

    batches = WORKLOAD.batches(BATCHES, seed=1 + index)
    run, _ = builders.build(
        cell.way, WORKLOAD, batches, "table", servers=servers, workers=workers, index=index
    )
    for _ in range(ENDLESS):
        on_steps(1, run(1)[0])


def main() -> None:
    """Answers requests until the standard input ends."""
    json_lines.serve(functools.partial(Host.handle, Host()))


if __name__ == "__main__":
    main()
