"""What an evaluator has said of a run's checkpoints: a line of JSON each."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import Any

from twml_ops.cli.runs.folder import finite, new_file

FILE = "evaluations.jsonl"


def add(folder: Path, step: int, metrics: dict[str, float]) -> None:
    """Notes the metrics of the checkpoint of `step`."""
    before = (folder / FILE).read_text() if (folder / FILE).exists() else ""
    line = json.dumps(finite({"step": step, **metrics}), allow_nan=False)
    with new_file(folder / FILE) as part:  # whole or not at all, whenever this process is killed
        part.write_text(f"{before}{line}\n")


def read(folder: Path) -> list[dict[str, Any]]:
    """What was noted; nothing where nobody has."""
    try:
        return [json.loads(line) for line in (folder / FILE).read_text().splitlines()]
    except FileNotFoundError:
        return []


def await_step(folder: Path, step: int, timeout: float) -> bool:
    """Waits until a checkpoint of `step` or later has been evaluated; whether it was in time."""
    deadline = time.monotonic() + timeout
    while not any(line["step"] >= step for line in read(folder)):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


def keep(folder: Path, run: Path) -> None:
    """Copies what was noted, if anything was, into the finished run."""
    if (folder / FILE).exists():
        shutil.copyfile(folder / FILE, run / FILE)
