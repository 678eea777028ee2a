"""A model that the chief builds for all processes of a run, which read it from a file.

Building a model may take long, since layers adapt to the data. The file has the layers and their
states but no tables, which are created, one shard on each server, when the run starts. Of a model
that was trained before, the chief has the values of the tables; processes without servers share
the model with its tables.
"""

from __future__ import annotations

import contextlib
import os
import posixpath
import tempfile
from collections.abc import Callable
from functools import partial
from typing import Any

import tensorflow as tf

from twml_ops import placement
from twml_ops._keras import clone_model
from twml_ops.distribute.parameter_server.chief_decisions import (
    HEARTBEATS,
    heartbeat,
    wait_for_file,
)
from twml_ops.distribute.parameter_server.cluster import Cluster
from twml_ops.distribute.parameter_server.failures import run_with_timeout
from twml_ops.distribute.parameter_server.placement import ParameterServerPlacement
from twml_ops.distribute.parameter_server.tables import copy_model_weights


class ChiefBuiltModel:
    """A `model_builder` for `HybridTrainer` whose model is built once for the whole cluster.

    Each call returns a copy, a Keras clone, of that model. Create this object before any tensor,
    like the trainer: it connects the process to the servers.

    Args:
        build: () -> an uncompiled functional or Sequential model, whose layers are registered with
            Keras. Only the chief calls it, and only if there is no file at `path`. A restarted
            chief reads the file, too.
        path: A `.keras` file that all processes can reach.
        cluster: The cluster; None: as `TF_CONFIG` describes it.
        timeout: Limit in seconds for connecting to the servers, and for the time between two
            heartbeats of the chief while it builds the model.
        again: Whether the chief builds the model although there is a file, which has no initial
            values of tables.
        with_tables: Whether tables begin with the values that `build` returns: for models that
            were trained before. With servers only the chief has these values, in memory, and it
            builds the model although there is a file. Without servers the file and the copies
            have them, which each process then keeps in memory.

    Attributes:
        name: The name of the model.

    Raises:
        ClusterError: There is no file, and the chief has not written a heartbeat for `timeout`
            seconds; or a server cannot be reached.
    """

    def __init__(
        self,
        build: Callable[[], tf.keras.Model],
        path: str | os.PathLike[str],
        cluster: Cluster | None = None,
        timeout: float = 120.0,
        again: bool = False,
        with_tables: bool = False,
    ) -> None:
        cluster = Cluster.from_environment() if cluster is None else cluster
        path = str(path)
        if cluster.job == "worker":
            run_with_timeout(timeout + 5, "connecting", cluster.connect, timeout)
        without_servers = ParameterServerPlacement("", [], tf.float32, False)
        chief_has_tables = with_tables and bool(cluster.servers)
        scope = partial(placement.placement_scope, without_servers)
        if cluster.is_chief and (again or chief_has_tables or not tf.io.gfile.exists(path)):
            tf.io.gfile.makedirs(posixpath.dirname(path) or ".")
            with heartbeat(f"{path}.beat", timeout / HEARTBEATS):
                with contextlib.nullcontext() if with_tables else scope():
                    self._model = build()
                shared = self._model
                if chief_has_tables:
                    with scope():
                        shared = self()
                _write(shared, path)
            tf.io.gfile.remove(f"{path}.beat")
        else:
            wait_for_file(path, f"{path}.beat", timeout)
            with scope() if chief_has_tables or not with_tables else contextlib.nullcontext():
                self._model = _read(path)
        self.name = self._model.name
        has_tables = with_tables and (cluster.is_chief or not chief_has_tables)
        tables = [] if has_tables else without_servers.tables
        self._table_weights = sum(t.shape.num_elements() for t in tables)

    def __call__(self) -> tf.keras.Model:
        """Returns a copy of the model.

        Returns:
            An uncompiled Keras model.
        """
        clone = clone_model(self._model)
        copy_model_weights(self._model, clone)
        return clone

    @property
    def inputs(self) -> list[Any]:
        """The symbolic inputs of the model, as of Keras' `Model.inputs`."""
        inputs: list[Any] = self._model.inputs
        return inputs

    def count_params(self) -> int:
        """Counts the weights of the model.

        Returns:
            The number of weights, including the weights of tables.
        """
        return int(self._model.count_params()) + self._table_weights


def _write(model: tf.keras.Model, path: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        local = os.path.join(folder, "model.keras")
        model.save(local)
        tf.io.gfile.copy(local, f"{path}.part", overwrite=True)
    tf.io.gfile.rename(f"{path}.part", path, overwrite=True)


def _read(path: str) -> tf.keras.Model:
    with tempfile.TemporaryDirectory() as folder:
        local = os.path.join(folder, "model.keras")
        tf.io.gfile.copy(path, local)
        return tf.keras.models.load_model(local, compile=False)
