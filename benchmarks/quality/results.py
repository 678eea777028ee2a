"""The results in a JSON file. It is written after each run, so an interrupted session resumes."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from benchmarks import tables


class Results:
    """What has been measured so far.

    Args:
        path: the JSON file; it need not exist.

    Attributes:
        content: the content of the file: `machine`, `data`[name] (rows and description),
            `tuned`[data set][peer] (settings, tried settings, cpu_seconds) and
            `runs`[data set][contender][seed] (metrics).
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.content: dict[str, Any] = {"machine": {}, "data": {}, "tuned": {}, "runs": {}}
        if path.exists():
            self.content = json.loads(path.read_text())

    def tuned(self, data: str, peer: str) -> dict[str, Any] | None:
        """The result of tuning a peer, if there is one."""
        found: dict[str, Any] | None = self.content["tuned"].get(data, {}).get(peer)
        return found

    def has(self, data: str, contender: str, seed: int) -> bool:
        """Whether a run has been measured."""
        return str(seed) in self.content["runs"].get(data, {}).get(contender, {})

    def add_tuned(self, data: str, peer: str, found: dict[str, Any]) -> None:
        """Records the result of tuning a peer."""
        self.content["tuned"].setdefault(data, {})[peer] = found
        self.write()

    def add(self, data: str, contender: str, seed: int, metrics: dict[str, Any]) -> None:
        """Records a run."""
        by_contender = self.content["runs"].setdefault(data, {})
        by_contender.setdefault(contender, {})[str(seed)] = metrics
        self.write()

    def forget(self, data: str, contender: str) -> None:
        """Removes the runs of a contender, and its settings."""
        self.content["tuned"].get(data, {}).pop(contender, None)
        self.content["runs"].get(data, {}).pop(contender, None)

    def write(self) -> None:
        """Replaces the file."""
        partial = self._path.with_suffix(".partial")
        tables.write_results(partial, self.content)
        os.replace(partial, self._path)
