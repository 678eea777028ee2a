"""Divides a model where its weights begin, so that what is before them is computed once."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from twml_ops import _keras, layers, ops
from twml_ops.data import Source
from twml_ops.data.row_keys import ROW_KEYS
from twml_ops.models._layouts import layout_of
from twml_ops.models.mean_logit import MeanLogit

MAX_BYTES = 1 << 29  # of the tensors that are kept
_INPUTS = {"continuous", "continuous_present", "categorical", ROW_KEYS}
_WITHOUT_WEIGHTS = (
    layers.BoostedTrees,
    layers.CategoryRows,
    layers.CountStatistics,
    layers.FieldLogarithms,
    layers.FieldQuantiles,
    layers.TargetStatistics,
    tf.keras.layers.Rescaling,
)


class Front(NamedTuple):
    """A model that is divided into the layers before all weights and the rest; see `divided`.

    Attributes:
        whole: the model.
        tensors: symbolic tensors of the model, which depend on the example alone.
        unused: for each of them, whether it has no effect in training.
        rest: the model that takes these tensors as a list, with the same weights as the whole.
    """

    whole: tf.keras.Model
    tensors: list[Any]
    unused: list[bool]
    rest: tf.keras.Model

    def of(self, source: Source, training: bool, batch_size: int) -> list[Any] | None:
        """The elements of a dataset of all examples in their order, with what `rest` takes.

        Args:
            source: the data.
            training: whether to compute what the model computes in training.
            batch_size: number of examples of an element.

        Returns:
            `((row keys, tensors), labels)` or `((row keys, tensors), labels, weights)` for each
            batch; None if they have more than `MAX_BYTES`, or not the types that they declare.
        """
        # Known before anything is computed: large data would pass the bound after minutes.
        kinds = [tf.as_dtype(t.dtype) for t in self.tensors]
        row = sum(
            kind.size * math.prod(t.shape[1:]) for kind, t in zip(kinds, self.tensors, strict=True)
        )
        if row * source.num_examples() > MAX_BYTES:
            return None
        left_out = [unused and training for unused in self.unused]
        wanted = [t for t, out in zip(self.tensors, left_out, strict=True) if not out]
        front = tf.keras.Model(self.whole.input, wanted)
        names = list(self.whole.input)
        # Traced once: the last batch has another length.
        call = tf.function(lambda x: tf.nest.flatten(front(x, training=training)), autograph=False)
        traced = None
        found = []
        for features, *rest in source.batches(batch_size, layout=layout_of(self.whole)):
            given = {name: features[name] for name in names}
            traced = traced or call.get_concrete_function(_of_any_length(given))
            known = iter(traced(given))
            zeros = tf.zeros_like(features[ROW_KEYS], tf.float32)[:, tf.newaxis]
            values = [
                tf.repeat(zeros, int(t.shape[1]), axis=1) if out else next(known)
                for t, out in zip(self.tensors, left_out, strict=True)
            ]
            if kinds != [value.dtype for value in values]:
                return None
            found.append(((features[ROW_KEYS], values), *rest))
        return found or None


def _of_any_length(batch: dict[str, Any]) -> dict[str, Any]:
    """The types of tensors whose first dimension is the number of examples of a batch."""
    return {name: tf.TensorSpec([None, *t.shape[1:]], t.dtype) for name, t in batch.items()}


def divided(model: tf.keras.Model) -> Front | None:
    """Divides a model into the layers that come before all weights, and the rest.

    Args:
        model: a model that this package has made.

    Returns:
        The parts; None if the first one would have no layers, or if the model has no row keys or
        has inputs of varying length.
    """
    if not isinstance(model.input, dict) or not {ROW_KEYS} <= set(model.input) <= _INPUTS:
        return None
    calls, outputs = _keras.layer_calls(model.outputs)
    before: dict[Any, Any] = {}  # tensors of the first part
    inputs: set[Any] = set()
    needed: dict[Any, bool] = {}  # tensors that the rest takes → whether only in inference
    for call in calls:
        is_input = isinstance(call.layer, tf.keras.layers.InputLayer)
        ready = set(call.inputs) <= set(before)
        if is_input or (ready and _has_no_weights(call.layer, [before[k] for k in call.inputs])):
            before.update(zip(call.outputs, call.tensors, strict=True))
            inputs.update(call.outputs if is_input else ())
            continue
        for position, key in enumerate(call.inputs):
            if key in before:
                only = position == 1 and isinstance(call.layer, MeanLogit)
                needed[key] = needed.get(key, True) and only
    if not set(needed) - inputs or set(outputs) & set(before):
        return None
    tensors = [before[key] for key in needed]
    return Front(model, tensors, list(needed.values()), tf.keras.Model(tensors, model.outputs[0]))


def _has_no_weights(layer: Any, inputs: list[Any]) -> bool:
    if isinstance(layer, tf.keras.layers.Concatenate):
        # Keras 3 declares integers that it returns as floats, which an input would make of them.
        return all(tf.as_dtype(t.dtype).is_floating for t in inputs)
    return isinstance(layer, _WITHOUT_WEIGHTS)


def keyed_batches(
    elements: list[Any],
) -> Callable[[tf.data.Dataset], tf.data.Dataset] | None:
    """A function that replaces the row keys of a dataset in the layout "row_keys" by tensors.

    A call has a cost that does not depend on the number of its keys: `in_batches` divides larger
    batches after it.

    Args:
        elements: what `Front.of` has returned.

    Returns:
        The function; None if two examples have the same key.
    """
    keys = np.concatenate([keys.numpy() for (keys, _), *_ in elements])
    order = np.argsort(keys, kind="stable")
    if (np.diff(keys[order]) == 0).any():
        return None
    with tf.device("CPU:0"):
        known = tf.constant(keys[order])
        columns = zip(*(values for (_, values), *_ in elements), strict=True)
        tensors = [tf.constant(np.concatenate(column)[order]) for column in columns]

    @tf.autograph.experimental.do_not_convert
    def look_up(features: dict[str, Any], *rest: Any) -> tuple[Any, ...]:
        rows = ops.find_keys(known, features[ROW_KEYS])
        return tuple(tf.gather(values, rows) for values in tensors), *rest

    return lambda dataset: dataset.map(look_up)


def in_batches(dataset: tf.data.Dataset, batch_size: int, count: int | None) -> tf.data.Dataset:
    """Divides batches into smaller ones, which are prefetched.

    Args:
        dataset: batches of a multiple of `batch_size` examples, of which the last may be shorter.
        batch_size: number of examples of a batch of the result.
        count: number of these batches; None: it is not known.

    Returns:
        The dataset.
    """
    dataset = dataset.rebatch(batch_size)
    if count is not None:
        dataset = dataset.apply(tf.data.experimental.assert_cardinality(count))
    return dataset.prefetch(tf.data.AUTOTUNE)


def batches_of(elements: list[Any]) -> tf.data.Dataset:
    """A dataset of elements without their row keys.

    Args:
        elements: what `Front.of` has returned.

    Returns:
        The dataset, whose length is known.
    """
    kept = [(tuple(values), *rest) for (_, values), *rest in elements]
    spec = tf.nest.map_structure(lambda t: tf.TensorSpec([None, *t.shape[1:]], t.dtype), kept[0])
    dataset = tf.data.Dataset.from_generator(lambda: iter(kept), output_signature=spec)
    return dataset.apply(tf.data.experimental.assert_cardinality(len(kept)))
