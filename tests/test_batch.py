import numpy as np
import pytest
import tensorflow as tf

from twml_ops._batch import SparseBatch, num_rows, parse

ROWS = {
    "ordinary": [[3, 1], [], [2, 2, 0], [4]],
    "empty rows": [[], [], []],
    "no rows": [],
    "one row": [[0, 4]],
}
WIDTH = 5


def make(form, rows, id_dtype=np.int64):
    """(inputs, ids, values, row_splits) of rows of ids; the values tell the entries apart."""
    ids = np.array([i for row in rows for i in row], id_dtype)
    values = np.arange(len(ids), dtype=np.float32) + 0.5
    splits = np.cumsum([0, *map(len, rows)])
    ragged_ids = tf.RaggedTensor.from_row_splits(ids, splits)
    ragged_values = tf.RaggedTensor.from_row_splits(values, splits)
    inputs = {
        "sparse": lambda: tf.SparseTensor(
            np.stack([np.repeat(np.arange(len(rows)), np.diff(splits)), ids], 1).astype(np.int64),
            values,
            [len(rows), WIDTH],
        ),
        "ragged": lambda: (ragged_ids, ragged_values),
        "ragged binary": lambda: ragged_ids,
        "padded": lambda: (ragged_ids.to_tensor(-1), ragged_values.to_tensor(0)),
        "padded binary": lambda: ragged_ids.to_tensor(-1),
    }[form]()
    return inputs, ids, None if "binary" in form else values, splits


FORMS = ["sparse", "ragged", "ragged binary", "padded", "padded binary"]


def components(batch):
    return tf.nest.flatten(batch, expand_composites=True)


def assert_same(a, b):
    tf.nest.assert_same_structure(a, b, expand_composites=True)
    for x, y in zip(components(a), components(b), strict=True):
        np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("rows", ROWS.values(), ids=ROWS)
@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_same_csr(form, rows):
    inputs, ids, values, splits = make(form, rows)
    batch, _ = parse(inputs)
    np.testing.assert_array_equal(batch.ids, ids)
    np.testing.assert_array_equal(batch.row_splits, splits)
    assert batch.row_splits.dtype == tf.int64
    assert num_rows(batch) == len(rows)
    if values is None:
        assert batch.values is None
        np.testing.assert_array_equal(batch.values_or_ones(), np.ones(len(ids)))
    else:
        np.testing.assert_array_equal(batch.values, values)


@pytest.mark.parametrize("rows", ROWS.values(), ids=ROWS)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("in_function", [False, True])
def test_rebuilding_the_batch_gives_the_inputs(form, rows, in_function):
    inputs = make(form, rows)[0]

    def back(inputs):
        batch, rebuild = parse(inputs)
        return rebuild(batch, WIDTH)

    assert_same((tf.function(back) if in_function else back)(inputs), inputs)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("in_function", [False, True])
def test_a_rebuilt_batch_may_have_fewer_entries(form, in_function):
    def drop_first_of_each_row(inputs):
        batch, rebuild = parse(inputs)
        first = tf.reduce_any(
            tf.range(tf.size(batch.ids, tf.int64))[:, None] == batch.row_splits[None, :-1], axis=1
        )
        keep = tf.logical_not(first)
        before = tf.concat([[0], tf.cumsum(tf.cast(keep, tf.int64))], 0)
        values = None if batch.values is None else tf.boolean_mask(batch.values, keep)
        ids = tf.boolean_mask(batch.ids, keep)
        return rebuild(SparseBatch(ids, values, tf.gather(before, batch.row_splits)), WIDTH)

    run = tf.function(drop_first_of_each_row) if in_function else drop_first_of_each_row
    got, _ = parse(run(make(form, ROWS["ordinary"])[0]))
    np.testing.assert_array_equal(got.row_splits, [0, 1, 1, 3, 3])
    np.testing.assert_array_equal(got.ids, [1, 2, 0])
    if got.values is not None:
        np.testing.assert_array_equal(got.values, [1.5, 3.5, 4.5])


@pytest.mark.parametrize("form", ["ragged binary", "padded binary"])
def test_a_binary_batch_that_gets_values_becomes_a_pair(form):
    batch, rebuild = parse(make(form, ROWS["ordinary"])[0])
    other = SparseBatch(batch.ids, batch.values_or_ones() * 2, batch.row_splits)
    got, _ = parse(rebuild(other, WIDTH))
    np.testing.assert_array_equal(got.values, np.full(6, 2.0))


