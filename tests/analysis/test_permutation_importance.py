"""Permutation importance on sparse rows, against a permuted dense column."""

import dataclasses

import numpy as np
import tensorflow as tf

from twml_ops.analysis.feature_groups import feature_groups
from twml_ops.analysis.permutation_importance import _permute, permutation_importance
from twml_ops.data import Schema, open_source


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


def source_of(folder, header, table):
    lines = [header, *(",".join(map(str, row)) for row in table.tolist())]
    (folder / "data.csv").write_text("\n".join(lines) + "\n")
    return open_source(f"csv:{folder / 'data.csv'}")


def test_the_decisive_feature_is_most_important_and_an_unused_one_has_importance_0(tmp_path):
    rng = np.random.default_rng(1)
    table = rng.random((400, 2)).astype(np.float32)
    labels = (table[:, :1] > 0.5).astype(np.float32)
    data = source_of(tmp_path, "decides,unused,label", np.concatenate([table, labels], axis=1))

    def predict(features):
        return np.where(table_of(features, 2)[:, 0] > 0.5, 0.9, 0.1)

    found = permutation_importance(predict, data)
    assert [w.name for w in found] == ["decides", "unused"]
    assert found[0].importance > 0.5
    assert found[1].importance == 0


def test_a_sample_without_examples_has_no_importances(tmp_path):
    data = source_of(tmp_path, "a,label", np.zeros((2, 2)))
    assert permutation_importance(lambda f: np.zeros(0), data, rows=0) == []


FIELDS = Schema(("a", "b"), ("c", "tags"), 0, "x", bags=("tags",))


def fields_batch(rows=9):
    rng = np.random.default_rng(2)
    tags = tf.RaggedTensor.from_row_lengths(np.arange(rows // 3 * 6), [1, 2, 3] * (rows // 3))
    return {
        "continuous": tf.constant(rng.random((rows, 2)), tf.float32),
        "continuous_present": tf.constant(rng.random((rows, 2)) < 0.5),
        "categorical": tf.constant(rng.integers(0, 9, (rows, 1))),
        "bag_tags_ids": tags,
    }


def test_every_field_of_the_layout_fields_is_a_feature():
    groups = feature_groups(fields_batch(), FIELDS)
    assert [list(g.masks) for g in groups] == [["a", "b"], ["c"], ["tags"]]


def test_permuting_a_field_permutes_its_column_and_its_marks():
    features = fields_batch()
    order = np.random.default_rng(3).permutation(9)
    continuous, _, tags = feature_groups(features, FIELDS)
    moved = _permute(features, continuous.keys, continuous.masks["b"], order)
    for key in continuous.keys:
        before = features[key].numpy()
        np.testing.assert_array_equal(moved[key][:, 1], before[order, 1])
        np.testing.assert_array_equal(moved[key][:, 0], before[:, 0])
    moved = _permute(features, tags.keys, tags.masks["tags"], order)
    want = [features["bag_tags_ids"].to_list()[r] for r in order]
    assert moved["bag_tags_ids"].to_list() == want


def test_weights_do_not_matter(tmp_path):
    table = np.random.default_rng(1).random((40, 2)).astype(np.float32)
    labels = (table[:, :1] > 0.5).astype(np.float32)

    def predict(features):
        return table_of(features, 2)[:, 0]

    schema = Schema(("a", "b"), (), 0, "label")
    found = []
    for weight in (None, "w"):
        data = source_of(
            tmp_path, "a,b,w,label", np.concatenate([table, 2 * table[:, :1], labels], axis=1)
        )
        data = open_source(data.name, schema=dataclasses.replace(schema, weight=weight))
        found.append(permutation_importance(predict, data))
    assert found[0] == found[1]
