"""What all sources share: splitting, caching, row ranges, and errors that stay readable."""

import pytest
import tensorflow as tf

from twml_ops.data import DataError, open_source, original_errors, source, text

LINES = 40


@pytest.fixture
def path(text_file, monkeypatch):
    monkeypatch.setattr(text, "CHUNK_BYTES", 30)  # several blocks
    return text_file("".join(f"{i % 2} {i + 1}:{i}.5\n" for i in range(LINES)))


@pytest.mark.parametrize(("holdout", "cut"), [(0.2, 32), (0.5, 20), (0.975, 1), (0.025, 39)])
def test_split_holds_out_the_last_share_in_file_order(holdout, cut, path, rows_of):
    whole = open_source(f"libsvm:{path}")
    rows = rows_of(whole.blocks())
    for opened in (whole, open_source(f"libsvm:{path}")):
        train, test = opened.split(holdout)
        assert rows_of(train.blocks()) == rows[:cut]
        assert rows_of(test.blocks()) == rows[cut:]
        assert (train.num_examples(), test.num_examples()) == (cut, LINES - cut)
        assert train.schema == test.schema == whole.schema


def test_a_split_of_a_split_and_of_a_row_range_compose(path, rows_of):
    rows = rows_of(open_source(f"libsvm:{path}").blocks())
    part = open_source(f"libsvm:{path}[4:34]")
    train, test = part.split(0.5)
    assert rows_of(train.blocks()) == rows[4:19]
    assert rows_of(test.split(0.4)[1].blocks()) == rows[28:34]


@pytest.mark.parametrize("holdout", [0.0, 1.0, -1, 0.001])
def test_a_split_that_leaves_nothing_is_an_error(holdout, path):
    with pytest.raises(ValueError, match="holdout"):
        open_source(f"libsvm:{path}").split(holdout)


def test_a_row_range_beyond_the_data_is_an_error(path):
    with pytest.raises(DataError, match="row range is empty"):
        open_source(f"libsvm:{path}[7:7]")
    beyond = open_source(f"libsvm:{path}[40:]")
    with pytest.raises(DataError, match=r"\[40:\]: no such rows"):
        list(beyond.blocks())


@pytest.mark.parametrize("name", ["data.libsvm", "data.libsvm.gz"])
@pytest.mark.parametrize(("start", "stop"), [(0, 3), (0, 32), (32, None), (5, 39), (39, 40)])
def test_a_range_of_counted_data_is_counted_without_a_pass(
    start, stop, name, path, text_file, monkeypatch
):
    file = text_file("".join(f"{i % 2} {i + 1}:{i}.5\n" for i in range(LINES)), name)
    counted = open_source(f"libsvm:{file}")
    counted.num_examples()
    ranges = [source.RowRange(s, start, stop) for s in (counted, open_source(f"libsvm:{file}"))]
    by_reading = [piece.unit_rows() for piece in ranges[1]._pieces()]
    monkeypatch.setattr(text, "existing_file", None)  # nothing can be read
    assert [piece.unit_rows() for piece in ranges[0]._pieces()] == by_reading
    assert ranges[0].num_examples() == len(range(LINES)[start:stop])


@pytest.mark.parametrize("limit", [0, 200, 1 << 30])
def test_every_pass_gives_the_same_rows_cached_or_not(limit, path, rows_of, monkeypatch):
    monkeypatch.setattr(source, "CACHE_BYTES", limit)
    opened = open_source(f"libsvm:{path}")
    first = rows_of(opened.blocks())
    kept = opened._cache is not None
    assert kept == (limit == 1 << 30)
    assert rows_of(opened.blocks()) == first
    assert rows_of(opened.blocks(3, 17)) == first[3:17]
    assert rows_of(opened.blocks(39)) == first[39:]
    assert rows_of(opened.blocks(17, 3)) == []
    assert opened.num_examples() == len(first) == LINES


def test_a_cached_source_is_not_read_again(path):
    opened = open_source(f"libsvm:{path}?dim=40")
    list(opened.dataset(8))
    with open(path, "w") as f:
        f.write("not libsvm")
    assert sum(int(y.shape[0]) for _, y in opened.dataset(8)) == LINES


def test_an_abandoned_pass_keeps_nothing(path):
    opened = open_source(f"libsvm:{path}?dim=40")
    next(iter(opened.dataset(2)))
    next(opened.blocks())
    assert len(list(opened.blocks())) > 1
    assert opened.num_examples() == LINES


def test_batch_size_must_be_positive(path):
    with pytest.raises(ValueError, match="batch_size must be at least 1, got 0"):
        open_source(f"libsvm:{path}").dataset(0)


def test_errors_while_iterating_surface_as_one_clear_line(text_file):
    good, bad = text_file("1 1:1\n" * 9), text_file("1 1:1\n" * 9 + "1 0:1\n", "bad")
    train = open_source(f"libsvm:{good}?dim=3")
    test = open_source(f"libsvm:{bad}?dim=3")
    with pytest.raises(tf.errors.OpError):
        list(test.dataset(2))
    both = train.dataset(2).concatenate(test.dataset(2))
    for _ in range(2):
        with pytest.raises(DataError) as e, original_errors(train, test):
            list(both)
        assert str(e.value) == f"{bad}: line 10: indices start at 1, got '0:1'"


def test_errors_reach_through_model_fit(text_file):
    path = text_file("1 1:1\n" * 9 + "2 1:1\n")
    opened = open_source(f"libsvm:{path}?dim=3")
    model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
    model.compile("sgd", "binary_crossentropy")
    dense = opened.dataset(2).map(lambda x, y: (x["sparse_values"].to_tensor(shape=[None, 1]), y))
    with pytest.raises(DataError, match=r"line 10: label must be"), original_errors(opened):
        model.fit(dense, verbose=0)


def test_a_file_that_vanishes_is_a_file_not_found(text_file, tmp_path):
    opened = open_source(f"libsvm:{text_file('1 1:1')}?dim=3")
    (tmp_path / "data.libsvm").unlink()
    with pytest.raises(FileNotFoundError, match="no such file"), original_errors(opened):
        list(opened.dataset(2))


def test_other_errors_pass_through_unchanged(path):
    with (
        pytest.raises(tf.errors.InvalidArgumentError, match="mine"),
        original_errors(open_source(f"libsvm:{path}")),
    ):
        raise tf.errors.InvalidArgumentError(None, None, "mine")


@pytest.mark.parametrize("drop_remainder", [False, True])
def test_fit_takes_as_many_steps_as_there_are_batches_once_examples_are_counted(
    path, drop_remainder, fresh_keras
):
    train = open_source(f"libsvm:{path}")
    assert train.num_examples() == LINES
    dataset = train.dataset(16, drop_remainder=drop_remainder)
    batches = 2 if drop_remainder else 3
    assert int(dataset.cardinality()) == batches
    model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    model.fit(dataset.map(lambda x, y: (y, y)), epochs=2, verbose=0)
    assert int(tf.convert_to_tensor(model.optimizer.iterations)) == 2 * batches
