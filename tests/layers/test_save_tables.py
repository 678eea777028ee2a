"""Saving models whose tables are in files, some rows at a time."""

import zipfile

import numpy as np
import pytest
import tensorflow as tf

from twml_ops import layers, optimizers, placement

N, D = 300, 3


def make_model(storage, dtype="float32", num_rows=N):
    ids = tf.keras.Input([None], dtype="int64", name="ids")
    rows = layers.SparseLinear(
        D,
        num_rows,
        storage=storage,
        kernel_dtype=dtype,
        kernel_initializer="glorot_normal",
        name="rows",
    )(ids)
    other = layers.SparseLinear(2, 40, name="in_memory")(ids)
    joined = tf.keras.layers.Concatenate()([rows, other])
    return tf.keras.Model(ids, tf.keras.layers.Dense(1, name="out")(joined))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_file_has_the_whole_table(tmp_path, fresh_keras, dtype):
    model = make_model(layers.Tiered(tmp_path / "rows", cache_rows=32), dtype)
    layers.save_model(model, tmp_path / "a.keras")
    model.save(str(tmp_path / "b.keras"))
    names = []
    for file in ("a.keras", "b.keras"):
        with zipfile.ZipFile(tmp_path / file) as archive:
            names.append(set(archive.namelist()))
            assert archive.testzip() is None
    assert names[0] == names[1]
    mine, theirs = (tf.keras.models.load_model(str(tmp_path / f)) for f in ("a.keras", "b.keras"))
    for loaded in (mine, theirs):
        table, whole = loaded.get_layer("rows").kernel, model.get_layer("rows").kernel
        values = [placement.placement_of(v).read(v) for v in (table, whole)]
        np.testing.assert_array_equal(*(tf.cast(v, tf.float32).numpy() for v in values))
        for name in ("in_memory", "out"):
            for a, b in zip(
                loaded.get_layer(name).get_weights(),
                model.get_layer(name).get_weights(),
                strict=True,
            ):
                np.testing.assert_array_equal(a, b)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.keras", "b.keras", "rows"]


def test_a_model_in_memory_is_saved_as_keras_does(tmp_path, fresh_keras):
    model = make_model(None)
    layers.save_model(model, tmp_path / "a.keras")
    loaded = tf.keras.models.load_model(str(tmp_path / "a.keras"))
    for a, b in zip(loaded.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_file_that_cannot_be_written_leaves_the_old_one(tmp_path, fresh_keras):
    # More rows than a store has in memory: a write that has not ended restores what it wrote.
    model = make_model(layers.Tiered(tmp_path / "rows", cache_rows=32), num_rows=20 * N)
    layers.save_model(model, tmp_path / "a.keras")
    before = (tmp_path / "a.keras").read_bytes()
    (tmp_path / "rows" / "rows_kernel.rows").open("r+b").truncate(4096)  # rows are lost
    with pytest.raises(tf.errors.UnknownError, match="cannot be read"):
        layers.save_model(model, tmp_path / "a.keras")
    assert (tmp_path / "a.keras").read_bytes() == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.keras", "rows"]


def test_an_optimizer_of_keras_is_refused_when_batches_are_announced(tmp_path, fresh_keras):
    model = make_model(layers.Tiered(tmp_path / "rows", cache_rows=32))
    batches = tf.data.Dataset.from_tensors((tf.constant([[1, 2]], tf.int64), tf.ones([1, 1])))
    model.compile("adam", "mse")
    with pytest.raises(ValueError, match=r"'rows' has a table with storage=.* got Adam of Keras"):
        layers.prefetch_rows(batches, model)
    model.compile(optimizers.Adagrad(0.1), "mse")
    model.fit(layers.prefetch_rows(batches, model), verbose=0)
