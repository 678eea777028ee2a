"""Variables that are on one replica of a strategy only."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import tensorflow as tf

Made = TypeVar("Made")


def replica_devices(strategy: tf.distribute.Strategy) -> list[str]:
    """The devices of the replicas; one empty string if there is one replica.

    Args:
        strategy: the strategy.

    Raises:
        ValueError: it has several replicas, but not in one process.
    """
    if strategy.num_replicas_in_sync == 1:
        return [""]
    if type(strategy) is not tf.distribute.MirroredStrategy:
        raise ValueError(
            "Shampoo divides its state over the replicas of a tf.distribute.MirroredStrategy, "
            f"got a {type(strategy).__name__}"
        )
    return list(strategy.extended.worker_devices)


def on_replica(device: str, make: Callable[[], Made]) -> Made:
    """Calls a function that creates variables on the device of one replica.

    A strategy would create a copy on each replica. It intercepts the variables that are created in
    the thread that is in its scope, so the function is called in another thread.

    Args:
        device: one of `replica_devices`.
        make: the function.

    Returns:
        What the function returns.
    """
    if not device:
        return make()

    def placed() -> Made:
        with tf.device(device):
            return make()

    with ThreadPoolExecutor(1) as other_thread:
        return other_thread.submit(placed).result()
