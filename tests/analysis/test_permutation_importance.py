"""Permutation importance on sparse rows, against a permuted dense column."""

import numpy as np
import tensorflow as tf

from twml_ops.analysis.permutation_importance import _permute, permutation_importance
from twml_ops.data import Schema


def ragged(rows, dtype):
    return tf.ragged.constant(rows, dtype=dtype, ragged_rank=1)


def batch(table):
    """Features of a float [R, C] table, NaN = missing."""
    ids = [[j for j, v in enumerate(row) if v == v] for row in table]
    values = [[v for v in row if v == v] for row in table]
    return {
        "continuous_ids": ragged(ids, tf.int64),
        "continuous_values": ragged(values, tf.float32),
    }


def table_of(features, columns):
    ids, values = features["continuous_ids"], features["continuous_values"]
    out = np.full((int(ids.nrows()), columns), np.nan, np.float32)
    out[ids.value_rowids().numpy(), ids.flat_values.numpy()] = values.flat_values.numpy()
    return out


def test_permuting_a_feature_permutes_a_column():
    rng = np.random.default_rng(0)
    table = rng.random((17, 3)).astype(np.float32)
    table[rng.random((17, 3)) < 0.4] = np.nan
    features, order = batch(table), rng.permutation(17)
    mask = features["continuous_ids"].flat_values.numpy() == 1
    got = table_of(_permute(features, ("continuous_ids", "continuous_values"), mask, order), 3)
    want = table.copy()
    want[:, 1] = table[order, 1]
    np.testing.assert_array_equal(got, want)


def test_the_decisive_feature_is_most_important_and_an_unused_one_has_importance_0():
    rng = np.random.default_rng(1)
    table = rng.random((400, 2)).astype(np.float32)
    labels = (table[:, :1] > 0.5).astype(np.float32)
    data = tf.data.Dataset.from_tensors((batch(table), labels))
    schema = Schema(("decides", "unused"), (), 0, "x")

    def predict(features):
        return np.where(table_of(features, 2)[:, 0] > 0.5, 0.9, 0.1)

    found = permutation_importance(predict, data, schema)
    assert [w.name for w in found] == ["decides", "unused"]
    assert found[0].importance > 0.5
    assert found[1].importance == 0


def test_an_empty_data_set_has_no_importances():
    schema = Schema(("a",), (), 0, "x")
    empty = tf.data.Dataset.from_tensors((batch(np.zeros((2, 1))), np.zeros((2, 1)))).take(0)
    assert permutation_importance(lambda f: np.zeros(0), empty, schema) == []
