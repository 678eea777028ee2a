"""A worker or server of hybrid training, which trains the model of clicks on request."""

from __future__ import annotations

import functools
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
        from twml_ops.distribute.parameter_server.cluster import Cluster, start_server

        self._server = start_server(Cluster(servers, workers, "ps", index))
        return {}

    def join(self, servers: list[str], workers: list[str], index: int) -> dict[str, Any]:
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
            steps_per_execution=clicks.EXECUTION,
            timeout=SECONDS,
        )
        self._index = index
        return {}

    def train(self, batches: int) -> dict[str, Any]:
        """Trains, and evaluates the model while the other workers wait, if this is the first one.

        Args:
            batches: the number of batches of each worker.

        Returns:
            See `clicks.Curve`; empty if this is another worker.
        """
        import tensorflow as tf

        data = clicks.dataset(batches, self._index)
        test = tf.data.Dataset.from_tensor_slices(clicks.held_out()).batch(clicks.HELD_OUT)
        curve = clicks.Curve(lambda: self._trainer.evaluate(test)["loss"])
        on_step = None if self._index else lambda step, _: curve.after(step)
        self._trainer.fit(lambda _: data, batches, on_step)
        return curve.result()


def main() -> None:
    """Answers requests until the standard input ends."""
    json_lines.serve(functools.partial(Host.handle, Host()))


if __name__ == "__main__":
    main()
