"""A Python process on one of the hosts, spoken to in lines of JSON."""

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
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.distributed.network import Network

ROOT = Path(__file__).resolve().parents[2]
TAIL = 2000  # characters of a dead process's log that are shown
PR_SET_PDEATHSIG = 1


class HostError(Exception):
    """A process died or did not answer in time; the message ends with its log."""


class HostProcess:
    """`python -m module` on a host; it dies with this process, whatever kills that.

    Args:
        network: where the host is.
        host: its name.
        module: what is run.
        environment: added to this process's.
    """

    def __init__(
        self, network: Network, host: str, module: str, environment: Mapping[str, str]
    ) -> None:
        self.host = host
        self._log = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115
        self._pending = b""
        path = os.pathsep.join(p for p in (str(ROOT), os.environ.get("PYTHONPATH")) if p)
        self._process = subprocess.Popen(
            network.on(host, [sys.executable, "-m", module]),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env={**os.environ, "PYTHONPATH": path, **environment},
            start_new_session=True,  # Ctrl-C is for us to handle
            preexec_fn=_expendable,
        )

    def ask(self, message: Mapping[str, Any], timeout: float) -> dict[str, Any]:
        """Says `message` and returns the answer; see `answer`."""
        self.say(message)
        return self.answer(timeout)

    def say(self, message: Mapping[str, Any]) -> None:
        """Sends one line, whose answer is to be read later."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError as e:
            raise HostError(self._died()) from e

    def answer(self, timeout: float) -> dict[str, Any]:
        """The next line it says.

        Raises:
            HostError: it died, reported an error, or took longer than `timeout` seconds.
        """
        assert self._process.stdout is not None
        end = time.monotonic() + timeout
        while b"\n" not in self._pending:
            left = end - time.monotonic()
            if left <= 0 or not select.select([self._process.stdout], [], [], left)[0]:
                raise HostError(f"{self.host} did not answer in {timeout:.0f} s{self._tail()}")
            piece = os.read(self._process.stdout.fileno(), 2**16)
            if not piece:
                raise HostError(self._died())
            self._pending += piece
        line, self._pending = self._pending.split(b"\n", 1)
        found: dict[str, Any] = json.loads(line)
        if "error" in found:
            raise HostError(f"{self.host}: {found['error']}")
        return found

    def kill(self) -> None:
        """Ends it and what it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._log):
            with contextlib.suppress(OSError):
                if stream is not None:
                    stream.close()

    def _died(self) -> str:
        return f"{self.host} ended with status {self._process.wait()}{self._tail()}"

    def _tail(self) -> str:
        self._log.seek(0)
        log = self._log.read().strip()
        return f"; its log ends:\n{log[-TAIL:]}" if log else ""


def _expendable() -> None:
    """Dies with its parent, and first of all processes when memory runs out."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    Path("/proc/self/oom_score_adj").write_text("1000")
