"""A `tf.distribute.MirroredStrategy` for GPUs, or for logical CPUs."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf


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
