"""The program of a scorer: the steps, the arrays and the inputs that layers append to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from twml_ops._keras import LayerCall
from twml_ops._scorer import ACTIVATIONS
from twml_ops.export.model_inputs import row_splits_name
from twml_ops.export.scorer_files import RowChanges
from twml_ops.export.tables import RowFormat, store_rows
from twml_ops.export.values import Values
from twml_ops.ops._tape import tf_variable


class Input(NamedTuple):
    """An input of the model, whose role (ids, values, dense) depends on what reads it.

    Attributes:
        name: Its name.
        spec: Its `tf.TypeSpec`.
    """

    name: str
    spec: Any

    @property
    def sparse(self) -> bool:
        """Whether it is a SparseTensor."""
        return isinstance(self.spec, tf.SparseTensorSpec)

    @property
    def ragged(self) -> bool:
        """Whether it is a ragged tensor."""
        return isinstance(self.spec, tf.RaggedTensorSpec)


class Batch(NamedTuple):
    """A sparse batch, as the registers of its parts."""

    ids: str
    values: str | None
    row_splits: str


class Part(NamedTuple):
    """The ids or the values of a batch, which are two tensors in Keras.

    Attributes:
        register: Its register.
        row_splits: That of its row splits.
        are_values: Whether they are values.
    """

    register: str
    row_splits: str
    are_values: bool = False


class Dense(NamedTuple):
    """A dense tensor, as its register."""

    register: str


class Program:
    """The program of a scorer, built layer by layer.

    Args:
        tables: Format of tables.
        specs: Key of an input → its `tf.TypeSpec`.
        layers: Class of a layer → the function that appends the steps of a call of it and returns
            what its outputs are: `Batch`, `Part` or `Dense`.
        values: Where the values of variables come from.

    Attributes:
        inputs: Name → role: "ids", "values", "row_splits", "dense", "strings" or "bag".
        specs_by_name: Name of an input of the model → its `tf.TypeSpec`.
        steps: Steps in order.
        files: File name → array, or the changed rows of one.
    """

    def __init__(
        self,
        tables: RowFormat,
        specs: Mapping[Any, Any],
        layers: Mapping[Any, CompileLayer],
        values: Values,
    ) -> None:
        self.inputs: dict[str, str] = {}
        self.specs_by_name: dict[str, Any] = {}
        self.steps: list[dict[str, Any]] = []
        self.files: dict[str, Any] = {}
        self._tables, self._specs, self._layers, self._values = tables, specs, layers, values
        self._made: dict[Any, Any] = {}

    def add(self, call: LayerCall) -> None:
        """Appends the steps of one layer call."""
        layer = call.layer
        if isinstance(layer, tf.keras.layers.InputLayer):
            name = layer.name
            spec = self.specs_by_name[name] = self._specs[call.outputs[0]]
            self._made[call.outputs[0]] = Input(name, spec)
            return
        for kind, compile_layer in self._layers.items():
            if isinstance(layer, kind):
                results = compile_layer(self, layer, call)
                self._made.update(zip(call.outputs, results, strict=True))
                return
        known = ", ".join(sorted(kind.__name__ for kind in self._layers))
        raise ValueError(
            f"layer {layer.name!r} is a {type(layer).__name__}; the scorer supports {known}"
        )

    def bind(self, keys: Sequence[Any], outer: Sequence[Any]) -> None:
        """Makes the inputs of a nested model, by their keys, what the tensors `outer` are."""
        self._made.update(zip(keys, self.made(outer), strict=True))

    def made(self, keys: Sequence[Any]) -> list[Any]:
        """What the tensors with these keys are: `Input`, `Batch`, `Part` or `Dense`."""
        return [self._made[key] for key in keys]

    def step(
        self,
        op: str,
        inputs: list[str | None],
        outputs: list[str | None],
        arrays: dict[str, Any] | None = None,
        **attributes: Any,
    ) -> None:
        """Appends one step. Arrays that are None are omitted."""
        names = {}
        for key, array in (arrays or {}).items():
            if array is not None:
                names[key] = f"{len(self.steps):03}_{op}_{key}.npy"
                is_whole = not isinstance(array, RowChanges)
                self.files[names[key]] = np.asarray(array) if is_whole else array
        step = {"op": op, "in": inputs, "out": outputs, "arrays": names, "attributes": attributes}
        self.steps.append(step)

    def new(self) -> str:
        """The name of a new register."""
        return f"#{len(self.steps)}"

    def dense(self, key: Any, where: str) -> str:
        """The register of a dense tensor."""
        made = self._made[key]
        if isinstance(made, Input) and not made.sparse:
            return self.feed(made.name, "dense")
        if not isinstance(made, Dense):
            raise ValueError(
                f"layer {where!r} must be called with dense tensors, got a sparse batch"
            )
        return made.register

    def are_values(self, key: Any) -> bool:
        """Whether a tensor is the values of a ragged batch, not its ids."""
        made = self._made[key]
        if isinstance(made, Input):
            return made.ragged and tf.as_dtype(made.spec.dtype).is_floating
        return isinstance(made, Part) and made.are_values

    def batch(self, call: LayerCall, keys: Sequence[Any] | None = None) -> tuple[Batch, bool]:
        """The batch that a layer is called with, and whether it is one SparseTensor.

        Args:
            call: The call.
            keys: Keys of the batch's parts; None: all inputs of the call.

        Returns:
            The registers of the batch, and whether it is a SparseTensor.
        """
        made = [self._made[key] for key in (call.inputs if keys is None else keys)]
        first = made[0]
        if isinstance(first, Batch):
            return first, True
        if isinstance(first, Input) and first.sparse:
            name = first.name
            ids, values = (self.feed(f"{name}_{p}", p) for p in ("ids", "values"))
            return Batch(ids, values, self.feed(row_splits_name(name), "row_splits")), True
        parts = [
            self._part(m, role, call) for m, role in zip(made, ("ids", "values"), strict=False)
        ]
        row_splits = parts[0].row_splits
        if isinstance(first, Input):
            self.feed(row_splits, "row_splits")
        return Batch(parts[0].register, parts[1].register if parts[1:] else None, row_splits), False

    def _part(self, made: Any, role: str, call: LayerCall) -> Part:
        if isinstance(made, Input):
            return Part(self.feed(made.name, role), row_splits_name(made.name))
        if isinstance(made, Part):
            return made
        raise ValueError(f"layer {call.layer.name!r} must be called with a sparse batch")

    def feed(self, name: str, role: str) -> str:
        """The register of an input in a role."""
        if self.inputs.setdefault(name, role) != role:
            raise ValueError(f"input {name!r} is used both as {self.inputs[name]} and as {role}")
        return name

    def activated(self, register: str, activation: Any, where: str) -> str:
        """The register of `register` after a Keras activation."""
        name = tf.keras.activations.serialize(activation)
        if name == "linear":
            return register
        if name not in ACTIVATIONS:
            raise ValueError(
                f"layer {where!r} has the activation {name!r}; the scorer supports "
                f"{', '.join(ACTIVATIONS)}"
            )
        out = self.new()
        self.step("activation", [register], [out], name=name)
        return out

    def value(self, variable: Any) -> Any:
        """The value of a variable of a layer."""
        return self._values.read(tf_variable(variable))

    def table(
        self, parts: Sequence[Any], axis: str = "row"
    ) -> tuple[NDArray[Any] | RowChanges, dict[str, Any]]:
        """The rows of a table in the requested format.

        Args:
            parts: The variables that the table is divided into.
            axis: "row": row r is in part r modulo the number of parts; or "column".

        Returns:
            All rows, or those that changed, and what the step has to say about their format.
        """
        changed = self._values.changed_rows([tf_variable(part) for part in parts], axis)
        stored = store_rows(changed.values.astype(np.float32, copy=False), self._tables)
        if changed.rows is None:
            return stored.rows, stored.attributes
        return RowChanges(changed.rows, stored.rows, changed.num_rows), stored.attributes


CompileLayer = Callable[[Program, Any, LayerCall], list[Any]]
