"""A worker or server of hybrid training, which trains the model of clicks on request."""

from __future__ import annotations

import functools
import time
from typing import Any

from benchmarks.distributed import json_lines
from benchmarks.peers import clicks

SECONDS = 240.0  # that a step may take


class Host:
    """The state of this process between requests."""

    def handle(self, message: dict[str, Any]) -> dict[str, Any]:
        """Answers a request; its "do" names the method."""
        return getattr(self, message.pop("do"))(**message)

    def serve(self, servers: list[str], workers: list[str], index: int) -> dict[str, Any]:
        """Starts a parameter server."""
        clicks.pin(index)
        from twml_ops.distribute.hybrid.cluster import Cluster, start_server

        self._server = start_server(Cluster(servers, workers, "ps", index))
        return {}

    def join(
        self, servers: list[str], workers: list[str], index: int, batches: int
    ) -> dict[str, Any]:
        """Makes the trainer of a worker."""
        clicks.pin(index)
        from twml_ops import optimizers
        from twml_ops.distribute import Cluster, HybridTrainer

        self._trainer = HybridTrainer(
            clicks.model,
            optimizers.Adagrad(clicks.RATE),
            "binary_crossentropy",
            cluster=Cluster(servers, workers, "worker", index),
            partition_axis="auto",
            timeout=SECONDS,
        )
        self._data = clicks.dataset(batches, index)
        return {}

    def train(self, steps: int) -> dict[str, Any]:
        """Trains up to a number of steps."""
        begin = time.perf_counter()
        result = self._trainer.fit(lambda _: self._data, steps)
        seconds = time.perf_counter() - begin
        first = steps <= clicks.CHECK
        return {"seconds": result.seconds if first else seconds}

    def loss(self) -> dict[str, Any]:
        """Evaluates the model on held-out examples."""
        import tensorflow as tf

        data = clicks.examples(clicks.HELD_OUT, -1 % 2**16)
        test = tf.data.Dataset.from_tensor_slices(data).batch(clicks.HELD_OUT)
        return {"loss": self._trainer.evaluate(test)["loss"]}


def main() -> None:
    """Answers requests until the standard input ends."""
    json_lines.serve(functools.partial(Host.handle, Host()))


if __name__ == "__main__":
    main()
