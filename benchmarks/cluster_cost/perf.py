"""Stacks of running processes by the CPU time that they use, from the program `perf` of Linux."""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

FREQUENCY = 499  # samples per second of CPU time, prime
ATTACH_SECONDS = 0.5  # in which perf finds the threads of the processes
STACK_BYTES = 8192  # of each sample; TensorFlow has no frame pointers
_FRAME = re.compile(r"^\s+[0-9a-f]+ (.*) \((.*?)\)$")
Stack = tuple[str, ...]
"""The functions of a stack as "library:function", the innermost first."""


class PerfError(Exception):
    """`perf` is not installed, or may not be used."""


@contextlib.contextmanager
def sampled(processes: Sequence[int]) -> Iterator[dict[int, Counter[Stack]]]:
    """Context manager: samples processes during its block.

    Args:
        processes: ids of the processes.

    Yields:
        A dictionary, which has the stacks of each process after the block.

    Raises:
        PerfError: the samples cannot be taken.
    """
    found: dict[int, Counter[Stack]] = {p: Counter() for p in processes}
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "perf.data"
        record = ["perf", "record", "-q", "-e", "cpu-clock", "-F", str(FREQUENCY), "-m", "2048"]
        record += ["--call-graph", f"dwarf,{STACK_BYTES}", "-o", str(data)]
        try:
            recorder = subprocess.Popen(
                [*record, "-p", ",".join(map(str, processes))],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
            )
        except OSError as e:
            raise PerfError(f"perf cannot be started: {e}") from e
        time.sleep(ATTACH_SECONDS)
        try:
            yield found
        finally:
            recorder.send_signal(signal.SIGINT)
            _, errors = recorder.communicate()
        if not data.exists() or not data.stat().st_size:
            raise PerfError(f"perf has recorded nothing: {errors.strip()[:300]}")
        script = [
            "perf",
            "script",
            "-i",
            str(data),
            "-F",
            "pid,ip,sym,dso",
            "--no-inline",
            "--no-demangle",
        ]
        text = subprocess.run(script, capture_output=True, text=True, check=True).stdout
    for process, stack in parse(text):
        if process in found:
            found[process][stack] += 1


def parse(text: str) -> Iterator[tuple[int, Stack]]:
    """Reads the output of `perf script`.

    Args:
        text: samples with the fields pid, ip, sym and dso.

    Yields:
        The process and the stack of each sample.
    """
    for sample in text.split("\n\n"):
        lines = sample.strip("\n").splitlines()
        if not lines:
            continue
        frames = (_FRAME.match(line) for line in lines[1:])
        yield int(lines[0]), tuple(f"{Path(m[2]).name}:{m[1]}" for m in frames if m)
