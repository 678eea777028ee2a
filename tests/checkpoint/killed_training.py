"""A training that is killed at a given moment: `killed_training.py FOLDER MOMENT`.

It trains with checkpoints, writes the final variables to FOLDER/result.npz, and prints the step
from which it has continued. MOMENT is

    end                 not killed
    event:N             at the N-th operation on files under FOLDER: open, mkdir, rename, remove
    step:N              after N steps, whatever is being written then
    bytes:N:LIMIT       after N steps no file can grow beyond LIMIT bytes: the kernel kills the
                        process that writes byte LIMIT + 1
"""

import os
import resource
import signal
import sys
from pathlib import Path

import numpy as np
import tensorflow as tf

from tests.checkpoint.training import BATCH, dataset, make_small_model
from twml_ops.checkpoint import CheckpointCallback, CheckpointManager, variables_of

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


def train(folder, moment):
    """Continues the training, until the moment comes."""
    kind, *numbers = moment.split(":")
    numbers = [int(n) for n in numbers]
    callbacks = [Kill(numbers[0], [*numbers, None][1])] if kind in ("step", "bytes") else []
    model = make_small_model()
    with CheckpointManager(Path(folder) / "checkpoints", keep=2) as manager:
        checkpoint = CheckpointCallback(
            manager, num_examples=EXAMPLES, batch_size=BATCH, seed=7, every_steps=2
        )
        found = checkpoint.resume(model)
        print(f"from step {found.manifest.step if found else 0}", flush=True)
        if kind == "event":
            kill_at_event(numbers[0], folder)
        model.fit(
            **checkpoint.input(model, lambda **at: dataset(**at, count=STEPS)),
            epochs=EPOCHS, verbose=0, callbacks=[*callbacks, checkpoint],
        )  # fmt: skip
    np.savez(Path(folder) / "result.npz", **{v.name: v.view() for v in variables_of(model)})


if __name__ == "__main__":
    train(sys.argv[1], sys.argv[2])
