"""Which process is a worker of the run: the one that joined last (a fencing token).

A scheduler that has lost a host starts a worker again elsewhere. If the first process was only cut
off or stopped and goes on later, two processes are the same worker. Each server has the token of
the process that joined last. It makes no update for another one, which ends with an error.
"""

from __future__ import annotations

import functools
import os
import secrets

import tensorflow as tf

from twml_ops.distribute.parameter_server.cluster import Cluster
from twml_ops.distribute.parameter_server.tables import RemoteVariable

REPLACED = "another process has taken the place of this worker"
GUARD = "twml_worker_token"
"""A part of the message of a step that the servers refuse since another process has the place."""


class WorkerReplacedError(RuntimeError):
    """Another process has taken the place of this worker. This process must not be restarted."""


class WorkerToken:
    """The token by which servers know the process that is a worker of the run.

    Args:
        prefix: Prefix of the names of all variables.
        cluster: The cluster. An evaluator, and a process without servers, have no token.
    """

    def __init__(self, prefix: str, cluster: Cluster) -> None:
        self._token = _token_of(os.getpid())
        self.variables: list[RemoteVariable] = []
        if cluster.servers and cluster.job == "worker":
            name = f"{prefix}/worker_token/{cluster.index}"
            self.variables = [RemoteVariable(name, [], tf.int64, d) for d in cluster.devices]

    def take(self) -> None:
        """Takes the place from the process that had it before."""
        for variable in self.variables:
            variable.assign(tf.constant(self._token, tf.int64))

    def check(self) -> None:
        """Checks that no other process has taken the place.

        Raises:
            WorkerReplacedError: Another process has it.
        """
        if self.variables and int(self.variables[0].numpy()) != self._token:
            raise WorkerReplacedError(REPLACED)

    def guards(self, device: str) -> list[tf.Operation]:
        """Makes the ops of a server that fail if another process has the place. Used in a graph.

        Args:
            device: The device of the server.

        Returns:
            The ops; none where this process has no token.
        """
        found = []
        with tf.device(device):
            for variable in (v for v in self.variables if v.device == device):
                own = tf.equal(variable.value(), tf.constant(self._token, tf.int64))
                # Not `Assert`, which TensorFlow lets wait for the ones of other devices.
                with tf.name_scope(GUARD):
                    rows = tf.raw_ops.Where(condition=tf.reshape(own, [1]))
                    found.append(tf.raw_ops.EnsureShape(input=rows, shape=[1, 1]).op)
        return found


@functools.cache
def _token_of(process: int) -> int:
    """The token of this process, which all its trainers have, and no other process."""
    del process  # a forked process has another number
    return secrets.randbits(62)
