"""Rows of categories: frequent ids have a row each, rare and new ones share one."""

import numpy as np
import pytest
import tensorflow as tf

from twml_ops import data, export, layers, optimizers

RNG = np.random.default_rng(3)
IDS = np.stack([RNG.zipf(1.5, 600) % 50, RNG.integers(0, 2**62, 600) // 2**58], axis=1)
IDS[::7] = -1
BATCHES = np.split(IDS, 6)


def adapted(**arguments):
    layer = layers.CategoryRows(2, **{"min_count": 4, **arguments})
    layer.adapt(BATCHES)
    return layer


def expected_rows(ids, min_count=4):
    """The row of each id by a dictionary, ties between equal counts left open."""
    found, counts = np.unique(ids[ids >= 0], return_counts=True)
    return {int(i): int(n) for i, n in zip(found, counts, strict=True) if n >= min_count}


def test_frequent_ids_have_a_row_each_and_the_others_share_one():
    layer = adapted()
    rows = layer(tf.constant(IDS)).numpy()
    assert rows.dtype == np.int64
    for field in range(2):
        frequent = expected_rows(IDS[:, field])
        of_id = dict(zip(IDS[:, field].tolist(), rows[:, field].tolist(), strict=True))
        assert of_id.pop(-1) == -1
        own = {i: row for i, row in of_id.items() if row > 0}
        assert set(own) == set(frequent)
        assert sorted(own.values()) == list(range(1, len(own) + 1))
        assert {row for i, row in of_id.items() if i not in own} <= {0}
        by_row = sorted(own, key=own.get)
        assert [frequent[i] for i in by_row] == sorted(frequent.values(), reverse=True)
        assert layer.num_rows[field] == 2 + len(own)
    assert layer(tf.constant([[10**12, -5]])).numpy().tolist() == [[0, -1]]


def test_the_same_id_of_two_fields_has_two_rows():
    layer = layers.CategoryRows(2, min_count=1)
    layer.adapt([np.array([[7, 3], [7, 7], [8, 3]])])
    assert layer(tf.constant([[7, 7], [3, 3], [8, 8]])).numpy().tolist() == [[1, 2], [0, 1], [2, 0]]


@pytest.mark.parametrize(("max_rows", "num_rows"), [(3, [5, 5]), ([0, 2], [2, 4])])
def test_a_limit_keeps_the_most_frequent_ids(max_rows, num_rows):
    limited, free = adapted(max_rows=max_rows), adapted()
    assert limited.num_rows == num_rows
    rows, every = limited(IDS).numpy(), free(IDS).numpy()
    np.testing.assert_array_equal(rows, np.where(every < np.array(num_rows) - 1, every, 0))


def test_the_counts_of_processes_merge_whatever_they_read():
    alone = adapted()
    layer = layers.CategoryRows(2, min_count=4)
    parts = []
    for i in range(3):
        counts = layer.new_counts()
        for batch in BATCHES[i::3]:
            layer.count(counts, batch)
        sent = layer.new_counts()
        sent.merge_state(counts.state())
        parts.append(sent)
    layer.adapt_from_counts(*reversed(parts))
    np.testing.assert_array_equal(layer(IDS), alone(IDS))
    layer.adapt_from_counts(*parts)  # which were not changed
    np.testing.assert_array_equal(layer(IDS), alone(IDS))


def test_new_ids_get_rows_behind_those_that_others_keep():
    layer = adapted()
    before, num_rows = layer(IDS).numpy(), layer.num_rows
    counts = layer.new_counts()
    layer.count(counts, np.array([[1000, 1001]] * 4 + [[1002, -1]] * 3 + [[1003, 1004]] * 5))
    layer.extend_from_counts(counts)
    np.testing.assert_array_equal(layer(IDS), before)
    assert layer.num_rows == [num_rows[0] + 2, num_rows[1] + 2]
    new = layer(tf.constant([[1003, 1004], [1000, 1001], [1002, 1002]])).numpy()
    first, second = (n - 1 for n in num_rows)
    assert new.tolist() == [[first, second], [first + 1, second + 1], [0, 0]]


def test_bags_are_counted_and_replaced_as_fields():
    bag = tf.ragged.constant([[5, 5, 6], [], [5, -1]], dtype=tf.int64)
    matrix = tf.constant([[1], [1], [2]])
    layer = layers.CategoryRows(2, min_count=2, num_bags=1)
    layer.adapt([[matrix, bag]])
    rows = layer([matrix, bag])
    assert rows[0].numpy().tolist() == [[1], [1], [0]]
    assert rows[1].to_list() == [[1, 1, 0], [], [1, -1]]
    assert layers.FieldEmbedding(layer.num_rows, 4, num_bags=1)(rows).shape == (3, 2, 4)
    alone = layers.CategoryRows(1, min_count=2, num_bags=1)
    alone.adapt([bag])
    assert alone(bag).to_list() == [[1, 1, 0], [], [1, -1]]


def test_a_field_without_frequent_ids_is_all_rare():
    layer = layers.CategoryRows(1, min_count=3)
    layer.adapt([np.array([[1], [2], [-1]])])
    assert layer.num_rows == [2]
    assert layer(tf.constant([[1], [-1], [9]])).numpy().tolist() == [[0], [-1], [0]]


def test_unknown_shapes_in_a_function():
    layer = adapted()
    for dtype in (tf.int64, tf.int32):
        traced = tf.function(layer, input_signature=[tf.TensorSpec([None, 2], dtype)])
        ids = tf.constant(np.where(IDS < 2**31, IDS, 0), dtype)
        np.testing.assert_array_equal(traced(ids), layer(ids))
        assert traced(ids[:0]).shape == (0, 2)


def model_of(rows):
    inputs = tf.keras.Input((2,), dtype="int64")
    x = layers.FieldEmbedding(rows.num_rows, 4)(rows(inputs))
    return tf.keras.Model(inputs, tf.keras.layers.Dense(1)(tf.keras.layers.Flatten()(x)))


def test_a_model_is_trained_cloned_and_saved_with_its_rows(tmp_path, fresh_keras):
    rows = adapted()
    model = model_of(rows)
    model.compile(optimizers.Adagrad(0.1), "mse", jit_compile=False)
    model.fit(IDS, np.ones((len(IDS), 1), np.float32), epochs=1, verbose=0)
    wanted = model(IDS[:20])
    model.save(tmp_path / "m.keras")
    loaded = tf.keras.models.load_model(tmp_path / "m.keras")
    np.testing.assert_array_equal(loaded(IDS[:20]), wanted)
    again = layers.CategoryRows.from_config(rows.get_config())
    np.testing.assert_array_equal(again(IDS), rows(IDS))
    assert again.num_rows == rows.num_rows
    clone = tf.keras.models.clone_model(model)
    clone.set_weights(model.get_weights())
    np.testing.assert_array_equal(clone(IDS[:20]), wanted)


def test_an_export_of_stock_ops_gives_the_same(tmp_path, fresh_keras):
    model = model_of(adapted())
    export.to_stock_tf(model, tmp_path / "stock")
    served = tf.saved_model.load(tmp_path / "stock").signatures["serving_default"]
    (got,) = served(tf.constant(IDS[:20])).values()
    np.testing.assert_allclose(got, model(IDS[:20]), rtol=1e-5, atol=1e-7)


def test_rows_of_a_source(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text("label,a\n" + "".join(f"{i % 2},{'xxxy'[i % 4]}\n" for i in range(11)) + "1,\n")
    source = data.open_source(f"csv:{path}")
    layer = layers.CategoryRows(1, min_count=3)
    layer.adapt(x["categorical"] for x, _ in source.dataset(5, layout="fields"))
    served = layer(layers.StringHash(["a"])({"a": tf.constant(["x", "y", "", "z"])}))
    assert served.numpy().tolist() == [[1], [0], [-1], [0]]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_fields": 0}, "num_fields must be a positive integer"),
        ({"min_count": 0}, "min_count must be a positive integer"),
        ({"max_rows": [1]}, "max_rows must be None, an integer of at least 0 or 2 of them"),
        ({"max_rows": -1}, "max_rows must be None"),
        ({"num_bags": 3}, r"num_bags must be in \[0, 2\]"),
    ],
)
def test_arguments_out_of_range_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        layers.CategoryRows(**{"num_fields": 2, **arguments})


def test_wrong_inputs_are_named():
    layer = layers.CategoryRows(2)
    with pytest.raises(ValueError, match=r"is not adapted: call adapt\(data\)"):
        layer(IDS)
    with pytest.raises(ValueError, match="is not adapted"):
        layer.num_rows  # noqa: B018
    with pytest.raises(ValueError, match=r"ids must be integers \[B, 2\], got int64 \(600, 1\)"):
        layer.adapt([IDS[:, :1]])
    with pytest.raises(ValueError, match=r"ids must be integers \[B, 2\], got float32"):
        adapted()(tf.zeros([1, 2]))
    with pytest.raises(ValueError, match="inputs must be 1 tensors, got 2"):
        adapted()([IDS, IDS])
    with pytest.raises(ValueError, match="a bag must be a ragged tensor of integers"):
        layers.CategoryRows(1, num_bags=1).adapt([[IDS]])


def test_wrong_counts_are_refused():
    counts = layers.IdCounts(2)
    with pytest.raises(ValueError, match=r"field must be in \[0, 2\), got 2"):
        counts.update(2, [1])
    with pytest.raises(ValueError, match="ids must be integers, got float64"):
        counts.update(0, [1.5])
    with pytest.raises(ValueError, match="counts must be of 2 fields, got 3"):
        counts.merge(layers.IdCounts(3))
    state = {"keys": [1, 2], "fields": [0, 1], "counts": [1, 1]}
    for wrong in ({"keys": [2, 1]}, {"fields": [0, 2]}, {"counts": [0, 1]}, {"keys": [1]}):
        with pytest.raises(ValueError, match="must be"):
            counts.merge_state({**state, **wrong})
    assert len(counts.state()["keys"]) == 0
