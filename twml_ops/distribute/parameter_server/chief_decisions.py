"""What the chief decides for all processes of a run, which read it from files.

The chief may think for a long time, so it writes heartbeats, by which the others know that it does.
A decision is made once: a process that is restarted reads it as well.
"""

from __future__ import annotations

import contextlib
import json
import os
import posixpath
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from twml_ops.distribute.parameter_server.cluster import ClusterError

BEAT = "chief.beat"  # the file of the heartbeats in a folder of decisions
HEARTBEATS = 10  # written by the chief during the `timeout` of the other processes
_POLL_SECONDS = 0.2


class ChiefDecisions:
    """Decisions of the chief, each a file with a JSON value.

    Args:
        folder: A folder that all processes can reach. The chief creates it.
        is_chief: Whether this process is the chief.
        timeout: Limit in seconds for the time between two heartbeats of the chief.

    Attributes:
        folder: The folder.
        is_chief: Whether this process is the chief.
    """

    def __init__(self, folder: str | os.PathLike[str], is_chief: bool, timeout: float) -> None:
        self.folder, self.is_chief, self._timeout = str(folder), is_chief, timeout

    @contextlib.contextmanager
    def present(self) -> Iterator[None]:
        """Writes heartbeats in the `with` block, if this process is the chief.

        Yields:
            Nothing.
        """
        if not self.is_chief:
            yield
            return
        tf.io.gfile.makedirs(self.folder)
        with heartbeat(self._beat, self._timeout / HEARTBEATS):
            yield
        tf.io.gfile.remove(self._beat)

    def get(self, name: str) -> Any:
        """Reads a decision.

        Args:
            name: The name of the decision.

        Returns:
            The value; None if it has not been made.

        Raises:
            ValueError: The file is damaged.
        """
        path = self._path(name)
        if not tf.io.gfile.exists(path):
            return None
        with tf.io.gfile.GFile(path, "rb") as f:
            content = f.read()
        try:
            return json.loads(content)
        except (ValueError, RecursionError) as e:
            raise ValueError(f"{path}: is damaged: {e}") from e

    def announce(self, name: str, value: Any) -> None:
        """Makes a decision. Only the chief calls this.

        Args:
            name: The name of the decision.
            value: The value, as JSON has it, but not None.
        """
        tf.io.gfile.makedirs(self.folder)
        path = self._path(name)
        with tf.io.gfile.GFile(f"{path}.part", "w") as f:
            f.write(json.dumps(value))
        tf.io.gfile.rename(f"{path}.part", path, overwrite=True)

    def decide(self, name: str, compute: Callable[[], Any]) -> Any:
        """Makes a decision or, in another process than the chief, waits for it.

        Args:
            name: The name of the decision.
            compute: () -> the value, as JSON has it, but not None. Only the chief calls it, and
                only if the decision has not been made.

        Returns:
            The value.

        Raises:
            ClusterError: The chief has not written a heartbeat for `timeout` seconds.
        """
        if not self.is_chief:
            return self.wait(name)
        if self.get(name) is None:
            self.announce(name, compute())
        return self.get(name)

    def wait(self, name: str) -> Any:
        """Waits for a decision.

        Args:
            name: The name of the decision.

        Returns:
            The value.

        Raises:
            ClusterError: The chief has not written a heartbeat for `timeout` seconds.
        """
        path = self._path(name)

        def is_there() -> bool:
            self.check()
            return bool(tf.io.gfile.exists(path))

        wait_for(is_there, path, self._beat, self._timeout)
        return self.get(name)

    def check(self) -> None:
        """Called again and again while a decision is waited for. It may raise an error."""

    def wait_for_removal(self) -> None:
        """Waits until the folder is removed, as it is at the end of a run.

        Raises:
            ClusterError: The chief has not written a heartbeat for `timeout` seconds.
        """
        wait_for(
            lambda: not tf.io.gfile.exists(self.folder), self.folder, self._beat, self._timeout
        )

    @property
    def _beat(self) -> str:
        return posixpath.join(self.folder, BEAT)

    def _path(self, name: str) -> str:
        return posixpath.join(self.folder, f"{name}.json")


@contextlib.contextmanager
def heartbeat(path: str, seconds: float) -> Iterator[None]:
    """In the `with` block, writes a new value to a file again and again.

    Args:
        path: The file.
        seconds: The time between two values.

    Yields:
        Nothing.
    """
    end = threading.Event()

    def write() -> None:
        while True:
            # Where one cannot be written, the next one may be.
            with contextlib.suppress(tf.errors.OpError), tf.io.gfile.GFile(path, "w") as f:
                f.write(str(time.time_ns()))
            if end.wait(seconds):
                return

    thread = threading.Thread(target=write, daemon=True)
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join()


def wait_for_file(path: str, heartbeat: str, timeout: float) -> None:
    """Waits until the chief has written a file.

    Args:
        path: The file.
        heartbeat: The file to which the chief writes heartbeats.
        timeout: Limit in seconds for the time between two heartbeats.

    Raises:
        ClusterError: The chief has not written a heartbeat for `timeout` seconds.
    """
    wait_for(lambda: bool(tf.io.gfile.exists(path)), path, heartbeat, timeout)


def wait_for(is_there: Callable[[], bool], what: str, heartbeat: str, timeout: float) -> None:
    """Waits for the chief.

    Args:
        is_there: Whether the chief has done it.
        what: The file or folder that is waited for.
        heartbeat: The file to which the chief writes heartbeats.
        timeout: Limit in seconds for the time between two heartbeats.

    Raises:
        ClusterError: The chief has not written a heartbeat for `timeout` seconds.
    """
    last_value, since = "", time.monotonic()
    while not is_there():
        value = _content(heartbeat)
        if value != last_value:
            last_value, since = value, time.monotonic()
        if time.monotonic() - since > timeout:
            raise ClusterError(
                f"{what} is waited for, and no chief has written a heartbeat for {timeout:g} s"
            )
        time.sleep(min(_POLL_SECONDS, timeout / HEARTBEATS))


def _content(path: str) -> str:
    try:
        with tf.io.gfile.GFile(path) as f:
            return str(f.read())
    except tf.errors.OpError:
        return ""
