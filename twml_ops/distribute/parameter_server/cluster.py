"""The processes of a run: which they are, how they connect, and how a server runs.

`TF_CONFIG` describes the parameter servers and workers. TensorFlow's ports have no authentication,
so the end of this module restricts which machines can connect to them. What happens when a process
ends is in `failures`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import hashlib
import ipaddress
import json
import os
import socket
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

import tensorflow as tf

from twml_ops.distribute.launch import Ports
from twml_ops.ops._library import require_native

_STAGGER_SECONDS = 0.5
_LOOPBACK_DEVICE = b"lo\0"
_LOCAL = "/job:localhost/replica:0/task:0/device:CPU:0"

_connected: list[Cluster] = []  # the cluster that this process is connected to, if any
_own_servers: list[Any] = []  # that run in this process, until it ends
_own_ports: list[Ports] = []  # of an evaluator, reserved until the process ends


class ClusterError(RuntimeError):
    """A process of the cluster has ended or does not respond. This process has to be restarted."""


@dataclasses.dataclass(frozen=True)
class Cluster:
    """The processes of a run, and which of them the calling process is.

    Args:
        servers: "host:port" of each parameter server. Without servers, the tables are in this
            process.
        workers: "host:port" of each worker, the chief first.
        job: The job of this process: "ps", "worker" or "evaluator".
        index: The number of this process in its job. Worker 0 is the chief, which initializes the
            servers, saves checkpoints and exports the model.
        evaluators: "host:port" of each evaluator that `TF_CONFIG` lists. No process connects to
            an evaluator.
        own_servers: The numbers of the servers that this process, a worker, runs itself. What it
            exchanges with them does not leave the process. If it ends, so do they.
        start: A text that is another one in each start of the cluster, and the same in a process
            that is restarted.
    """

    servers: Sequence[str] = ()
    workers: Sequence[str] = ("localhost:0",)
    job: str = "worker"
    index: int = 0
    evaluators: Sequence[str] = ()
    own_servers: Sequence[int] = ()
    start: str = ""

    @classmethod
    def from_environment(cls) -> Cluster:
        """Reads the environment variable `TF_CONFIG`, in the format of TensorFlow.

        A "chief", if there is one, counts as the first worker. The task of a worker may have
        "servers", a list of the numbers of the "ps" tasks that it runs in its own process. "start"
        beside "cluster" and "task" is the `start`.

        Returns:
            The cluster; without `TF_CONFIG`, one that consists of this process alone.

        Raises:
            ValueError: `TF_CONFIG` does not have the format, or does not list this task.
        """
        text = os.environ.get("TF_CONFIG", "")
        if not text.strip():
            return cls()
        try:
            config = json.loads(text)
            jobs, task = config["cluster"], config["task"]
            job, index = str(task["type"]), int(task["index"])
            chiefs, servers = list(jobs.get("chief", [])), list(jobs.get("ps", []))
            workers = chiefs + list(jobs.get("worker", []))
            evaluators = list(jobs.get("evaluator", []))
            own_servers = [int(s) for s in task.get("servers", [])]
            start = str(config.get("start", ""))
        except (ValueError, TypeError, KeyError, RecursionError) as e:
            raise ValueError(
                'TF_CONFIG must be JSON with "cluster" (lists of "host:port" for "ps" and '
                f'"worker") and "task" ("type" and "index"), got {text!r}'
            ) from e
        if job == "worker":
            index += len(chiefs)
        job = "worker" if job in ("chief", "master") else job
        size = {"ps": len(servers), "worker": len(workers), "evaluator": index + 1}.get(job)
        if size is None or not 0 <= index < size:
            raise ValueError(
                f"TF_CONFIG: task must be one of the {len(servers)} ps and {len(workers)} worker "
                f"tasks of the cluster, got {json.dumps(task)}"
            )
        if own_servers and (
            job != "worker"
            or len(set(own_servers)) < len(own_servers)
            or not 0 <= min(own_servers) <= max(own_servers) < len(servers)
        ):
            raise ValueError(
                f'TF_CONFIG: "servers" of a task must be different numbers of the {len(servers)} '
                f"ps tasks, and the task a worker, got {json.dumps(task)}"
            )
        return cls(servers, workers, job, index, evaluators, own_servers, start)

    @property
    def start_id(self) -> str:
        """Tells the starts of clusters apart: by `start` and by the addresses of all processes."""
        text = json.dumps([self.start, list(self.servers), list(self.workers)])
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def is_chief(self) -> bool:
        """Whether this process initializes the servers, saves checkpoints and exports the model."""
        return self.job == "worker" and self.index == 0

    @property
    def devices(self) -> list[str]:
        """The TensorFlow devices that hold the tables, one for each server."""
        if not self.servers:
            return [_LOCAL]
        return [f"/job:ps/replica:0/task:{i}/device:CPU:0" for i in range(len(self.servers))]

    @property
    def own_device(self) -> str:
        """The TensorFlow device that runs this process' part of a step."""
        if not self.servers:
            return _LOCAL
        return f"/job:{self.job}/replica:0/task:{self.index}/device:CPU:0"

    def connect(self, timeout: float) -> None:
        """Connects this process to the servers. It must not have created tensors before.

        Does nothing if it is connected already, or if there are no servers.

        Args:
            timeout: Limit in seconds for each server to accept connections.

        Raises:
            ClusterError: A server of this process cannot listen at its address, a server could not
                be reached within `timeout` seconds, or the connection failed.
            ImportError: The op library, which servers need, is not loaded.
        """
        if not self.servers or self in _connected:
            return
        require_native("Training with parameter servers")
        deadline = time.monotonic() + timeout
        for i in self.own_servers:
            try:
                _own_servers.append(start_server(dataclasses.replace(self, job="ps", index=i)))
            except tf.errors.OpError as e:
                raise ClusterError(
                    f"{self.job} {self.index} cannot run ps {i}: its port must be free on this "
                    f"host, and no other process may run it, got {self.servers[i]} "
                    f"({e.message[:300]})"
                ) from e
        for i, address in enumerate(self.servers):
            _wait_for_port(address, f"ps {i}", deadline)
        if self.job == "worker":
            own = self.workers[self.index]
        else:
            _own_ports.append(Ports(1))
            own = f"localhost:{_own_ports[-1].numbers[0]}"
        spec = tf.train.ClusterSpec(
            {
                "ps": list(self.servers),
                self.job: {self.index: own.replace("localhost", "127.0.0.1")},
            }
        )
        try:
            with _one_at_a_time(self.servers, self.index):
                tf.config.experimental_connect_to_cluster(
                    spec, job_name=self.job, task_index=self.index, protocol="grpc"
                )
                for device in self.devices:
                    with tf.device(device):
                        tf.zeros([1]).numpy()
            restrict_port(own)
        except tf.errors.OpError as e:
            raise ClusterError(f"connecting to the servers: {e.message[:300]}") from e
        _connected[:] = [self]


