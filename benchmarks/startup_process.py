"""A process of `benchmarks.startup`: runs a command of `twml-ops` and writes when it got how far.

`python -m benchmarks.startup_process FILE [ARGUMENTS]`; without arguments it imports TensorFlow.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

IMPORTED, FIRST_STEPS, END = (
    "TensorFlow is imported",
    "the first steps are done",
    "everything is written",
)


def main(out: Path, arguments: list[str]) -> None:
    """Runs the command and writes its milestones: wall and CPU seconds since the start.

    Args:
        out: JSON file to write.
        arguments: of `twml-ops train`; none: TensorFlow is imported, and nothing else.
    """
    milestones: dict[str, tuple[float, float]] = {}

    def reached(name: str) -> None:
        milestones.setdefault(name, (_seconds_since_start(), time.process_time()))

    if arguments:
        _train(arguments, reached)
    else:
        import tensorflow as tf

        _ = tf.keras.Model  # in some versions Keras is imported when it is used
        reached(IMPORTED)
    out.write_text(json.dumps(milestones))


def _train(arguments: list[str], reached: Callable[[str], None]) -> None:
    from twml_ops import _tensorflow_import, cli

    @contextmanager
    def importing() -> Iterator[None]:
        yield
        reached(IMPORTED)

    cli.prepare_imports()
    _tensorflow_import.import_within(importing)
    from twml_ops.training.callbacks import HistoryCallback

    record = HistoryCallback.on_train_batch_end

    def on_train_batch_end(self: Any, batch: int, logs: Any = None) -> None:
        reached(FIRST_STEPS)
        record(self, batch, logs)

    HistoryCallback.on_train_batch_end = on_train_batch_end  # type: ignore[method-assign]
    cli.main(arguments)
    reached(END)


def _seconds_since_start() -> float:
    """Seconds since this process was started, by the clock of Linux."""
    started = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - started / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
