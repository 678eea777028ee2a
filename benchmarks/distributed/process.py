"""A Python process on one of the hosts, which answers requests in lines of JSON."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import IO, Any, Protocol

from benchmarks.distributed.network import Network

ROOT = Path(__file__).resolve().parents[2]
LOG_TAIL = 2000  # last characters of a log that error messages show
PR_SET_PDEATHSIG = 1


class HostError(Exception):
    """A process died, failed, or did not answer in time; the message ends with its log."""


class Running(Protocol):
    """A child process with pipes, as `subprocess.Popen` is one."""

    pid: int
    stdin: IO[bytes] | None
    stdout: IO[bytes] | None

    def wait(self) -> int:
        """Waits for its end; returns its exit status."""
        ...


class HostProcess:
    """A process on a host; it is killed when this process ends for any reason.

    Args:
        host: name of the host.
        start: starts the process, whose standard error is the file of its argument.
    """

    def __init__(self, host: str, start: Callable[[IO[str]], Running]) -> None:
        self.host = host
        self._log = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115
        self._pending = b""
        self._process = start(self._log)

    def request(self, message: Mapping[str, Any], timeout: float) -> dict[str, Any]:
        """Sends `message` and returns the answer; see `receive`."""
        self.send(message)
        return self.receive(timeout)

    def send(self, message: Mapping[str, Any]) -> None:
        """Sends one request; `receive` returns its answer."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError as e:
            raise HostError(self._exit_message()) from e

    def receive(self, timeout: float) -> dict[str, Any]:
        """Waits for the next answer.

        Args:
            timeout: in seconds.

        Raises:
            HostError: the process died, reported an error, or did not answer in time.
        """
        assert self._process.stdout is not None
        end = time.monotonic() + timeout
        while b"\n" not in self._pending:
            remaining = end - time.monotonic()
            if remaining <= 0 or not select.select([self._process.stdout], [], [], remaining)[0]:
                raise HostError(f"{self.host} did not answer in {timeout:.0f} s{self._log_tail()}")
            piece = os.read(self._process.stdout.fileno(), 2**16)
            if not piece:
                raise HostError(self._exit_message())
            self._pending += piece
        line, self._pending = self._pending.split(b"\n", 1)
        found: dict[str, Any] = json.loads(line)
        if "error" in found:
            raise HostError(f"{self.host}: {found['error']}")
        return found

    def pin(self, cores: Collection[int]) -> None:
        """Moves all threads of the process to other cores. Threads that start later follow them.

        Args:
            cores: numbers of the cores.
        """
        moved: set[str] = set()
        tasks = Path(f"/proc/{self._process.pid}/task")
        while left := {task.name for task in tasks.iterdir()} - moved:
            for thread in left:
                with contextlib.suppress(ProcessLookupError):  # it has ended
                    os.sched_setaffinity(int(thread), cores)
            moved |= left

    def kill(self) -> None:
        """Kills the process and its children."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._log):
            with contextlib.suppress(OSError):
                if stream is not None:
                    stream.close()

    def _exit_message(self) -> str:
        return f"{self.host} exited with status {self._process.wait()}{self._log_tail()}"

    def _log_tail(self) -> str:
        self._log.seek(0)
        log = self._log.read().strip()
        return f"; the end of its log:\n{log[-LOG_TAIL:]}" if log else ""


def run_module(
    network: Network, host: str, module: str, environment: Mapping[str, str]
) -> HostProcess:
    """Runs `python -m module` on a host.

    Args:
        network: the network of the host.
        host: name of the host.
        module: the module to run.
        environment: variables added to the environment of this process.
    """
    path = os.pathsep.join(p for p in (str(ROOT), os.environ.get("PYTHONPATH")) if p)

    def start(log: IO[str]) -> Running:
        return subprocess.Popen(
            network.on(host, [sys.executable, "-m", module]),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env={**os.environ, "PYTHONPATH": path, **environment},
            start_new_session=True,  # this process handles Ctrl-C
            preexec_fn=set_expendable,
        )

    return HostProcess(host, start)


def set_expendable() -> None:
    """Makes this process die with its parent, and be killed first when memory runs out."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    Path("/proc/self/oom_score_adj").write_text("1000")