def serve(cluster: Cluster) -> NoReturn:
    """Runs a parameter server in this process until it is killed.

    TensorFlow's port has no authentication and listens on all interfaces. If the address of the
    server is one of the loopback, other machines cannot connect to it; otherwise a warning says
    that the port must be reachable from a private network only.

    Args:
        cluster: The cluster, in which this process is a "ps" task.

    Raises:
        ClusterError: The server has ended by itself.
        ImportError: The op library is not loaded.
    """
    start_server(cluster).join()
    raise ClusterError("the server has ended")


def start_server(cluster: Cluster) -> Any:
    """Starts the `tf.distribute.Server` of this task; its kernels come from the op library."""
    require_native("A parameter server")
    spec = tf.train.ClusterSpec({"ps": list(cluster.servers)})
    # A server waits for most of a step. By default its threads would look for work all the time.
    config = tf.compat.v1.ConfigProto()
    config.experimental.disable_thread_spinning = True
    server = tf.distribute.Server(
        spec, job_name="ps", task_index=cluster.index, protocol="grpc", config=config
    )
    restrict_port(cluster.servers[cluster.index])
    return server


@contextlib.contextmanager
def _one_at_a_time(servers: Sequence[str], index: int) -> Iterator[None]:
    """Lets processes connect one after the other.

    TensorFlow's server may crash if two processes connect and run their first op at the same time.
    Processes of one machine wait for a file lock. Processes of several machines wait for a time
    that depends on their index.
    """
    name = hashlib.sha256(",".join(servers).encode()).hexdigest()[:16]
    if not all(s.startswith(("127.0.0.1:", "localhost:")) for s in servers):
        time.sleep(_STAGGER_SECONDS * index)
    # In a folder that others can write to: no link is followed, and nothing is truncated.
    path = os.path.join(tempfile.gettempdir(), f"twml_ops-{os.getuid()}-{name}")
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _wait_for_port(address: str, name: str, deadline: float) -> None:
    host, _, port = address.rpartition(":")
    while True:
        left = deadline - time.monotonic()
        with contextlib.suppress(OSError):
            socket.create_connection((host, int(port)), timeout=max(min(left, 5.0), 0.1)).close()
            return
        if left <= 0:
            raise ClusterError(f"{name} at {address} could not be reached in time")
        time.sleep(min(0.1, left))


def restrict_port(address: str) -> None:
    """Lets only processes of this machine connect to a port of this process.

    TensorFlow cannot be told on which interface to listen. Linux can bind a socket that listens
    already to the loopback device. If that is not possible, or the address is one that other
    machines use, a warning says who can connect.

    Args:
        address: "host:port" of this task.
    """
    host, _, port = address.rpartition(":")
    if not _is_loopback(host):
        why = f"its address is {host}"
    elif not sys.platform.startswith("linux"):
        why = "this system cannot bind it to the loopback device"
    else:
        found = list(_listeners(int(port)))
        try:
            for each in found:
                each.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, _LOOPBACK_DEVICE)
            if found:
                return
            why = "its socket was not found"
        except OSError as e:
            why = f"it cannot be bound to the loopback device: {e.strerror}"
        finally:
            for each in found:
                each.close()
    warnings.warn(
        f"port {port} of TensorFlow listens on all interfaces, without authentication ({why}): it "
        "must be reachable from a private network only",
        RuntimeWarning,
        stacklevel=3,
    )


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _listeners(port: int) -> Iterator[socket.socket]:
    """Copies of the sockets of this process that listen on a port."""
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                continue
            copy = socket.socket(fileno=os.dup(int(name)))
            is_ip = copy.family in (socket.AF_INET, socket.AF_INET6)
            if (
                is_ip
                and copy.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
                and copy.getsockname()[1] == port
            ):
                yield copy
            else:
                copy.close()
