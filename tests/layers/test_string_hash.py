"""`StringHash` gives the ids of the readers, bit for bit, for any bytes."""

import numpy as np
import pyarrow as pa
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from twml_ops import export, layers, models
from twml_ops.data import hash_tokens
from twml_ops.data.category_ids import hash_column

TOKENS = [b"", b"a", b"\xff\xfe", b"\0", b"12345678", b"123456789", "wörd".encode(), b"x" * 5000]


def ids_of(column, tokens):
    return hash_tokens(column, pa.array(tokens, pa.binary())).tolist()


@settings(deadline=None, max_examples=40)
@given(st.text(max_size=20), st.lists(st.binary(max_size=300), min_size=1, max_size=8))
def test_both_entrances_give_the_same_ids(column, tokens):
    tokens = tokens + TOKENS
    got = layers.StringHash([column])(tf.constant(tokens)[:, tf.newaxis])
    assert got.dtype == tf.int64
    assert got.numpy()[:, 0].tolist() == ids_of(column, tokens)


def test_columns_come_from_a_mapping_in_their_order():
    layer = layers.StringHash(["b", "a"])
    got = layer({"a": tf.constant(["x", ""]), "b": tf.constant([["y"], ["z"]]), "c": tf.zeros(2)})
    wanted = np.stack([ids_of("b", [b"y", b"z"]), ids_of("a", [b"x", b""])], 1)
    np.testing.assert_array_equal(got, wanted)
    np.testing.assert_array_equal(layer(tf.constant([["y", "x"], ["z", ""]])), wanted)


def test_integers_and_bools_are_their_text():
    got = layers.StringHash(["n"])({"n": tf.constant([-5, 7], tf.int32)})
    assert got.numpy()[:, 0].tolist() == ids_of("n", [b"-5", b"7"])
    flags = pa.array([True, False])
    got = layers.StringHash(["n"])({"n": tf.constant([True, False])})
    assert got.numpy()[:, 0].tolist() == hash_column("n", flags.cast(pa.string())).tolist()


def test_a_bag_is_ragged_and_loses_empty_strings():
    bag = tf.ragged.constant([["a", "", "b"], [], ["a"]])
    got = layers.StringHash("tags")(bag)
    a, b = ids_of("tags", [b"a", b"b"])
    assert got.to_list() == [[a, b], [], [a]]


@pytest.mark.parametrize("columns", [[], ["a", "a"]])
def test_columns_must_be_different_names(columns):
    with pytest.raises(ValueError, match="one or more different names"):
        layers.StringHash(columns)


def test_wrong_inputs_are_named():
    layer = layers.StringHash(["a", "b"])
    with pytest.raises(ValueError, match=r"inputs lack the columns \['b'\], got \['a'\]"):
        layer({"a": tf.constant(["x"])})
    with pytest.raises(ValueError, match="column 'a' must hold strings, integers or bools"):
        layer({"a": tf.constant([1.5]), "b": tf.constant(["x"])})
    with pytest.raises(ValueError, match=r"a tensor \[B, 2\]"):
        layer(tf.constant([["x", "y", "z"]]))
    with pytest.raises(ValueError, match="must belong to one column, got 2"):
        layer(tf.ragged.constant([["x"]]))


def test_a_model_of_raw_strings_is_saved_and_exported(tmp_path):
    inputs = {n: tf.keras.Input((), dtype="string", name=n) for n in ("a", "b")}
    ids = layers.StringHash(["a", "b"])(inputs)
    model = tf.keras.Model(inputs, layers.SparseLinear(2, 128)(models.HashedIds(7)(ids)))
    batch = {"a": tf.constant(["x", ""]), "b": tf.constant(["y", "z"])}
    want = model(batch)
    model.save(tmp_path / "m.keras")
    loaded = tf.keras.models.load_model(tmp_path / "m.keras")
    np.testing.assert_array_equal(loaded(batch), want)
    export.to_stock_tf(model, tmp_path / "stock")
    served = tf.saved_model.load(tmp_path / "stock").signatures["serving_default"](**batch)
    np.testing.assert_allclose(next(iter(served.values())), want, rtol=1e-6)
