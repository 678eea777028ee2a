"""A process of its own for a module's tests, which answers their requests one after the other.

For what cannot be in the process of pytest, and costs too much to start for each test. The script
ends with `answer(function)`; the tests have a `Child` of it.
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

ROOT = Path(__file__).resolve().parents[1]
LIMIT = 900  # seconds for an answer: only a process that hangs needs them


class Laws(dict[str, Callable[[], None]]):
    """A decorator that marks functions as laws, and those functions by name, in order."""

    def __call__(self, function: Callable[[], None]) -> Callable[[], None]:
        self[function.__name__] = function
        return function

    def check(self, name: str) -> None:
        """Runs one law."""
        self[name]()


class Child:
    """The process, started by the first request, and anew by one that follows its end.

    Args:
        command: arguments of the Python interpreter; the number of a file descriptor is added.
    """

    def __init__(self, command: Sequence[str]) -> None:
        self._command = list(command)
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def ask(self, request: Any) -> Any:
        """What the script's function returns; the test fails if it raises, or the process ends."""
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
        self._link, theirs = socket.socketpair()
        path = os.pathsep.join([str(ROOT), *sys.path])
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, *self._command, str(theirs.fileno())],
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": path},
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        self._link.settimeout(LIMIT)
        self._lines = self._link.makefile("rw", encoding="utf-8")

    def _end(self) -> int | None:
        """Ends the process and those that it has started; its status."""
        if self._process is None:
            return None
        self._lines.close()
        self._link.close()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        status = self._process.wait()  # its own, if it had ended
        self._process = None
        return status


def answer(function: Callable[[Any], Any]) -> None:
    """In the child: answers requests until there are no more, then ends the process."""
    with socket.socket(fileno=int(sys.argv[1])) as link:
        lines = link.makefile("rw", encoding="utf-8")
        for line in lines:
            result, error = None, None
            try:
                result = function(json.loads(line))
            except BaseException:  # pytest's failures are no Exceptions
                error = traceback.format_exc()
            lines.write(json.dumps({"result": result, "error": error}) + "\n")
            lines.flush()
    sys.stdout.flush()
    os._exit(0)  # whatever threads are still at work
