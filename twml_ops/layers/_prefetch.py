"""Reads the rows of tables in files before the batches that need them."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from twml_ops import _keras


def prefetch_rows(
    dataset: tf.data.Dataset, model: tf.keras.Model, ahead: int = 1
) -> tf.data.Dataset:
    """Reads the rows of later batches ahead, for the tables of a model with `storage=Tiered(...)`.

    The rows of a batch are read while the model is trained on the batches before. To find them, the
    input pipeline runs the layers of the model between its inputs and the tables, in inference
    mode. The results of the training are the same with and without it.

        model.fit(layers.prefetch_rows(batches, model), epochs=3)

    Args:
        dataset: batches as `fit` takes them: features, or tuples that begin with features. Their
            order must not be changed afterwards.
        model: a functional model, whose layers with tables are built. Each of these layers is used
            once.
        ahead: how many batches are announced before they are used, at least 1.

    Returns:
        The dataset, with the same elements.

    Raises:
        ValueError: `ahead` is less than 1, the model is not a functional one, a layer with a table
            is used several times, or the model is compiled with an optimizer of Keras, which cannot
            update such tables.
    """
    if int(ahead) != ahead or ahead < 1:
        raise ValueError(f"ahead must be a positive integer, got {ahead!r}")
    if _keras.symbolic_inputs(model) is None:
        raise ValueError("model must be a functional model; call the layers' prefetch_rows instead")
    found = [each for each in _keras.all_layers(model) if getattr(each, "has_tiered_tables", False)]
    if not found:
        return dataset
    optimizer = getattr(model, "optimizer", None)
    for each in found:
        for weight in each.trainable_weights:
            _check_optimizer(_keras.updating_optimizer_of(optimizer, weight), each.name)
    inputs = [_input_of(layer) for layer in found]
    to_tables = tf.keras.Model(_keras.symbolic_inputs(model), tf.nest.flatten(inputs))

    def announce(*element: Any) -> Any:
        whole = element[0] if len(element) == 1 else element
        outputs = to_tables(element[0], training=False)
        flat = list(outputs) if isinstance(outputs, (list, tuple)) else [outputs]
        batches = tf.nest.pack_sequence_as(inputs, flat)
        counts = [layer.prefetch_rows(batch) for layer, batch in zip(found, batches, strict=True)]
        with tf.control_dependencies(counts):
            return tf.nest.map_structure(tf.identity, whole, expand_composites=True)

    return dataset.map(announce).prefetch(ahead)


def _input_of(layer: Any) -> Any:
    """The symbolic input of a layer that is used once."""
    try:
        return layer.input
    except (AttributeError, ValueError) as e:
        raise ValueError(
            f"the layer {layer.name!r} must be used once in the model; call the layers' "
            "prefetch_rows instead"
        ) from e


def _check_optimizer(optimizer: Any, layer: str) -> None:
    """Refuses the optimizers of Keras, which fail in the first step because of the shapes."""
    if type(optimizer).__module__.partition(".")[0] in ("keras", "tf_keras"):
        raise ValueError(
            f"the layer {layer!r} has a table with storage=Tiered(...), which the optimizers of "
            f"twml_ops.optimizers can update; got {type(optimizer).__name__} of Keras"
        )
