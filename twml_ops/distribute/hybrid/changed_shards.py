"""The changed rows of the shards on servers, for checkpoints."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence

import tensorflow as tf

from twml_ops.checkpoint.policy import Policy, baseline_pays, check_policy
from twml_ops.distribute.hybrid.remote_variable import RemoteVariable
from twml_ops.ops._library import library


class ChangedShards:
    """Decides for each checkpoint of a run which rows it has, and takes them on the servers.

    The record of changed rows is on the servers, so a chief or a server that was restarted begins
    with a checkpoint of all rows.

    Args:
        policy: see `twml_ops.checkpoint.TablePolicy`.

    Raises:
        ValueError: there is no such policy.
    """

    def __init__(self, policy: Policy) -> None:
        check_policy(policy)
        self._policy = policy
        self._base: str | None = None
        self._has_base = False
        self._consumer = self._next_consumer = secrets.randbits(62)
        self._taken: list[tuple[RemoteVariable, tf.Tensor]] = []
        self._followed: list[RemoteVariable] = []
        self._baseline_bytes, self._changed_bytes = 0, list[int]()

    def begin(self, exists: Callable[[str], bool]) -> str | None:
        """Begins a checkpoint.

        Args:
            exists: whether a checkpoint of this name is complete.

        Returns:
            The name of the checkpoint that it will have the changes to; None: it has all rows.
        """
        base, self._taken = self._base, []
        self._next_consumer = self._consumer
        pays = self._policy == "intermittent" and baseline_pays(
            self._baseline_bytes, self._changed_bytes
        )
        if pays or base is None or not exists(base):
            base, self._next_consumer = None, secrets.randbits(62)
        self._has_base = base is not None
        return base

    def take(self, variables: Sequence[RemoteVariable]) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """Copies the changed rows of a shard and its slots, on its server.

        Args:
            variables: the shard and slots with a row for each of its rows.

        Returns:
            The numbers of the rows, int64 [C], and for each variable [C, ...]. If the checkpoint
            has no base, all rows.
        """
        shard = variables[0]
        with tf.device(shard.device):
            ids, everything, interval, rows = library.loaded.twml_take_changed_rows(
                [v.handle for v in variables],
                tf.constant(self._next_consumer, tf.int64),
                dtypes=[v.dtype for v in variables],
            )
            # Without ids if all rows changed. A branch would wait for the server.
            count = tf.constant(int(shard.shape[0]), tf.int64) * tf.cast(everything, tf.int64)
            zero, one = tf.constant(0, tf.int64), tf.constant(1, tf.int64)
            every = tf.raw_ops.Range(start=zero, limit=count, delta=one)
            ids = tf.raw_ops.ConcatV2(values=[every, ids], axis=tf.constant(0))
        self._taken.append((shard, interval))
        return ids, list(rows)

    def written(self, name: str, size: int) -> None:
        """Confirms that the checkpoint is complete. Without it the rows come again.

        Args:
            name: the name of its folder.
            size: its bytes.
        """
        if not self._has_base:
            for shard in self._followed:
                with tf.device(shard.device):
                    library.loaded.twml_release_changed_rows(
                        shard.handle, tf.constant(self._consumer, tf.int64)
                    )
            self._consumer = self._next_consumer
            self._followed = [shard for shard, _ in self._taken]
            self._baseline_bytes, self._changed_bytes = size, []
        else:
            self._changed_bytes.append(size)
        if not self._has_base or self._policy == "consecutive":
            self._base = name
            for shard, interval in self._taken:
                with tf.device(shard.device):
                    library.loaded.twml_keep_changed_rows(
                        shard.handle, tf.constant(self._consumer, tf.int64), interval
                    )
