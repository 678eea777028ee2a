"""A `tf.distribute.MirroredStrategy` that suits the devices."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf


def mirrored_strategy(devices: Sequence[str] | int | None = None) -> tf.distribute.MirroredStrategy:
    """The strategy that trains one replica of a model on each device.

    On CPUs the small dense gradients are added on one of them, without the collectives of a default
    MirroredStrategy, whose keys two strategies of a process confuse.

    Args:
        devices: names such as "GPU:0"; a number of logical CPUs, which this makes of the one there
            is unless they exist; None: all GPUs, or else the CPU.

    Raises:
        ValueError: no device, or a number of logical CPUs other than those that TensorFlow already
            runs with.
    """
    if isinstance(devices, int):
        devices = _logical_cpus(devices)
    elif devices is None:
        devices = [d.name for d in tf.config.list_logical_devices("GPU")] or ["CPU:0"]
    if not devices:
        raise ValueError("devices must name at least one device, got none")
    one_by_one = all("cpu" in d.lower() for d in devices)
    cross = tf.distribute.ReductionToOneDevice() if one_by_one else None
    return tf.distribute.MirroredStrategy(list(devices), cross_device_ops=cross)


def _logical_cpus(count: int) -> list[str]:
    if count < 1:
        raise ValueError(f"devices must be at least 1 logical CPU, got {count}")
    cpu = tf.config.list_physical_devices("CPU")[0]
    wanted = [tf.config.LogicalDeviceConfiguration() for _ in range(count)]
    try:
        if len(tf.config.get_logical_device_configuration(cpu) or []) < count:
            tf.config.set_logical_device_configuration(cpu, wanted)
    except RuntimeError as e:
        have = len(tf.config.list_logical_devices("CPU"))
        raise ValueError(
            f"devices: TensorFlow runs with {have} logical CPU(s) already, got {count}; "
            "call this before anything else uses TensorFlow"
        ) from e
    return [f"CPU:{i}" for i in range(count)]
