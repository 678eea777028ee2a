"""`pad_to_static`: static shapes, and what they cost."""

import numpy as np
import pytest
import tensorflow as tf

from twml_ops import layers
from twml_ops.data import pad_to_static

LENGTHS = [3, 0, 1, 2, 10, 2, 1]  # the last one is no whole batch


def ragged():
    ids = tf.RaggedTensor.from_row_lengths(np.arange(19), LENGTHS)
    return ids, ids.with_flat_values(np.arange(19, dtype=np.float32) + 0.5)


def named(batch_size=2):
    ids, values = ragged()
    features = {"x_ids": ids, "x_values": values, "n": np.arange(7), "y_ids": ids[:, :1]}
    return tf.data.Dataset.from_tensor_slices((features, np.arange(7.0)[:, None])).batch(batch_size)


def test_rows_keep_their_first_entries_and_the_cut_is_reported():
    padded = pad_to_static(named(), 0.8, batch_size=2)
    # 6 of 7 rows fit into 3 entries; the other loses 7 of 19.
    assert padded.max_entries == {"x": 3, "y": 1}
    assert padded.cut == {"x": 7 / 19, "y": 0.0}
    assert "x: 3 a row, 36.842% of the entries cut" in padded.report()
    batches = list(padded.dataset)
    assert len(batches) == 3
    features, labels = batches[0]
    assert features["x_ids"].numpy().tolist() == [[0, 1, 2], [-1, -1, -1]]
    assert features["x_values"].numpy().tolist() == [[0.5, 1.5, 2.5], [0, 0, 0]]
    assert batches[2][0]["x_ids"].numpy().tolist() == [[6, 7, 8], [16, 17, -1]]
    assert features["n"].numpy().tolist() == [0, 1]
    assert labels.shape == (2, 1)
    spec = padded.dataset.element_spec
    assert all(s.shape.is_fully_defined() for s in tf.nest.flatten(spec))


@pytest.mark.parametrize(
    ("wanted", "widths"),
    [(1.0, {"x": 10, "y": 1}), (5, {"x": 5, "y": 5}), ({"x": 0.5, "y": 2}, {"x": 2, "y": 2})],
)
def test_maxima_by_share_by_number_or_by_feature(wanted, widths):
    assert pad_to_static(named(), wanted).max_entries == widths


def test_maxima_can_be_multiples_and_come_from_a_part_of_the_data():
    assert pad_to_static(named(), 1.0, multiple_of=8).max_entries == {"x": 16, "y": 8}
    assert pad_to_static(named(), 1.0, sample_batches=2).max_entries == {"x": 3, "y": 1}


def test_nothing_cut_means_nothing_changed():
    ids, values = ragged()
    layer = layers.SparseLinear(4, 19)
    pair = tf.data.Dataset.from_tensor_slices((ids, values)).batch(7)
    padded = pad_to_static(pair, 1.0)
    assert padded.cut == {"": 0.0}
    for batch in padded.dataset:
        np.testing.assert_allclose(layer(batch), layer((ids, values)), rtol=1e-5, atol=1e-6)
    indices = [[r, 2 * r] for r in range(7)]
    sparse = tf.SparseTensor(indices, np.arange(7, dtype=np.float32), [7, 19])
    for batch in pad_to_static(tf.data.Dataset.from_tensors((sparse, 0)), 1.0).dataset:
        np.testing.assert_allclose(layer(batch[0]), layer(sparse), rtol=1e-5, atol=1e-6)


def test_what_makes_no_sense_is_refused():
    with pytest.raises(ValueError, match=r"'x' must be a share in \(0, 1\], got 1.5"):
        pad_to_static(named(), 1.5)
    with pytest.raises(ValueError, match="'x' must be at least 1, got 0"):
        pad_to_static(named(), 0)
    with pytest.raises(ValueError, match=r"got none for \['y'\]"):
        pad_to_static(named(), {"x": 3})
    with pytest.raises(ValueError, match="got only dense ones"):
        pad_to_static(tf.data.Dataset.from_tensors((tf.zeros([2, 3]), 0)))
    with pytest.raises(ValueError, match="at least one batch"):
        pad_to_static(named().take(0))


def unknown_length(dataset):
    """The same batches, of which nothing says how many there are."""
    return dataset.filter(lambda *_: True)


@pytest.mark.parametrize("prepare", [lambda d: d, unknown_length])
@pytest.mark.parametrize(("batch_size", "batches"), [(None, 4), (2, 3)])
def test_a_dataset_that_was_looked_at_as_a_whole_knows_its_length(prepare, batch_size, batches):
    padded = pad_to_static(prepare(named()), 1.0, batch_size=batch_size)
    assert int(padded.dataset.cardinality()) == batches == len(list(padded.dataset))


def test_batches_that_are_all_of_the_size_keep_their_known_length():
    ids, values = ragged()
    whole = tf.data.Dataset.from_tensor_slices(({"x_ids": ids, "x_values": values}, np.arange(7)))
    padded = pad_to_static(whole.batch(2, drop_remainder=True), 1.0, batch_size=2, sample_batches=1)
    assert int(padded.dataset.cardinality()) == 3 == len(list(padded.dataset))


@pytest.mark.parametrize("batch_size", [None, 2])
def test_fit_counts_the_steps_and_the_loss_of_the_same_batches(fresh_keras, batch_size):
    padded = pad_to_static(unknown_length(named()), 1.0, batch_size=batch_size)
    fed = list(padded.dataset)
    parts = [{k: f[k] for k in ("x_ids", "x_values")} for f, _ in fed]
    whole = {k: np.concatenate([part[k] for part in parts]) for k in parts[0]}
    labels = np.concatenate([of_batch for _, of_batch in fed])

    def fitted(*data, **arguments):
        tf.keras.utils.set_random_seed(1)
        width = padded.max_entries["x"]
        inputs = {
            "x_ids": tf.keras.Input((width,), dtype="int64", name="x_ids"),
            "x_values": tf.keras.Input((width,), name="x_values"),
        }
        model = tf.keras.Model(inputs, layers.SparseLinear(1, 19)(tuple(inputs.values())))
        model.compile(tf.keras.optimizers.SGD(0.01), "mse")
        history = model.fit(*data, epochs=3, shuffle=False, verbose=0, **arguments)
        return history.history["loss"], int(tf.convert_to_tensor(model.optimizer.iterations))

    def chosen(features, labels):
        return {k: features[k] for k in whole}, labels

    losses, steps = fitted(padded.dataset.map(chosen))
    fed_losses, fed_steps = fitted(whole, labels, batch_size=2)
    assert steps == fed_steps == 3 * len(fed)
    np.testing.assert_allclose(losses, fed_losses, rtol=1e-5)
