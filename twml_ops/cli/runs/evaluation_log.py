"""The metrics of each checkpoint of a cluster's run: a file with one JSON object per line."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import Any

from twml_ops._publish import write_file
from twml_ops.cli.render.json_output import to_finite

FILE = "evaluations.jsonl"


def append(folder: Path, step: int, metrics: dict[str, float]) -> None:
    """Adds the metrics of the checkpoint of `step`."""
    before = (folder / FILE).read_text() if (folder / FILE).exists() else ""
    line = json.dumps(to_finite({"step": step, **metrics}), allow_nan=False)
    write_file(folder / FILE, f"{before}{line}\n".encode())  # at once, in case of a kill


def read(folder: Path) -> list[dict[str, Any]]:
    """The lines of the log; empty if there is no log."""
    try:
        return [json.loads(line) for line in (folder / FILE).read_text().splitlines()]
    except FileNotFoundError:
        return []


def wait_for_step(folder: Path, step: int, timeout: float) -> bool:
    """Waits until a checkpoint of `step` or a later one has been evaluated.

    Args:
        folder: folder of the log.
        step: step to wait for.
        timeout: seconds to wait at most.

    Returns:
        Whether it was evaluated in time.
    """
    deadline = time.monotonic() + timeout
    while not any(line["step"] >= step for line in read(folder)):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


def copy_to_run(folder: Path, run: Path) -> None:
    """Copies the log, if there is one, to the folder of the run."""
    if (folder / FILE).exists():
        shutil.copyfile(folder / FILE, run / FILE)
