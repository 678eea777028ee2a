"""One model for all processes of a run: the chief builds it, the others read what it has written.

Building may be costly, since layers adapt to the data first. The file has the layers and what they
have learned, but no tables: those are made, one part a server, when the run begins.
"""

from __future__ import annotations

import contextlib
import os
import posixpath
import tempfile
import threading
import time
from collections.abc import Callable, Iterator

import tensorflow as tf

from twml_ops import placement
from twml_ops.distribute.hybrid import model_weights
from twml_ops.distribute.hybrid.cluster import Cluster, ClusterError
from twml_ops.distribute.hybrid.tables import ParameterServerPlacement
from twml_ops.distribute.hybrid.timeouts import run_with_timeout

_BEATS = 10  # that a chief at work gives in the time that the others would wait without any


class ChiefBuiltModel:
    """A `model_builder` for `HybridTrainer`, whose model was built once for the whole cluster.

    Each call gives a copy, a Keras clone, of the one model. Make it before any tensor, as the
    trainer: it connects this process to the servers.

    Args:
        build: () -> an uncompiled functional or Sequential model. Only the chief calls it, and not
            if `path` is there: a chief that was started anew reads it, too.
        path: of a `.keras` file that all processes can reach. The layers of the model must be
            registered with Keras.
        cluster: who takes part; None: as `TF_CONFIG` says.
        timeout: seconds without a sign of life of the chief.

    Attributes:
        name: of the model.

    Raises:
        ClusterError: no file, and no sign of life of a chief that makes it, for `timeout` seconds.
    """

    def __init__(
        self,
        build: Callable[[], tf.keras.Model],
        path: str | os.PathLike[str],
        cluster: Cluster | None = None,
        timeout: float = 120.0,
    ) -> None:
        cluster = Cluster.from_environment() if cluster is None else cluster
        path = str(path)
        if cluster.job == "worker":
            run_with_timeout(timeout + 5, "connecting", cluster.connect, timeout)
        nowhere = ParameterServerPlacement("", [], tf.float32, False)
        with placement.placement_scope(nowhere):
            if cluster.is_chief and not tf.io.gfile.exists(path):
                tf.io.gfile.makedirs(posixpath.dirname(path) or ".")
                with _beating(f"{path}.beat", timeout / _BEATS):
                    self._model = build()
                    _write(self._model, path)
                tf.io.gfile.remove(f"{path}.beat")
            else:
                _await(path, f"{path}.beat", timeout)
                self._model = _read(path)
        self.name = self._model.name
        self._in_tables = sum(t.shape.num_elements() for t in nowhere.tables)

    def __call__(self) -> tf.keras.Model:
        """A model of its own."""
        made = tf.keras.models.clone_model(self._model)
        model_weights.copy_weights(self._model, made)
        return made

    def count_params(self) -> int:
        """How many weights the model has, those in tables counted."""
        return int(self._model.count_params()) + self._in_tables


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


@contextlib.contextmanager
def _beating(path: str, seconds: float) -> Iterator[None]:
    """In the block, the file `path` changes every so many seconds."""
    end = threading.Event()

    def beat() -> None:
        while True:
            with tf.io.gfile.GFile(path, "w") as f:
                f.write(str(time.time_ns()))
            if end.wait(seconds):
                return

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join()


def _await(path: str, beat: str, timeout: float) -> None:
    seen, since = "", time.monotonic()
    while not tf.io.gfile.exists(path):
        now = _content(beat)
        if now != seen:
            seen, since = now, time.monotonic()
        if time.monotonic() - since > timeout:
            raise ClusterError(f"no chief has been building {path} for {timeout:g} s")
        time.sleep(min(0.2, timeout / _BEATS))


def _content(path: str) -> str:
    try:
        with tf.io.gfile.GFile(path) as f:
            return str(f.read())
    except tf.errors.OpError:
        return ""
