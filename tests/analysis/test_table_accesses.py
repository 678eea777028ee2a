"""Accesses to tables, counted by batch and by field."""

import numpy as np
import pytest
import tensorflow as tf

from tests.core.test_reuse_distance import simulated_hits
from twml_ops.analysis import TableAccesses
from twml_ops.data import Schema

SCHEMA = Schema(("n",), ("a", "tags", "b"), 99, "x", bags=("tags",))


def batches(count=30, size=16):
    rng = np.random.default_rng(1)
    for _ in range(count):
        yield {
            "categorical": rng.zipf(1.3, (size, 2)) % 50 - 1,  # -1: missing
            "bag_tags_ids": tf.RaggedTensor.from_row_lengths(
                rng.integers(0, 20, 2 * size), [2] * size
            ),
            "sparse_ids": tf.RaggedTensor.from_row_lengths(rng.integers(0, 99, size), [1] * size),
        }


def accesses():
    found = TableAccesses(SCHEMA)
    for features in batches():
        found.add(features, 16)
    return found


def ids_of(features, name):
    if name in ("tags", "sparse ids"):
        key = "sparse_ids" if name != "tags" else "bag_tags_ids"
        return features[key].flat_values.numpy().tolist()
    return [i for i in features["categorical"][:, "ab".index(name)].tolist() if i >= 0]


def test_each_row_is_read_once_a_batch():
    found = accesses()
    assert [t.name for t in found.tables] == ["a", "tags", "b", "sparse ids"]
    assert (found.examples, found.batches) == (30 * 16, 30)
    for table in found.tables:
        per_batch = [list(dict.fromkeys(ids_of(f, table.name))) for f in batches()]
        stream = [i for ids in per_batch for i in ids]
        assert table.reads == len(stream)
        assert table.rows == len(set(stream))
        assert table.entries == sum(len(ids_of(f, table.name)) for f in batches())
        assert table.most_in_batch == max(map(len, per_batch))
        assert table.is_exact
        sizes = np.array([1, 7, 20, 50])
        want = [simulated_hits(stream, size) / len(stream) for size in sizes]
        assert table.hit_rates(sizes).tolist() == want


def test_rows_of_different_fields_are_different_rows_of_the_whole_table():
    found = accesses()
    assert found.whole.rows == sum(t.rows for t in found.tables)
    assert found.whole.reads == sum(t.reads for t in found.tables)


def test_a_field_without_repetitions_has_no_distance():
    found = TableAccesses(Schema((), ("a",), 0, "x"))
    found.add({"categorical": np.arange(5)[:, None]}, 5)
    assert found.tables[0].reuse_distance(0.5) is None
    assert found.tables[0].hit_rates([5]).tolist() == [0.0]
    assert found.whole is None


def test_numbers_alone_are_an_error():
    with pytest.raises(ValueError, match="schema must have categories or sparse ids"):
        TableAccesses(Schema(("n",), (), 0, "x"))
