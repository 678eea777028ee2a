"""A model whose training kills its rank; test_peer_runner.py trains it."""

import os
import shutil
import signal
import time
from pathlib import Path

import tensorflow as tf

from twml_ops import layers

LIMIT = 60  # seconds; only a rank that writes no checkpoint waits as long
STEPS = 30  # of two epochs
JOINED = -1  # instead of the rank of a process that replaces one
# Name -> start, rank: epoch in which the rank dies.
DEATHS = {
    "all": {(0, 0): 1, (0, 1): 1, (1, 0): 2},
    "one": {(0, 1): 0, (0, JOINED): 2},
}


class Death(tf.keras.callbacks.Callback):
    """Kills the process at the end of an epoch, when the checkpoint of two epochs is written."""

    def __init__(self, folder, deaths):
        super().__init__()
        self.folder, self.deaths = Path(folder), deaths

    def on_epoch_end(self, epoch, logs=None):
        from mpi4py import MPI  # which the group has initialized

        rank = int(os.environ["OMPI_COMM_WORLD_RANK"])
        start = int(os.environ["TWML_OPS_PEERS_RESTARTS"])
        who = rank if MPI.Comm.Get_parent() == MPI.COMM_NULL else JOINED
        if DEATHS[self.deaths].get((start, who)) != epoch:
            return
        if self.deaths == "one":
            os.kill(os.getpid(), signal.SIGKILL)
        end = time.monotonic() + LIMIT
        mine = self.folder / f"run.rank-{rank}.checkpoints"
        while not start and not list(mine.glob(f"*-step-{STEPS}/manifest.json")):
            assert time.monotonic() < end
            time.sleep(0.01)
        if rank == 1:
            shutil.rmtree(mine)  # it begins again without a checkpoint
        os.kill(os.getpid(), signal.SIGKILL)


def build(schema, dataset, *, folder: str, deaths: str = "all"):
    ids = tf.keras.Input([None], ragged=True, dtype="int64", name="sparse_ids")
    values = tf.keras.Input([None], ragged=True, dtype="float32", name="sparse_values")
    x = layers.SparseLinear(2, 16)([ids, values])
    p = tf.keras.layers.Dense(1, activation="sigmoid")(x)
    model = tf.keras.Model({"sparse_ids": ids, "sparse_values": values}, p)
    fit = model.fit
    model.fit = lambda callbacks, **rest: fit(callbacks=[*callbacks, Death(folder, deaths)], **rest)
    return model
