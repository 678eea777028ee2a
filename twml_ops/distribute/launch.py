"""Runs a whole cluster on this machine: starts its processes and restarts those that die.

On a real cluster, Kubernetes or another scheduler does this.
"""

from __future__ import annotations

import dataclasses
import json
import os
import secrets
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import IO, Any

from twml_ops import _child
from twml_ops._child import EXIT_LOST as EXIT_LOST


@dataclasses.dataclass
class Task:
    """One process of the cluster.

    Attributes:
        job: "ps", "worker" or "evaluator".
        index: The number of the task in its job.
        process: The process that runs it now.
        restarts: How often it was restarted.
    """

    job: str
    index: int
    process: subprocess.Popen[str]
    restarts: int = 0

    @property
    def name(self) -> str:
        """The name in the output, such as "worker 0"."""
        return f"{self.job} {self.index}"


class LocalCluster:
    """Parameter servers, workers and evaluators on 127.0.0.1, each a process.

    Used as a context manager: the processes start at the beginning of the `with` block and are
    killed at its end.

    Args:
        command: The command of a worker or evaluator, which reads the cluster from `TF_CONFIG`.
        servers: Number of parameter servers.
        workers: Number of workers, at least 1.
        server_command: The command of a parameter server; None: `twml_ops.distribute.serve`.
        max_restarts: How often one task may be restarted. If it dies once more, the cluster ends.
        environment: Environment variables to add to the environment of this process.
        show: Called with each line that a process writes, prefixed with the task's name.
        evaluators: Number of evaluators.
        servers_in_workers: Whether worker p mod `workers` runs server p in its own process, instead
            of a process of its own. It must call `HybridTrainer.finish` at its end. With as many
            servers as workers each worker has a part of the tables, and no other process has any.

    Attributes:
        cluster: "host:port" of each task, by job, as in `TF_CONFIG`.
        tasks: The running tasks.

    Raises:
        ValueError: A count is too small, or there are several workers or evaluators, or servers are
            to be in workers, but there is no server.
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
        servers_in_workers: bool = False,
    ) -> None:
        minimum_counts = (
            ("servers", servers, 0),
            ("workers", workers, 1),
            ("evaluators", evaluators, 0),
        )
        for name, count, minimum in minimum_counts:
            if count < minimum:
                raise ValueError(f"{name} must be at least {minimum}, got {count}")
        if not servers and workers > 1:
            raise ValueError(
                f"several workers need at least 1 server, got {workers} workers and 0 servers"
            )
        if not servers and evaluators:
            raise ValueError(
                f"evaluators need at least 1 server, got {evaluators} evaluators and 0 servers"
            )
        if servers_in_workers and not servers:
            raise ValueError("servers_in_workers needs at least 1 server, got 0 servers")
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
        self._start_id = secrets.token_hex(8)
        self._servers_in_workers = servers_in_workers
        self._max_restarts = max_restarts
        self._environment = environment or {}
        self._show = show
        self._readers: list[threading.Thread] = []
        self.tasks: list[Task] = []

    def __enter__(self) -> LocalCluster:
        for job, addresses in self.cluster.items():
            if job == "ps" and self._servers_in_workers:
                continue
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
        """Waits until all workers and evaluators have succeeded, and restarts tasks that die.

        A process that was ended by a signal or with status `EXIT_LOST` is restarted. One that ends
        with any other status except 0 has failed, and the cluster with it.

        Args:
            timeout: Limit in seconds; None: no limit.

        Returns:
            0; or the status of the process that failed; or 1 if a task has died more than
            `max_restarts` times.

        Raises:
            TimeoutError: The workers and evaluators have not ended within `timeout` seconds.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while any(t.process.poll() != 0 for t in self.tasks if t.job != "ps"):
            if deadline is not None and time.monotonic() > deadline:
                raise TimeoutError(f"the workers have not ended within {timeout} s")
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
                cause = f"by signal {-status}" if status < 0 else f"with status {status}"
                self._show(f"[{task.name}] ended {cause}: restarted")
                task.restarts += 1
                task.process = self._start(task.job, task.index)
            time.sleep(0.05)
        return 0

    def _start(self, job: str, index: int) -> subprocess.Popen[str]:
        task: dict[str, Any] = {"type": job, "index": index}
        if job == "worker" and self._servers_in_workers:
            workers = len(self.cluster["worker"])
            task["servers"] = list(range(index, len(self.cluster["ps"]), workers))
        config = {"cluster": self.cluster, "task": task, "start": self._start_id}
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
            preexec_fn=_child.die_with_parent,
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


class Ports:
    """Different free ports of 127.0.0.1, reserved until `close`.

    Each port is bound by a socket that does not listen. The system then assigns it to no other
    program, but a program that is given its number can listen there if it sets SO_REUSEADDR, as
    gRPC does. Systems other than Linux do not allow this, so there the ports are released at once.

    Args:
        count: The number of ports.

    Attributes:
        numbers: The port numbers.
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
        """Releases the ports."""
        for s in self._sockets:
            s.close()
