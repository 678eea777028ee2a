"""What differs between Keras 2 and Keras 3, in one place. `tf.keras` is whichever is active."""

from __future__ import annotations

import importlib
import importlib.metadata
import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

# Of the package that tf.keras stands for, keras or tf_keras: not every tf.keras says its version.
VERSION: str = importlib.metadata.version(tf.keras.Model.__module__.partition(".")[0])
KERAS_3: bool = VERSION.startswith("3.")

PACKAGE = "Twml"

serializable = tf.keras.utils.register_keras_serializable(package=PACKAGE)


def no_autocast() -> dict[str, Any]:
    """The `add_weight` argument that keeps mixed precision from wrapping a table."""
    return {"autocast": False} if KERAS_3 else {"experimental_autocast": False}


def optimizer_takes(option: str) -> bool:
    """Whether the constructor of the running Keras' optimizers has the argument `option`."""
    classes = tf.keras.optimizers.Optimizer.__mro__
    return any(option in inspect.signature(c.__init__).parameters for c in classes)


_scopes: Any = importlib.import_module(tf.keras.StatelessScope.__module__) if KERAS_3 else None


def in_stateless_scope() -> bool:
    """Whether a `StatelessScope` of Keras 3, such as `stateless_call` makes, is in force."""
    return KERAS_3 and _scopes.in_stateless_scope()


def stateless_value(variable: Any) -> tf.Tensor | None:
    """What stands for a variable's value in the `StatelessScope` in force; None if it is its own.

    Of a variable of Keras 3 `tf.convert_to_tensor` gives it, but its resource handle does not.
    """
    return (
        _scopes.get_stateless_scope().get_current_value(variable) if in_stateless_scope() else None
    )


if KERAS_3:

    class _MadeIn(tf.keras.Variable):
        """A variable whose value is made in the context `scope()`, whenever Keras makes it.

        That is later than `build` for a layer of a model that is built by being traced.
        """

        def __init__(self, scope: Callable[[], Any], **kwargs: Any) -> None:
            self._scope = scope
            super().__init__(**kwargs)

        def _initialize(self, value: Any) -> None:
            with self._scope():
                super()._initialize(value)


def add_weight_in(scope: Callable[[], Any], layer: Any, *, initializer: Any, **kwargs: Any) -> Any:
    """`layer.add_weight`, the value made in the context `scope()`; called in the layer's `build`.

    Mixed precision leaves the weight alone.

    Args:
        scope: makes a context manager.
        layer: that gets the weight.
        initializer: of Keras, or a function of shape and dtype.
        **kwargs: name, shape, dtype and trainable, as of `add_weight`.
    """
    if not KERAS_3:
        with scope():
            return layer.add_weight(initializer=initializer, **kwargs, **no_autocast())
    initializer = tf.keras.initializers.get(initializer)
    variable = _MadeIn(scope, initializer=initializer, **kwargs, **no_autocast())
    layer._track_variable(variable)  # as `add_weight` does, which makes variables of one class
    return variable


def symbolic_inputs(model: Any) -> Any:
    """The structure of symbolic tensors a model was made of; None of one that has none."""
    inputs = getattr(model, "inputs", None)
    if not inputs:
        return None
    try:
        return model.input
    except (AttributeError, ValueError):  # a Sequential of Keras 3
        return inputs[0] if len(inputs) == 1 else inputs


def input_spec(tensor: Any) -> Any:
    """The type of a symbolic input of a model: a dense, ragged or sparse tensor's spec."""
    if not KERAS_3:
        spec = tensor.type_spec
        if isinstance(spec, tf.RaggedTensorSpec):  # with row_splits of whatever type was fed
            return tf.RaggedTensorSpec(spec.shape, spec.dtype, spec.ragged_rank)
        return spec
    if getattr(tensor, "sparse", False):
        return tf.SparseTensorSpec(tensor.shape, tensor.dtype)
    if getattr(tensor, "ragged", False):
        return tf.RaggedTensorSpec(tensor.shape, tensor.dtype, 1)
    return tf.TensorSpec(tensor.shape, tensor.dtype, tensor.name)


def all_layers(model: Any) -> list[Any]:
    """Every layer of `model`, those inside other layers too."""
    return [layer for layer in model._flatten_layers() if layer is not model]


def own_variables(layer: Any) -> list[Any]:
    """The weights of `layer` that are not in layers inside it, trainable ones first."""
    if KERAS_3:
        return [*layer._trainable_variables, *layer._non_trainable_variables]
    return [*layer._trainable_weights, *layer._non_trainable_weights]


class Call(NamedTuple):
    """One call of a layer in a functional model.

    Attributes:
        layer: what was called: a layer, or in Keras 3 any operation.
        inputs: keys of the tensors it was called with, in order.
        outputs: keys of the tensors it gave.
    """

    layer: Any
    inputs: tuple[Any, ...]
    outputs: tuple[Any, ...]


def calls(outputs: Any) -> tuple[list[Call], list[Any]]:
    """The calls that make a functional model's symbolic outputs, each behind those it needs.

    Returns:
        `(calls, keys of the outputs)`. A call without inputs is that of an input layer.
    """
    ordered: list[Call] = []
    seen: set[Any] = set()

    def visit(tensor: Any) -> Any:
        layer, node_index, _ = tensor._keras_history
        if (id(layer), node_index) not in seen:
            seen.add((id(layer), node_index))
            node = layer._inbound_nodes[node_index]
            inputs = node.input_tensors if KERAS_3 else node.keras_inputs
            made = node.output_tensors if KERAS_3 else tf.nest.flatten(node.outputs)
            is_input = isinstance(layer, tf.keras.layers.InputLayer)
            before = () if is_input else tuple(visit(t) for t in inputs)
            ordered.append(Call(layer, before, tuple(map(_key, made))))
        return _key(tensor)

    return ordered, [visit(t) for t in tf.nest.flatten(outputs)]


def _key(tensor: Any) -> Any:
    layer, node_index, tensor_index = tensor._keras_history
    return id(layer), node_index, tensor_index
