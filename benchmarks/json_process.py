"""Processes that measure something when they are told to, in lines of JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Any, TypeVar

from benchmarks.tiered_process import group_of

Process = TypeVar("Process", bound="JsonProcess")


class JsonProcess:
    """A process that reads its setting from a line of JSON, and then one line for each turn.

    Args:
        module: what it runs.
        setting: its setting.
        environment: variables beside the variables of this process.
    """

    def __init__(
        self, module: str, setting: dict[str, Any], environment: Mapping[str, str]
    ) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment},
        )
        self._send(setting)

    def __enter__(self: Process) -> Process:
        return self

    def __exit__(self, *error: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
        group = group_of(self._process.pid)
        if group.is_dir():
            group.rmdir()

    def _ask(self, value: Any) -> dict[str, Any]:
        """Sends a line and returns the answer."""
        self._send(value)
        return self._receive()

    def _send(self, value: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(value) + "\n")
        self._process.stdin.flush()

    def _receive(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the process ended with {self._process.wait()}")
        found: dict[str, Any] = json.loads(line)
        return found