@pytest.mark.parametrize("in_function", [False, True])
def test_the_csr_form_of_a_layer_output_is_reused(in_function):
    def run(inputs):
        batch, rebuild = parse(inputs)
        scaled = rebuild(SparseBatch(batch.ids, batch.values * 2, batch.row_splits), WIDTH)
        assert scaled.indices is inputs.indices
        other = SparseBatch(batch.ids + 1, batch.values, batch.row_splits)
        again, _ = parse(rebuild(other, WIDTH))
        assert again.ids is other.ids
        assert again.row_splits is other.row_splits
        return again.ids

    inputs, ids, _, _ = make("sparse", ROWS["ordinary"])
    np.testing.assert_array_equal((tf.function(run) if in_function else run)(inputs), ids + 1)


def test_a_sparse_batch_gets_the_requested_width():
    batch, rebuild = parse(make("sparse", ROWS["ordinary"])[0])
    assert rebuild(batch, 77).shape == (4, 77)


def test_shapes_stay_known_in_graphs():
    @tf.function(input_signature=[[tf.TensorSpec([None, 3], tf.int64), tf.TensorSpec([None, 3])]])
    def padded(inputs):
        batch, rebuild = parse(inputs)
        same, _ = rebuild(batch, WIDTH)
        assert same.shape.as_list() == [None, 3]
        moved, _ = rebuild(
            SparseBatch(batch.ids, batch.values, tf.identity(batch.row_splits)), WIDTH
        )
        assert moved.shape.as_list() == [None, None]
        return same

    @tf.function(input_signature=[tf.SparseTensorSpec([None, WIDTH])])
    def sparse(inputs):
        batch, rebuild = parse(inputs)
        assert rebuild(batch, 9).shape.as_list() == [None, 9]
        return batch.ids

    padded.get_concrete_function()
    sparse.get_concrete_function()


@pytest.mark.parametrize("dtype", [np.int8, np.int16, np.int32, np.int64])
@pytest.mark.parametrize("form", ["ragged", "padded"])
def test_ids_of_any_integer_type_are_cast_to_one_that_the_ops_take(dtype, form):
    batch, _ = parse(make(form, [[3, 1], [2]], dtype)[0])
    assert batch.ids.dtype in (tf.int32, tf.int64)
    np.testing.assert_array_equal(batch.ids, [3, 1, 2])


def test_values_of_another_type_are_cast():
    ids, values = make("padded", ROWS["ordinary"])[0]
    for dtype in (tf.float64, tf.float16, tf.int32):
        assert parse((ids, tf.cast(values, dtype)))[0].values.dtype == tf.float32


RAGGED = tf.ragged.constant([[1], [2, 3]], dtype=tf.int64)


@pytest.mark.parametrize(
    "inputs",
    [
        tf.zeros([2, 3]),
        tf.zeros([2], tf.int64),
        (tf.zeros([2, 3], tf.int64), tf.zeros([2])),
        (tf.zeros([2, 3]), tf.zeros([2, 3])),
        (RAGGED, tf.zeros([2, 3])),
        (RAGGED, RAGGED, RAGGED),
        tf.ragged.constant([[1.0]]),
        tf.ragged.constant([[[1]]]),
        (RAGGED, tf.ragged.constant([[[1.0]], [[2.0], [3.0]]])),
        tf.sparse.from_dense(tf.ones([1, 2, 3])),
        "text",
        None,
    ],
    ids=str,
)
def test_inputs_of_no_batch_form_are_refused(inputs):
    with pytest.raises(ValueError, match=r"must (be|have)"):
        parse(inputs)


@pytest.mark.parametrize("in_function", [False, True])
@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ((RAGGED, tf.ragged.constant([[1.0, 2.0], [3.0]])), "must have the same row lengths"),
        ((tf.zeros([2, 3], tf.int64), tf.zeros([2, 4])), "must have the same shape"),
        ((tf.zeros([2, 3], tf.int64), tf.zeros([2, 2])), "must have the same shape"),
    ],
)
def test_ids_and_values_of_different_sizes_are_refused(inputs, message, in_function):
    def ids(inputs):
        return parse(inputs)[0].ids

    with pytest.raises((tf.errors.InvalidArgumentError, ValueError), match=message):
        (tf.function(ids) if in_function else ids)(inputs)


def test_sparse_rows_out_of_order_are_refused():
    unordered = tf.SparseTensor([[1, 0], [0, 0]], [1.0, 2.0], [2, 3])
    with pytest.raises(tf.errors.InvalidArgumentError, match="row-major"):
        parse(unordered)
