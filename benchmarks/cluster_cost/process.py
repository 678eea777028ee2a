"""A process of a measured training: all of it, a worker, or a parameter server.

It reads its setting from a line of JSON, and answers once when it is ready and then each line. Its
CPU time counts after "start". A server answers "stop", a trainer the end of the measured steps,
with the CPU time that it has used.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from typing import Any


class Meter:
    """Measures the CPU time of this process from one moment to another."""

    def __init__(self) -> None:
        self._answers = os.fdopen(os.dup(1), "w", buffering=1)
        os.dup2(2, 1)  # other prints go to the standard error

    def start(self) -> None:
        """Says that this process is ready, waits for "start" and begins."""
        self._answer({"process": os.getpid()})
        sys.stdin.readline()
        self._before = resource.getrusage(resource.RUSAGE_SELF)
        self._answer({})

    def stop(self) -> None:
        """Ends, and answers with the seconds of CPU time, and with those in the system's kernel."""
        after, before = resource.getrusage(resource.RUSAGE_SELF), self._before
        kernel = after.ru_stime - before.ru_stime
        self._answer({"total": after.ru_utime - before.ru_utime + kernel, "kernel": kernel})

    def _answer(self, value: dict[str, Any]) -> None:
        print(json.dumps(value), file=self._answers, flush=True)


def main() -> None:
    """Runs what the setting says."""
    setting, meter = json.loads(sys.stdin.readline()), Meter()
    if setting["role"] == "server":
        serve(setting, meter)
    elif setting["role"] == "worker":
        train_in_cluster(setting, meter)
    else:
        train_alone(setting, meter)


def serve(setting: dict[str, Any], meter: Meter) -> None:
    """Runs a parameter server until the input ends."""
    from twml_ops.distribute.parameter_server.cluster import Cluster, start_server

    _server = start_server(Cluster(setting["servers"], setting["workers"], "ps", setting["index"]))
    meter.start()
    sys.stdin.readline()
    meter.stop()
    sys.stdin.read()
    os._exit(0)


def train_in_cluster(setting: dict[str, Any], meter: Meter) -> None:
    """Trains with parameter servers and measures the steps after the first ones."""
    from benchmarks.cluster_cost.trainings import TRAININGS
    from twml_ops.distribute import Cluster, HybridTrainer

    own = range(len(setting["servers"])) if setting["servers_in_worker"] else ()
    cluster = Cluster(setting["servers"], setting["workers"], own_servers=own)
    cluster.connect(60)
    warm_up = setting["warm_up"]
    steps = warm_up + setting["steps"]
    training = TRAININGS[setting["training"]](steps)
    trainer = HybridTrainer(
        training.model, training.optimizer, training.loss, cluster=cluster, **setting["options"]
    )

    def on_step(step: int, loss: Any) -> None:
        del loss
        if step == warm_up:
            meter.start()

    trainer.fit(lambda _: training.batches(0), steps, on_step)
    meter.stop()
    os._exit(0)


def train_alone(setting: dict[str, Any], meter: Meter) -> None:
    """Trains with `Model.fit` and measures the steps after the first ones."""
    import tensorflow as tf

    from benchmarks.cluster_cost.trainings import TRAININGS

    warm_up = setting["warm_up"]
    steps = warm_up + setting["steps"]
    training = TRAININGS[setting["training"]](steps)
    model = training.model()
    model.compile(training.optimizer, training.loss, jit_compile=False)

    class MeterCallback(tf.keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if batch == warm_up - 1:
                meter.start()

    model.fit(training.batches(0), steps_per_epoch=steps, callbacks=[MeterCallback()], verbose=0)
    meter.stop()


if __name__ == "__main__":
    main()
