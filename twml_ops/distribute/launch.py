"""A whole cluster on this machine: starts its processes, and starts anew those that die.

On a real cluster Kubernetes does this.
"""

from __future__ import annotations

import ctypes
import dataclasses
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import IO

from twml_ops import _child

EXIT_LOST = 75
"""Exit status of a process that lost its servers or peers and wants to be started anew."""

_PR_SET_PDEATHSIG = 1


@dataclasses.dataclass
class Task:
    """One process of the cluster.

    Attributes:
        job: "ps", "worker" or "evaluator".
        index: in its job.
        process: the running one.
        restarts: how often it was started anew.
    """

    job: str
    index: int
    process: subprocess.Popen[str]
    restarts: int = 0

    @property
    def name(self) -> str:
        """As it is shown."""
        return f"{self.job} {self.index}"


class LocalCluster:
    """Parameter servers and workers on 127.0.0.1, each a process that runs `command`.

    Args:
        command: what a worker runs; it finds the cluster in `TF_CONFIG`.
        servers: how many parameter servers.
        workers: how many workers.
        server_command: what a server runs; None: the servers of this package.
        max_restarts: of one task; one more death ends everything.
        environment: variables to add.
        evaluators: how many evaluators, which run `command` too.
        show: gets each line that a process writes, with the task's name before it.
    """

    def __init__(
        self,
        command: Sequence[str],
        servers: int,
        workers: int,
        server_command: Sequence[str] | None = None,
        max_restarts: int = 50,
        environment: dict[str, str] | None = None,
        show: Callable[[str], None] = print,
        evaluators: int = 0,
    ) -> None:
        least_counts = (
            ("servers", servers, 0),
            ("workers", workers, 1),
            ("evaluators", evaluators, 0),
        )
        for name, count, least in least_counts:
            if count < least:
                raise ValueError(f"{name} must be at least {least}, got {count}")
        if not servers and workers > 1:
            raise ValueError(f"several workers need at least 1 server, got {workers} and none")
        if not servers and evaluators:
            raise ValueError(f"evaluators need at least 1 server, got {evaluators} and none")
        self._commands = {
            "worker": list(command),
            "evaluator": list(command),
            "ps": list(server_command or _child.command("twml_ops.distribute.serve")),
        }
        self._ports = Ports(servers + workers + evaluators)
        free = iter(self._ports.numbers)
        counts = {"ps": servers, "worker": workers, "evaluator": evaluators}
        addresses = {
            job: [f"127.0.0.1:{next(free)}" for _ in range(n)] for job, n in counts.items()
        }
        self.cluster = {job: a for job, a in addresses.items() if a or job != "evaluator"}
        self._max_restarts = max_restarts
        self._environment = environment or {}
        self._show = show
        self._readers: list[threading.Thread] = []
        self.tasks: list[Task] = []

    def __enter__(self) -> LocalCluster:
        for job, addresses in self.cluster.items():
            self.tasks += [Task(job, i, self._start(job, i)) for i in range(len(addresses))]
        return self

    def __exit__(self, *_: object) -> None:
        for task in self.tasks:
            if task.process.poll() is None:
                task.process.kill()
        for task in self.tasks:
            task.process.wait()
        for reader in self._readers:
            reader.join()
        self._ports.close()

    def wait(self, timeout: float | None = None) -> int:
        """Until all workers and evaluators have succeeded, starting anew what dies.

        A process that a signal ended, or that ends with `EXIT_LOST`, is started anew; one that
        ends with another status other than 0 has failed, and with it the whole.

        Returns:
            0, or the status of the process that failed.

        Raises:
            TimeoutError: `timeout` seconds have passed.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while any(t.process.poll() != 0 for t in self.tasks if t.job != "ps"):
            if deadline is not None and time.monotonic() > deadline:
                raise TimeoutError(f"the workers did not end within {timeout} s")
            for task in self.tasks:
                status = task.process.poll()
                if status is None or (status == 0 and task.job != "ps"):
                    continue
                if status not in (EXIT_LOST, 0) and status > 0:
                    self._show(f"[{task.name}] failed with status {status}")
                    return status
                if task.restarts >= self._max_restarts:
                    self._show(f"[{task.name}] died {task.restarts + 1} times")
                    return 1
                why = f"by signal {-status}" if status < 0 else f"with status {status}"
                self._show(f"[{task.name}] ended {why}: started anew")
                task.restarts += 1
                task.process = self._start(task.job, task.index)
            time.sleep(0.05)
        return 0

    def _start(self, job: str, index: int) -> subprocess.Popen[str]:
        config = {"cluster": self.cluster, "task": {"type": job, "index": index}}
        if not self.cluster["ps"]:
            config = {}
        process = subprocess.Popen(
            self._commands[job],
            env={
                **os.environ,
                **self._environment,
                **({"TF_CONFIG": json.dumps(config)} if config else {}),
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            preexec_fn=_die_with_parent,
        )
        assert process.stdout is not None
        reader = threading.Thread(target=self._relay, args=(process.stdout, f"{job} {index}"))
        reader.start()
        self._readers.append(reader)
        return process

    def _relay(self, stream: IO[str], name: str) -> None:
        with stream:
            for line in stream:
                self._show(f"[{name}] {line.rstrip()}")


def _die_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


class Ports:
    """Different free ports of 127.0.0.1, reserved until `close`.

    Each is bound by a socket that does not listen. The system then assigns it to nobody else,
    while a program that is told its number can listen there, if it sets SO_REUSEADDR as gRPC does.
    Systems other than Linux do not allow this: the ports are released at once there.

    Args:
        count: how many.

    Attributes:
        numbers: of the ports.
    """

    def __init__(self, count: int) -> None:
        self._sockets = [socket.socket() for _ in range(count)]
        for s in self._sockets:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            s.bind(("127.0.0.1", 0))
        self.numbers = [int(s.getsockname()[1]) for s in self._sockets]
        if sys.platform != "linux":
            self.close()

    def close(self) -> None:
        """Releases them."""
        for s in self._sockets:
            s.close()
