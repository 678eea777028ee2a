"""Modules of products, such as towers of fields, which the server of a table computes and trains.

A layer gives a `ProductModule` with a product: a function of the product and of some dense weights.
The table is then whole on one server. The weights of the module and the optimizer's slots are
beside it, as `SharedVariable`s, and no step sends them. The output of the module takes the place of
the product in the messages, and the gradient of the output takes the place of the gradient of the
product. `ModuleCall` computes the gradients of the product and of the weights from it, where the
updates of the server need them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import tensorflow as tf

from twml_ops.distribute.parameter_server.state import SharedVariable
from twml_ops.distribute.parameter_server.tables import RemoteTable
from twml_ops.placement import ProductModule


class ModuleCall(NamedTuple):
    """A module and a product in the graph of a step, on the server.

    Attributes:
        inputs: The product, and the values of the weights.
        output: float32 [B, C].
    """

    inputs: list[tf.Tensor]
    output: tf.Tensor

    def gradients(self, upstream: tf.Tensor) -> list[tf.Tensor]:
        """Computes the gradients of the inputs. Used in a graph, on the device of the server.

        Args:
            upstream: The gradient of the loss with respect to the output, [B, C].

        Returns:
            The gradient of the product and of each weight.
        """
        zero = tf.UnconnectedGradients.ZERO
        found = tf.gradients(self.output, self.inputs, upstream, unconnected_gradients=zero)
        return [tf.convert_to_tensor(gradient) for gradient in found]


class RemoteModule:
    """The module of a table, with its weights on the server of the table.

    Args:
        module: What the layer has given.
        columns: C, the width of its output.

    Attributes:
        local: The weights in this process' model.
        columns: C, the width of the output.
        shared: The weights on the server; none before the parts of the table are created.
    """

    def __init__(self, module: ProductModule, columns: int) -> None:
        self.local = list(module.weights)
        self.columns = columns
        self.shared: list[SharedVariable] = []

    def is_of(self, module: ProductModule) -> bool:
        """Tells whether a module has these weights."""
        return [id(v) for v in self.local] == [id(v) for v in module.weights]

    def call(self, module: ProductModule, product: tf.Tensor) -> ModuleCall:
        """Applies the module to a product, on the device of the server.

        Args:
            module: The module, with these weights.
            product: float32 [S, D].
        """
        inputs = [tf.identity(product), *(s.remote.value() for s in self.shared)]
        return ModuleCall(inputs, module.function(inputs[0], inputs[1:]))


def check_options(tables: Sequence[RemoteTable], pipeline: bool, exchange_every: int) -> None:
    """Checks the options of a trainer whose model has modules that servers compute.

    Args:
        tables: The tables of the model.
        pipeline: See `HybridTrainer`.
        exchange_every: See `HybridTrainer`.

    Raises:
        ValueError: An option is not possible with such a model, or two tables share a module.
    """
    with_module = [table for table in tables if table.module is not None]
    for option, is_used in (
        ("pipeline=False, got True", pipeline),
        (f"exchange_every=1, got {exchange_every}", exchange_every > 1),
    ):
        if with_module and is_used:
            raise ValueError(
                f"table {with_module[0].path} has a tower, whose module its server computes, which "
                f"needs {option}: the module of a batch is trained in the step that computed it"
            )
    owners: dict[int, str] = {}
    for table in with_module:
        for weight in table.module.local:
            if owners.setdefault(id(weight), table.path) != table.path:
                raise ValueError(
                    f"tables {owners[id(weight)]} and {table.path} have one module, which only one "
                    "server can train; expected a module for each table"
                )
