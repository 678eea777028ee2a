"""Who takes part in a run: parameter servers and workers, as `TF_CONFIG` says."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import hashlib
import json
import os
import socket
import tempfile
import time
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

import tensorflow as tf

from twml_ops.distribute.launch import Ports
from twml_ops.ops._library import require_native

_STAGGER_SECONDS = 0.5
_LOCAL = "/job:localhost/replica:0/task:0/device:CPU:0"

_connected: list[Cluster] = []  # the one that this process' devices are of
_own_ports: list[Ports] = []  # of an evaluator, reserved while the process lives


class ClusterError(RuntimeError):
    """A part of the cluster is gone or silent; whoever runs this process should start it anew."""


@dataclasses.dataclass(frozen=True)
class Cluster:
    """The processes of a run, and which of them this one is.

    Attributes:
        servers: "host:port" of each parameter server; none: tables are in this process.
        workers: "host:port" of each worker, the chief first.
        job: "ps", "worker" or "evaluator", what this process is.
        index: of this process in its job; worker 0 is the chief, which makes checkpoints.
        evaluators: of each evaluator that the others know of; it serves nobody.
    """

    servers: Sequence[str] = ()
    workers: Sequence[str] = ("localhost:0",)
    job: str = "worker"
    index: int = 0
    evaluators: Sequence[str] = ()

    @classmethod
    def from_environment(cls) -> Cluster:
        """What `TF_CONFIG` says; without it, a cluster of this process alone.

        A "chief", if there is one, counts as the first worker.

        Raises:
            ValueError: `TF_CONFIG` is not what TensorFlow describes.
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
        except (ValueError, TypeError, KeyError) as e:
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
                f"TF_CONFIG: task must be one of the cluster's, got {json.dumps(task)} of "
                f"{len(servers)} ps and {len(workers)} worker tasks"
            )
        return cls(servers, workers, job, index, evaluators)

    @property
    def is_chief(self) -> bool:
        """Whether this process initializes, saves and exports."""
        return self.job == "worker" and self.index == 0

    @property
    def devices(self) -> list[str]:
        """The devices that hold the tables."""
        if not self.servers:
            return [_LOCAL]
        return [f"/job:ps/replica:0/task:{i}/device:CPU:0" for i in range(len(self.servers))]

    @property
    def own_device(self) -> str:
        """The device that this process' part of a step runs on."""
        if not self.servers:
            return _LOCAL
        return f"/job:{self.job}/replica:0/task:{self.index}/device:CPU:0"

    def connect(self, timeout: float) -> None:
        """Makes the servers' devices known to this process; once, and before it makes tensors.

        Raises:
            ClusterError: a server did not answer within `timeout` seconds, or was lost meanwhile.
            ImportError: stock ops stand in for the op library, which work on servers needs.
        """
        if not self.servers or self in _connected:
            return
        require_native("Training with parameter servers")
        deadline = time.monotonic() + timeout
        for i, address in enumerate(self.servers):
            _await(address, f"ps {i}", deadline)
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
        except tf.errors.OpError as e:
            raise ClusterError(f"connecting to the servers: {e.message[:300]}") from e
        _connected[:] = [self]


def serve(cluster: Cluster) -> NoReturn:
    """Runs this process as the parameter server it is, until it is killed.

    TensorFlow's port has no authentication: it must be in a private network.
    """
    start_server(cluster).join()
    raise ClusterError("the server has ended")


def start_server(cluster: Cluster) -> Any:
    """The `tf.distribute.Server` of this task; needs the op library, which this package loads."""
    require_native("A parameter server")
    spec = tf.train.ClusterSpec({"ps": list(cluster.servers)})
    return tf.distribute.Server(spec, job_name="ps", task_index=cluster.index, protocol="grpc")


@contextlib.contextmanager
def _one_at_a_time(servers: Sequence[str], index: int) -> Iterator[None]:
    """TensorFlow's server may crash while two processes connect and run their first op at once.

    Processes of one machine wait for each other; those of several that start together, a moment.
    """
    name = hashlib.sha256(",".join(servers).encode()).hexdigest()[:16]
    if not all(s.startswith(("127.0.0.1:", "localhost:")) for s in servers):
        time.sleep(_STAGGER_SECONDS * index)
    with open(os.path.join(tempfile.gettempdir(), f"twml_ops-{os.getuid()}-{name}"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _await(address: str, name: str, deadline: float) -> None:
    host, _, port = address.rpartition(":")
    while True:
        left = deadline - time.monotonic()
        with contextlib.suppress(OSError):
            socket.create_connection((host, int(port)), timeout=max(min(left, 5.0), 0.1)).close()
            return
        if left <= 0:
            raise ClusterError(f"{name} at {address} could not be reached in time")
        time.sleep(min(0.1, left))
