"""Trainings that are killed at given moments. The script of a child process of test_killed.py.

Each training runs in a process forked from one that has imported all modules. It trains with
checkpoints and writes the final variables to FOLDER/result.npz. A moment is

    end                 not killed
    event:N             at the N-th operation on files under FOLDER: open, mkdir, rename, remove
    step:N              after N steps, whatever is being written then
    bytes:N:LIMIT       after N steps no file can grow beyond LIMIT bytes: the kernel kills the
                        process that writes byte LIMIT + 1
    cpu:MS              when the process has used so many milliseconds of processor time since
                        the training began; the kernel kills it
"""

import os
import resource
import signal
import sys
import traceback
from pathlib import Path

import numpy as np
import tensorflow as tf

from tests.checkpoint.training import BATCH, dataset, make_small_model
from tests.child_process import serve_requests
from twml_ops import layers
from twml_ops.checkpoint import CheckpointCallback, CheckpointManager, TablePolicy, variables_of

EVENTS = ("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.scandir")
STEPS, EPOCHS = 20, 2
EXAMPLES = (STEPS - 1) * BATCH + 9


class Kill(tf.keras.callbacks.Callback):
    """Kills the process after some steps, or limits the size of its files."""

    def __init__(self, steps, limit):
        super().__init__()
        self._left, self._limit = steps, limit

    def on_train_batch_end(self, batch, logs=None):
        """Counts."""
        self._left -= 1
        if self._left == 0 and self._limit is None:
            os.kill(os.getpid(), signal.SIGKILL)
        elif self._left == 0:
            signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            resource.setrlimit(resource.RLIMIT_FSIZE, (self._limit, self._limit))


def kill_at_event(number, folder):
    """Kills the process at an operation on files of the folder."""
    left = number

    def count(event, arguments):
        nonlocal left
        if event in EVENTS and str(arguments[0]).startswith(folder):
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(count)


def train(folder, moment, policy, in_file, report):
    """Continues the training, until the moment comes."""
    kind, *numbers = moment.split(":")
    numbers = [int(n) for n in numbers]
    callbacks = [Kill(numbers[0], [*numbers, None][1])] if kind in ("step", "bytes") else []
    # A batch has up to 45 distinct ids, so every batch evicts rows and reads others.
    # The limit of a file's size is an error instead of a signal past the page cache, and for writes
    # of io_uring.
    plain = {"direct": False, "io_uring": False} if kind == "bytes" else {}
    storage = layers.Tiered(Path(folder) / "rows", cache_rows=48, **plain) if in_file else None
    model = make_small_model(storage=storage)
    tables = TablePolicy(policy)
    with CheckpointManager(Path(folder) / "checkpoints", keep=2, tables=tables) as manager:
        checkpoint = CheckpointCallback(
            manager, num_examples=EXAMPLES, batch_size=BATCH, seed=7, every_steps=2
        )
        found = checkpoint.resume(model)
        report(found.manifest.step if found else 0)
        if kind == "event":
            kill_at_event(numbers[0], folder)
        if kind == "cpu":  # the action of SIGPROF is the end of the process
            signal.signal(signal.SIGPROF, signal.SIG_DFL)
            signal.setitimer(signal.ITIMER_PROF, numbers[0] / 1e3)
        model.fit(
            **checkpoint.input(model, lambda **at: dataset(**at, count=STEPS)),
            epochs=EPOCHS, verbose=0, shuffle=False, callbacks=[*callbacks, checkpoint],
        )  # fmt: skip
    np.savez(Path(folder) / "result.npz", **{v.name: v.view() for v in variables_of(model)})


def run(folder, moment, policy="full", in_file=False):
    """Trains in a process of its own; its exit status, and the step that it has continued from."""
    reading, writing = os.pipe()
    Path(folder).mkdir(parents=True, exist_ok=True)
    pid = os.fork()
    if pid == 0:
        try:
            os.close(reading)
            report = lambda step: os.write(writing, f"{step}".encode())  # noqa: E731
            train(folder, moment, policy, in_file, report)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        step = int(pipe.read() or -1)
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status), step


if __name__ == "__main__":
    serve_requests(lambda request: run(**request))
