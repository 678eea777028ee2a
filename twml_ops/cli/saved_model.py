"""The SavedModel of a trained model, callable with ragged features and servable with flat ones."""

from __future__ import annotations

from pathlib import Path

import tensorflow as tf

from twml_ops.data import Schema
from twml_ops.ops._tape import tf_variable


def save(model: tf.keras.Model, schema: Schema, path: Path) -> None:
    """Writes a SavedModel of `model` to `path`.

    The restored object is called with the features of `Source.dataset`: a dict of ragged tensors
    → probabilities [B, 1]. Serving signatures take no ragged tensors, so `serving_default` takes
    each group of features in CSR form: `GROUP_row_splits` int64 [B + 1] and the flat `GROUP_ids`
    int64 [K] and, where there are values, `GROUP_values` float32 [K]; it gives `probability`.
    """
    keys = {
        group: [f"{group}_ids", f"{group}_values"][: 1 + has_values]
        for group, has_values in schema.groups.items()
    }
    dtypes = {k: tf.int64 if k.endswith("ids") else tf.float32 for g in keys.values() for k in g}
    ragged = {k: tf.RaggedTensorSpec([None, None], dtype, 1) for k, dtype in dtypes.items()}
    flat = {k: tf.TensorSpec([None], dtype, name=k) for k, dtype in dtypes.items()}
    splits = {f"{g}_row_splits": tf.TensorSpec([None], tf.int64, f"{g}_row_splits") for g in keys}

    @tf.function(input_signature=[ragged])
    def call(features: dict[str, tf.RaggedTensor]) -> tf.Tensor:
        return model(features, training=False)

    @tf.function(input_signature=[{**splits, **flat}])
    def serve(tensors: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        features = {
            key: tf.RaggedTensor.from_row_splits(tensors[key], tensors[f"{group}_row_splits"])
            for group, group_keys in keys.items()
            for key in group_keys
        }
        return {"probability": model(features, training=False)}

    module = tf.Module()
    # Not the model itself: tracking it would save Keras' own functions, made for dense inputs.
    module.weights = [tf_variable(v) for v in model.variables]
    # A layer's state of varying size (boundaries) is in plain variables, not in its weights.
    module.state = [v for layer in model.layers for v in getattr(layer, "state_variables", ())]
    module.__call__ = call
    module.serve = serve
    tf.saved_model.save(module, str(path), signatures={"serving_default": serve})
