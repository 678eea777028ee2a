"""A table in the memory of a GPU."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from typing import Any, Literal, get_args

import tensorflow as tf

from twml_ops.ops._library import library
from twml_ops.placement.base import REPLICATED, AddWeight, Placement, current_placement

StatePlacement = Literal["auto", "host", "device"]


class DevicePlacement(Placement):
    """Every replica has the whole table in the memory of its GPU, and so have the slots.

    Products, gradients and updates run on the GPU. The ids and values of each batch are copied to
    it. In files and checkpoints such a table does not differ from one on the host.

    Args:
        device: Device of the table, for example "GPU:0".
    """

    def __init__(self, device: str = "GPU:0") -> None:
        self.device: str = device

    def create(
        self, add: AddWeight, shape: Sequence[int], initializer: Any, name: str, dtype: Any
    ) -> Any:
        """See `Placement.create`.

        Raises:
            tf.errors.ResourceExhaustedError: The GPU has too little memory.
        """
        with memory_errors_of(f"table {name!r}", shape, dtype), library.tables_on(self.device):
            return super().create(add, shape, initializer, name, dtype)


@contextlib.contextmanager
def memory_errors_of(what: str, shape: Sequence[int], dtype: Any) -> Iterator[None]:
    """Makes errors about memory in the block name a variable and suggest another placement.

    Args:
        what: The variable that the block creates, for example "table 'a'".
        shape: Its shape.
        dtype: Its dtype.

    Yields:
        Nothing.

    Raises:
        tf.errors.ResourceExhaustedError: The block raises one.
    """
    try:
        yield
    except tf.errors.ResourceExhaustedError as e:
        size = math.prod(int(d) for d in shape) * tf.as_dtype(dtype).size
        raise tf.errors.ResourceExhaustedError(
            e.node_def,
            e.op,
            f"{what} of shape {tuple(shape)} ({size:,} bytes) does not fit into memory; "
            'placement="host" of the table keeps it and its slots in the memory of the host '
            f"({e.message})",
        ) from e


def device_placement() -> Placement:
    """Returns the placement of a table that a layer wants on a GPU.

    Returns:
        A `DevicePlacement`; `REPLICATED`, which is the host, if TensorFlow has no GPU.

    Raises:
        RuntimeError: TensorFlow has a GPU, but there are no kernels for it.
        ValueError: The running strategy has several replicas.
    """
    replicas = tf.distribute.get_strategy().num_replicas_in_sync
    if replicas > 1:
        raise ValueError(
            f'placement="device" does not support strategies of several replicas, got {replicas}; '
            'use placement="host"'
        )
    if not library.is_host_only or not tf.config.list_logical_devices("GPU"):
        return REPLICATED
    problem = library.cuda.problem()
    if problem is not None:
        raise RuntimeError(
            f'placement="device" needs the CUDA kernels of twml_ops: {problem}; use '
            'placement="host"'
        )
    return DevicePlacement()


def check_state_placement(argument: StatePlacement) -> StatePlacement:
    """Checks the argument `placement` of a layer whose state is no table.

    Args:
        argument: The argument.

    Returns:
        The argument.

    Raises:
        ValueError: It is not one of "auto", "host" and "device".
    """
    if argument not in get_args(StatePlacement):
        raise ValueError(f'placement must be "auto", "host" or "device", got {argument!r}')
    return argument


def state_placement(argument: StatePlacement) -> Placement:
    """Returns the placement of a state that is no table, such as that of a normalization.

    Args:
        argument: The argument `placement` of the layer.

    Returns:
        A `DevicePlacement` if the layer wants it, or if "auto" is used in a `placement_scope` of
        one; otherwise `REPLICATED`.

    Raises:
        RuntimeError: TensorFlow has a GPU, but there are no kernels for it.
        ValueError: The running strategy has several replicas.
    """
    if argument == "device":
        return device_placement()
    place = current_placement()
    return place if argument == "auto" and isinstance(place, DevicePlacement) else REPLICATED
