"""A child process that a test module shares, and that answers the tests' requests one by one.

For tests that cannot run in pytest's process and need a process that takes too long to start for
each test. The script of the child calls `serve_requests(function)`; the tests use a `ChildProcess`.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests import forked

ROOT = Path(__file__).resolve().parents[1]
TIMEOUT = 900  # seconds for an answer; only a process that hangs needs as much


class ChildTests(dict[str, Callable[[], None]]):
    """A decorator that registers the test functions of a child process, by name and in order."""

    def __call__(self, function: Callable[[], None]) -> Callable[[], None]:
        self[function.__name__] = function
        return function

    def run(self, name: str) -> None:
        """Runs one test function."""
        self[name]()


class ChildProcess:
    """A child process, started by the first request, and restarted by one after it has ended.

    Args:
        command: Arguments of the Python interpreter, to which the number of a file descriptor is
            added.
        timeout: Seconds for an answer.
    """

    def __init__(self, command: Sequence[str], timeout: float = TIMEOUT) -> None:
        self._command, self._timeout = list(command), timeout
        self._process: forked.Forked | subprocess.Popen[bytes] | None = None

    def __enter__(self) -> ChildProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def request(self, request: Any) -> Any:
        """Returns what the child's function returns for a request.

        The calling test fails if the function raises or the process ends.
        """
        if self._process is None:
            self._start()
        try:
            self._lines.write(json.dumps(request) + "\n")
            self._lines.flush()
            line = self._lines.readline()
        except (TimeoutError, ConnectionError) as e:
            line, why = "", repr(e)
        else:
            why = "no answer"
        if not line:
            status = self._end()
            pytest.fail(f"{self._command} {request}: {why}, ended with status {status}")
        answer = json.loads(line)
        if answer["error"] is not None:
            pytest.fail(answer["error"], pytrace=False)
        return answer["result"]

    def _start(self) -> None:
        self._socket, child_socket = socket.socketpair()
        path = os.pathsep.join([str(ROOT), *sys.path])
        with child_socket:
            self._process = forked.popen(
                [*self._command, str(child_socket.fileno())],
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": path},
                pass_fds=[child_socket.fileno()],
                start_new_session=True,
            )
        self._socket.settimeout(self._timeout)
        self._lines = self._socket.makefile("rw", encoding="utf-8")

    def _end(self) -> int | None:
        """Kills the process and those that it has started, and returns its status."""
        if self._process is None:
            return None
        self._lines.close()
        self._socket.close()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        status = self._process.wait()  # the status of its own end, if it had ended before
        self._process = None
        return status


def serve_requests(function: Callable[[Any], Any]) -> None:
    """Answers requests in the child until the parent closes the socket, then ends the process."""
    with socket.socket(fileno=int(sys.argv[1])) as connection:
        lines = connection.makefile("rw", encoding="utf-8")
        for line in lines:
            result, error = None, None
            try:
                result = function(json.loads(line))
            except BaseException:  # failures of pytest are not Exceptions
                error = traceback.format_exc()
            lines.write(json.dumps({"result": result, "error": error}) + "\n")
            lines.flush()
    sys.stdout.flush()
    os._exit(0)  # does not wait for threads that are still running
