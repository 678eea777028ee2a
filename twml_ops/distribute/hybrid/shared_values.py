"""The values on the servers that a step of a worker begins with, sent with the products.

They are read before the step begins, in the order of the graph, but the worker gets them later: in
the message with the first products of each server, or in a message of their own if a layer in front
of a table needs them.
"""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from twml_ops.distribute.hybrid.deferred_tensor import DeferredTensor, depends_on
from twml_ops.distribute.hybrid.messages import Link
from twml_ops.distribute.hybrid.remote_variable import RemoteVariable


class SharedValues:
    """Reads variables on servers into variables of this process. Used in a graph.

    Args:
        pairs: A variable on a server and the variables of this process that get its value.
        links: The way to each server.
    """

    def __init__(
        self, pairs: Sequence[tuple[RemoteVariable, Sequence[tf.Variable]]], links: Sequence[Link]
    ) -> None:
        self._links = links
        graph = tf.compat.v1.get_default_graph()
        self._handles = [graph.capture(v.handle) for _, variables in pairs for v in variables]
        self._values: list[list[tf.Tensor]] = []
        self._deferred: list[list[DeferredTensor]] = []
        for link in links:
            of_server = [(r, variables) for r, variables in pairs if r.device == link.server]
            self._values.append([remote.value() for remote, _ in of_server])
            self._deferred.append([DeferredTensor([None], r.dtype) for r, _ in of_server])
            for deferred, (remote, variables) in zip(self._deferred[-1], of_server, strict=True):
                value = tf.reshape(deferred.tensor, remote.shape)
                for v in variables:
                    v.assign(tf.cast(value, v.dtype))
        self._is_determined = False

    def is_needed_for(self, tensors: Sequence[tf.Tensor]) -> bool:
        """Whether tensors depend on values that are not determined yet."""
        return not self._is_determined and depends_on(tensors, self._handles)

    def of_server(self, p: int) -> list[tf.Tensor]:
        """The values that server `p` has to send, on that server; none if they are determined."""
        return [] if self._is_determined else self._values[p]

    def determine(self, received: Sequence[Sequence[tf.Tensor]]) -> None:
        """Determines the values.

        Args:
            received: What each server has sent, on the worker, in one dimension each; nothing if
                the values are determined.
        """
        if self._is_determined:
            return
        for deferred, values in zip(self._deferred, received, strict=True):
            for each, value in zip(deferred, values, strict=True):
                each.determine(value)
        self._is_determined = True

    def request(self) -> None:
        """Determines the values by messages of their own, unless they are determined."""
        if self._is_determined:
            return
        self.determine(
            [
                link.to_worker(values) if values else []
                for link, values in zip(self._links, self._values, strict=True)
            ]
        )
