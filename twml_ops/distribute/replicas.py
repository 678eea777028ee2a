"""Replicas of one process: a `MirroredStrategy`, and merging the sketches of all replicas."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import tensorflow as tf

from twml_ops.ops.quantile_sketch import SketchState, sketch_merge
from twml_ops.placement import collectives


def mirrored_strategy(
    devices: Sequence[str] | int | None = None,
) -> tf.distribute.MirroredStrategy:
    """Returns a strategy that trains one replica of a model on each device.

    On CPUs it adds up the small dense gradients on one of them. A default MirroredStrategy uses
    collectives, whose keys TensorFlow confuses if two strategies exist in one process.

    Args:
        devices: Names such as "GPU:0"; or a number of logical CPUs, into which this divides the
            CPU unless they exist already; None: all GPUs, or the CPU if there are none.

    Returns:
        The strategy.

    Raises:
        ValueError: There is no device, or TensorFlow already runs with another number of logical
            CPUs.
    """
    if isinstance(devices, int):
        devices = _logical_cpus(devices)
    elif devices is None:
        devices = [d.name for d in tf.config.list_logical_devices("GPU")] or ["CPU:0"]
    if not devices:
        raise ValueError("devices must name at least one device, got none")
    only_cpus = all("cpu" in d.lower() for d in devices)
    cross_device_ops = tf.distribute.ReductionToOneDevice() if only_cpus else None
    return tf.distribute.MirroredStrategy(list(devices), cross_device_ops=cross_device_ops)


def _logical_cpus(count: int) -> list[str]:
    if count < 1:
        raise ValueError(f"devices must be at least 1 logical CPU, got {count}")
    cpu = tf.config.list_physical_devices("CPU")[0]
    configurations = [tf.config.LogicalDeviceConfiguration() for _ in range(count)]
    try:
        if len(tf.config.get_logical_device_configuration(cpu) or []) < count:
            tf.config.set_logical_device_configuration(cpu, configurations)
    except RuntimeError as e:
        existing = len(tf.config.list_logical_devices("CPU"))
        raise ValueError(
            f"devices: TensorFlow already runs with {existing} logical CPU(s), got {count}; "
            "call this before anything else uses TensorFlow"
        ) from e
    return [f"CPU:{i}" for i in range(count)]


def merge_replica_sketches(state: SketchState) -> SketchState:
    """Merges the quantile sketches of all replicas.

    Every replica must call this with its own sketch.

    Args:
        state: The sketch of this replica.

    Returns:
        The sketch of all values that the replicas' sketches were updated with, the same on every
        replica; outside of a replica context, `state` itself.
    """
    by_tensor = collectives.gather_per_replica(list(state))
    sketches = [SketchState(*tensors) for tensors in zip(*by_tensor, strict=True)]
    return functools.reduce(sketch_merge, sketches)
