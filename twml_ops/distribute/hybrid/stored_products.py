"""Products of later batches, whose entries are kept on the servers until their step."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from twml_ops.distribute.hybrid.parameter_server_placement import ParameterServerPlacement
from twml_ops.distribute.hybrid.remote_table import RemoteTable
from twml_ops.distribute.hybrid.remote_variable import RemoteVariable
from twml_ops.distribute.hybrid.table_product import TableProduct


class StoredProducts:
    """The products that a step computes for a later one. Used in the graph of a step.

    As results of a function, the messages with the entries would be sent to the worker and back.
    They are therefore stored in variables of the servers.

    Args:
        placement: The placement of the tables.
        prefix: Prefix of the names of the variables, of this worker only.
    """

    def __init__(self, placement: ParameterServerPlacement, prefix: str) -> None:
        self._placement, self._prefix = placement, prefix
        self._uses: list[tuple[RemoteTable, bool, list[RemoteVariable]]] = []
        self._variables: dict[str, RemoteVariable] = {}

    def store(self, products: Sequence[TableProduct]) -> list[list[tf.Tensor]]:
        """Stores the entries of products.

        Args:
            products: The products of the next batches.

        Returns:
            The values of each product, [B, D] of each batch.
        """
        self._uses = [
            (p.table, p.binary, [self._assign(use, *t) for t in p.tensors_to_store()])
            for use, p in enumerate(products)
        ]
        return [[part.output for part in p.by_batch] for p in products]

    def restore(self, values: Sequence[Sequence[tf.Tensor]]) -> list[TableProduct]:
        """Returns the products that have been stored.

        Args:
            values: What `store` has returned.
        """
        return [
            self._placement.restore_product(table, [v.value() for v in variables], outputs, binary)
            for (table, binary, variables), outputs in zip(self._uses, values, strict=True)
        ]

    def _assign(self, use: int, place: tuple[int, str], tensor: tf.Tensor) -> RemoteVariable:
        number, device = place
        name = f"{self._prefix}/{use}/{number}"
        # TensorFlow orders reads and writes of a variable by its handle, so there must be only one.
        variable = self._variables.get(name)
        if variable is None:
            variable = self._variables[name] = RemoteVariable(name, [None], tensor.dtype, device)
        variable.assign(tensor)
        return variable
