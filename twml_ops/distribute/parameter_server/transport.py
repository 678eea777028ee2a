"""The way of tensors between a worker and a server inside a step: connections and messages.

TensorFlow sends a tensor that one process computes and another one uses through gRPC, which costs
about a millisecond of CPU time whatever the size is. In a step, tensors are therefore sent by ops
of this package, through one TCP connection between the worker and each server. If both are the same
process, a tensor is passed on without a copy. See cc/tf/kernels/message_hub.h. `exchange` has the
messages of a step, and `encoding` their contents.
"""

from __future__ import annotations

import dataclasses
import itertools
import random
import warnings
from collections.abc import Mapping, Sequence

import tensorflow as tf

from twml_ops.distribute.parameter_server.cluster import Cluster
from twml_ops.distribute.parameter_server.tables import RemoteVariable
from twml_ops.ops._library import library

_numbers = itertools.count()  # which number the messages in all graphs of this process
_sessions: dict[tuple[str, ...], list[int | None]] = {}  # addresses of servers -> sessions
_CONNECT_SECONDS = 10.0


@dataclasses.dataclass(frozen=True)
class Link:
    """The way from the worker to one server and back.

    Attributes:
        worker: The TensorFlow device of the worker.
        server: The TensorFlow device of the server.
        session: The session of the connection; None: TensorFlow sends the tensors.
        orders: Device -> a handle of a variable that is not used, on that device.
        in_process: Whether the worker and the server are one process, so that the size of a message
            does not matter.
    """

    worker: str
    server: str
    session: int | None = None
    orders: Mapping[str, tf.Tensor] = dataclasses.field(default_factory=dict)
    in_process: bool = False

    def to_server(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Sends tensors from the worker to the server in one message.

        Args:
            tensors: At least one tensor, on the worker.

        Returns:
            The tensors on the server, in one dimension each.
        """
        return self._send(tensors, self.worker, self.server)

    def to_worker(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Sends tensors from the server to the worker in one message, as `to_server` does."""
        return self._send(tensors, self.server, self.worker)

    def without_session(self) -> Link:
        """Returns this way without the connection, so that TensorFlow sends the tensors."""
        return Link(self.worker, self.server, in_process=self.in_process)

    def _send(self, tensors: Sequence[tf.Tensor], source: str, target: str) -> list[tf.Tensor]:
        if source == target:
            with tf.device(source):
                return [_flat(t) for t in tensors]
        if self.session is None:
            return _send_by_tensorflow(tensors, source, target)
        attributes = {"session": self.session, "number": next(_numbers)}
        with tf.device(source):
            _unordered(library.twml_send_message(self.orders[source], tensors, **attributes))
        with tf.device(target):
            order, types = self.orders[target], [t.dtype for t in tensors]
            received = library.twml_receive_message(order, T=types, **attributes)
            _unordered(received[0].op)
        return list(received)


def connect(cluster: Cluster) -> list[Link]:
    """Connects this process to all servers, unless it is connected.

    Args:
        cluster: The cluster, to whose servers TensorFlow is connected.

    Returns:
        The way to each server; without servers, a way that stays in this process. TensorFlow sends
        the tensors of a server whose port for messages cannot be reached.
    """
    if not cluster.servers:
        return [Link(cluster.own_device, d) for d in cluster.devices]
    opened = _sessions.setdefault(tuple(cluster.servers), [])
    for device, address in list(zip(cluster.devices, cluster.servers, strict=True))[len(opened) :]:
        opened.append(_open_session(cluster, device, address))
    devices = [cluster.own_device, *cluster.devices]
    orders = {d: RemoteVariable("twml/order", [], tf.float32, d).handle for d in devices}
    return [
        Link(cluster.own_device, device, session, orders, p in cluster.own_servers)
        for p, (device, session) in enumerate(zip(cluster.devices, opened, strict=True))
    ]


def _open_session(cluster: Cluster, device: str, address: str) -> int | None:
    session = random.SystemRandom().getrandbits(63)
    host = address.rpartition(":")[0]
    with tf.device(device):
        port = library.twml_message_port(host=host).numpy()
    try:
        with tf.device(cluster.own_device):
            library.twml_connect_messages(
                tf.constant(port), host=host, session=session, seconds=_CONNECT_SECONDS
            )
    except tf.errors.UnavailableError as e:
        warnings.warn(
            f"TensorFlow sends the tensors of steps between this worker and {address}, which takes "
            f"more CPU time, since port {port[0]} of this server cannot be reached: {e.message}",
            RuntimeWarning,
            stacklevel=2,
        )
        return None
    return session


def _send_by_tensorflow(tensors: Sequence[tf.Tensor], source: str, target: str) -> list[tf.Tensor]:
    """Sends tensors in one message of TensorFlow: the number of bytes of each, then the bytes."""
    if len(tensors) == 1:
        with tf.device(target):
            return [_flat(tf.identity(tensors[0]))]
    with tf.device(source):
        contents = [_flat(tf.bitcast(t, tf.uint8)) for t in tensors]
        sizes = tf.stack([tf.size(each, out_type=tf.int64) for each in contents])
        together = tf.concat([_flat(tf.bitcast(sizes, tf.uint8)), *contents], axis=0)
    with tf.device(target):
        together = tf.identity(together)
        header = len(tensors) * tf.int64.size
        sizes = tf.bitcast(tf.reshape(together[:header], [-1, tf.int64.size]), tf.int64)
        contents = tf.split(together[header:], sizes, num=len(tensors))
        return [_from_bytes(b, t.dtype) for b, t in zip(contents, tensors, strict=True)]


def _flat(tensor: tf.Tensor) -> tf.Tensor:
    # In eager mode, asking for the shape would wait for the server and hold Python's global lock.
    is_flat = not tf.executing_eagerly() and tensor.shape.rank == 1
    return tensor if is_flat else tf.reshape(tensor, [-1])


def _from_bytes(content: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    if dtype.size == 1:
        return tf.bitcast(content, dtype)
    return tf.bitcast(tf.reshape(content, [-1, dtype.size]), dtype)


def _unordered(op: tf.Operation) -> None:
    """Says that an op does not write the resource that it has, so that it waits for no other op."""
    indices = tf.compat.v1.AttrValue.ListValue(i=[0])
    op._set_attr("_read_only_resource_inputs", tf.compat.v1.AttrValue(list=indices))


def without_sessions(found: Sequence[Link]) -> list[Link]:
    """Returns the ways without their connections, so that TensorFlow sends the tensors."""
    return [link.without_session() for link in found]
