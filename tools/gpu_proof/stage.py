"""Child processes that report what they do line by line, and may crash or hang.

A child writes {"start": name} before each item and {"done": name, "why": null or an error, ...}
after it, and leaves out as many items as --skip says.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from typing import IO, Any

MOST_RESTARTS = 20


def call(command: Sequence[Any], folder: Any, deadline: float) -> tuple[int | None, str]:
    """Runs a command and its children, and ends them at a time of time.monotonic().

    Returns:
        The exit status, None if it was ended or cannot be started, and what it has written.
    """
    with tempfile.TemporaryFile("w+") as output:
        try:
            child = _start(command, folder, output, subprocess.STDOUT)
        except OSError as e:
            return None, str(e)
        try:
            code: int | None = child.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            code = None
        finally:
            _end(child)
        output.seek(0)
        return code, output.read()


def run(
    command: Sequence[Any],
    folder: Any,
    deadline: float,
    limit: float,
    report: Callable[[dict[str, Any]], None],
) -> bool:
    """Runs a child, and again without the items that are done when it crashes or hangs.

    Args:
        command: The child.
        folder: Where it runs.
        deadline: When it is ended, of time.monotonic().
        limit: Seconds after which an item counts as hanging.
        report: Receives the line of each item when it is done.

    Returns:
        Whether all items are done.
    """
    done = 0
    for _ in range(MOST_RESTARTS):
        ended = _run_once([*command, "--skip", str(done)], folder, deadline, limit, report)
        done += ended.done
        if ended.why is None or ended.running is None:
            if ended.why is not None and ended.why != "time":
                report({"done": "start of the process", "why": ended.why, "seconds": 0})
            return ended.why is None
        if ended.why == "time":
            return False
        report({"done": ended.running, "why": ended.why, "seconds": ended.seconds})
        done += 1
    return False


class _Ended:
    """How many items a child has done, and why it ended early; "time": it was the deadline."""

    def __init__(self) -> None:
        self.done = 0
        self.running: str | None = None
        self.seconds = 0.0
        self.why: str | None = None


def _run_once(
    command: Sequence[Any],
    folder: Any,
    deadline: float,
    limit: float,
    report: Callable[[dict[str, Any]], None],
) -> _Ended:
    ended = _Ended()
    with tempfile.TemporaryFile("w+") as errors:
        child = _start(command, folder, subprocess.PIPE, errors)
        lines: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=_read, args=(child.stdout, lines), daemon=True).start()
        begin = time.monotonic()
        try:
            while True:
                until = min(deadline, begin + limit)
                try:
                    line = lines.get(timeout=max(0.0, until - time.monotonic()))
                except queue.Empty:
                    hangs = until < deadline
                    ended.why = f"did not end within {limit:.0f} s" if hangs else "time"
                    break
                if line is None:
                    code = child.wait()
                    errors.seek(0)
                    if ended.running is not None or (code != 0 and ended.done == 0):
                        ended.why = f"the process ended with {code}: {errors.read()[-2000:]}"
                    break
                message = json.loads(line)
                begin, ended.running = time.monotonic(), message.get("start")
                if ended.running is None:
                    ended.done += 1
                    report(message)
        finally:
            _end(child)
    ended.seconds = round(time.monotonic() - begin, 3)
    return ended


def _start(command: Sequence[Any], folder: Any, output: Any, errors: Any) -> subprocess.Popen[str]:
    words = [str(c) for c in command]
    return subprocess.Popen(
        words, cwd=folder, stdout=output, stderr=errors, text=True, start_new_session=True
    )


def _end(child: subprocess.Popen[str]) -> None:
    """Ends a child and its children, which are the processes of its session."""
    if child.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
    child.wait()
    if child.stdout is not None:
        child.stdout.close()


def _read(stream: IO[str] | None, lines: queue.Queue[str | None]) -> None:
    with contextlib.suppress(ValueError):  # the stream was closed
        for line in stream or ():
            lines.put(line)
    lines.put(None)
