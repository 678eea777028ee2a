"""Serving input receivers of an exported estimator: raw features, or serialized tf.Examples."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from twml_ops.export.model_inputs import ModelInputs

v1 = tf.compat.v1
Receiver = Callable[[], Any]


def raw_receiver(specs: Mapping[str, Any]) -> Receiver:
    """A `serving_input_receiver_fn` of dense tensors that are fed by name.

    Args:
        specs: feature → `tf.TensorSpec`, `tf.RaggedTensorSpec` or `tf.SparseTensorSpec`. A ragged
            feature `g_ids` is fed as `g_ids` [K] and `g_row_splits` int64 [B + 1]; see
            `twml_ops.export.model_inputs.ModelInputs`.

    Returns:
        An argument of `tf.estimator.Estimator.export_saved_model`.
    """
    features = ModelInputs(None, dict(specs))

    def receive() -> Any:
        tensors = {
            name: v1.placeholder(spec.dtype, spec.shape, name)
            for name, spec in features.flat_specs().items()
        }
        return tf.estimator.export.ServingInputReceiver(features.assemble(tensors), tensors)

    return receive


def example_receiver(parsing: Mapping[str, Any]) -> Receiver:
    """A `serving_input_receiver_fn` of serialized tf.Examples, string [B], fed as `examples`.

    Args:
        parsing: feature → its configuration for `tf.io.parse_example`: a `tf.io.RaggedFeature` for
            the ids or values of a batch, a `tf.io.FixedLenFeature` for a dense tensor.

    Returns:
        An argument of `tf.estimator.Estimator.export_saved_model`.
    """

    def receive() -> Any:
        examples = v1.placeholder(tf.string, [None], "examples")
        features = tf.io.parse_example(examples, dict(parsing))
        return tf.estimator.export.ServingInputReceiver(features, {"examples": examples})

    return receive
