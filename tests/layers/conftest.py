"""Batches in every form, for the tests of layers."""

import numpy as np
import tensorflow as tf

FORMS = ("sparse", "ragged", "padded")


def in_form(form, ids, values, n):
    """Padded ids and values [B, M], -1 being padding, as a batch of the form; ids in [0, n)."""
    if form == "padded":
        return tf.constant(ids), tf.constant(values)
    there = ids != -1
    lengths = there.sum(axis=1)
    if form == "ragged":
        return tuple(tf.RaggedTensor.from_row_lengths(a[there], lengths) for a in (ids, values))
    rows = np.repeat(np.arange(len(ids)), lengths)
    return tf.SparseTensor(np.stack([rows, ids[there]], 1), values[there], [len(ids), n])


def inputs_of(form, n, width=None):
    """Keras inputs for it; width: of padded rows, if fixed."""
    if form == "sparse":
        return tf.keras.Input((n,), sparse=True)
    arguments = {"shape": (None,), "ragged": True} if form == "ragged" else {"shape": (width,)}
    return [tf.keras.Input(dtype="int64", **arguments), tf.keras.Input(**arguments)]
