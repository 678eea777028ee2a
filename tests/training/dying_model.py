"""A model whose training kills its rank; test_peer_runner.py trains it."""

import os
import shutil
import signal
import time
from pathlib import Path

import numpy as np
import tensorflow as tf

from twml_ops import layers

LIMIT = 60  # seconds; only a rank that writes no checkpoint waits as long
STEPS = 28  # of two epochs of the training with early stopping
JOINED = -1  # instead of the rank of a process that replaces one
# Name -> start, rank: the batch of the process in which the rank dies.
DEATHS = {
    "all": {(0, 0): STEPS + 2, (0, 1): STEPS + 2, (1, 0): 20},
    "one": {(0, 1): 3, (0, JOINED): 33},
}
batches = 0  # of this process


@tf.keras.utils.register_keras_serializable("tests")
class Dying(tf.keras.layers.Layer):
    """Returns its input, or kills the process when the checkpoint of two epochs is written."""

    def __init__(self, folder="", deaths="", **options):
        super().__init__(**options)
        self.folder, self.deaths = folder, deaths

    def call(self, inputs, training=None):
        if not training:
            return inputs
        counted = tf.numpy_function(self._count, [inputs], tf.float32)
        return inputs + tf.stop_gradient(tf.reshape(counted, [1, 1]))

    def _count(self, _):
        global batches
        from mpi4py import MPI  # which the group has initialized

        batches += 1
        rank = int(os.environ["OMPI_COMM_WORLD_RANK"])
        start = int(os.environ["TWML_OPS_PEERS_RESTARTS"])
        who = rank if MPI.Comm.Get_parent() == MPI.COMM_NULL else JOINED
        if DEATHS[self.deaths].get((start, who)) != batches:
            return np.float32(0)
        end = time.monotonic() + LIMIT
        mine = Path(self.folder) / f"run.rank-{rank}.checkpoints"
        while self.deaths == "all" and not start and not list(mine.glob(f"*{STEPS}/manifest.json")):
            assert time.monotonic() < end
            time.sleep(0.01)
        if (self.deaths, rank, start) == ("all", 1, 0):
            shutil.rmtree(mine)  # it begins again without a checkpoint
        os.kill(os.getpid(), signal.SIGKILL)
        return np.float32(0)

    def get_config(self):
        return {**super().get_config(), "folder": self.folder, "deaths": self.deaths}


def build(schema, dataset, *, folder: str, deaths: str = "all"):
    ids = tf.keras.Input([None], ragged=True, dtype="int64", name="sparse_ids")
    values = tf.keras.Input([None], ragged=True, dtype="float32", name="sparse_values")
    x = Dying(folder, deaths)(layers.SparseLinear(2, 16)([ids, values]))
    p = tf.keras.layers.Dense(1, activation="sigmoid")(x)
    return tf.keras.Model({"sparse_ids": ids, "sparse_values": values}, p)
