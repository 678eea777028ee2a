"""What differs between Keras 2 and Keras 3, in one place. `tf.keras` is whichever is active."""

from __future__ import annotations

import importlib.metadata
from typing import Any

import tensorflow as tf

# In TensorFlow 2.15 tf.keras does not say its version; there it is the package keras.
VERSION: str = getattr(tf.keras, "__version__", None) or importlib.metadata.version("keras")
KERAS_3: bool = VERSION.startswith("3.")

PACKAGE = "Twml"

serializable = tf.keras.utils.register_keras_serializable(package=PACKAGE)


def no_autocast() -> dict[str, Any]:
    """The `add_weight` argument that keeps mixed precision from wrapping a table."""
    return {"autocast": False} if KERAS_3 else {"experimental_autocast": False}


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
