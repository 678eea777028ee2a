"""A dataset that starts at a position continues with the batches that would have followed."""

import json
from itertools import chain

import numpy as np
import pytest
import tensorflow as tf

from tests.data.conftest import FORMATS, ROWS
from tests.pairwise import each_value
from twml_ops.data import InputPosition, order, source

pytestmark = pytest.mark.one_tf  # positions of our readers

EPOCHS = 2


@pytest.fixture(autouse=True)
def small_windows(monkeypatch):
    monkeypatch.setattr(order, "WINDOW_ROWS", 24)
    monkeypatch.setattr(order, "_OPEN_PIECES", 2)


def views(opened):
    """The source, a part of its rows, and a worker's share of both."""
    return [opened, opened.split(0.3)[0], opened.shard(1, 3), opened.split(0.3)[1].shard(0, 2)]


@each_value(name=FORMATS, view=range(4))
@pytest.mark.one_tf
def test_the_rest_from_a_position_is_that_of_an_uninterrupted_run(
    view, name, open_examples, numbers_in, monkeypatch
):
    monkeypatch.setattr(source, "CACHE_BYTES", 0)
    whole = views(open_examples(name))[view]
    size, batch_size = whole.num_examples(), 9
    for arguments in ({"shuffle": True, "seed": 7}, {}):
        run = whole.dataset(batch_size, **arguments).repeat(EPOCHS)
        expected = numbers_in(run)
        assert len(expected) == EPOCHS * -(-size // batch_size)
        start = InputPosition(arguments.get("seed"))
        for done in {1, len(expected) // 2, len(expected) - 1}:
            position = InputPosition.from_dict(
                json.loads(json.dumps(start.after(done, batch_size, size).as_dict()))
            )
            again = views(open_examples(name))[view]
            rest = again.dataset(batch_size, position=position, **arguments)
            assert numbers_in(rest.repeat(EPOCHS - position.epoch)) == expected[done:]


def test_repeated_epochs_begin_with_the_position_in_each_iteration(open_examples, numbers_in):
    opened = open_examples("csv")
    once = numbers_in(opened.dataset(5, shuffle=True, seed=7).repeat(3))
    position = InputPosition(7, 1, 10)
    endless = opened.dataset(5, shuffle=True, seed=7, position=position, repeat=True)
    assert int(endless.cardinality()) == tf.data.INFINITE_CARDINALITY
    expected = once[len(once) // 3 + 2 :]
    for _ in range(2):
        assert numbers_in(endless.take(len(expected))) == expected


@pytest.mark.one_tf
def test_the_order_does_not_depend_on_the_batch_size_or_on_what_is_kept_in_memory(
    open_examples, numbers_in, monkeypatch
):
    def epochs(opened, batch_size):
        dataset = opened.dataset(batch_size, shuffle=True, seed=3)
        return [list(chain(*numbers_in(dataset))) for _ in range(2)]

    expected = epochs(open_examples("csv"), 7)
    assert epochs(open_examples("csv"), 10) == expected
    monkeypatch.setattr(source, "CACHE_BYTES", 0)
    assert epochs(open_examples("csv"), 40) == expected


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.one_tf
def test_what_was_consumed_is_not_parsed_again(name, shuffle, open_examples, numbers_in, parsed):
    opened = open_examples(name)
    position = InputPosition(0 if shuffle else None, 1, 50)
    numbers_in(opened.dataset(5, shuffle=shuffle, position=position))
    window = 48 if shuffle else 50  # the window of the position begins with example 48
    assert sum(parsed) < ROWS - window + 10  # it may begin within a unit


def test_the_end_of_an_epoch_is_the_beginning_of_the_next(open_examples, numbers_in):
    opened = open_examples("csv")
    end, begin = InputPosition(None, 0, ROWS), InputPosition(None, 1, 0)
    expected = numbers_in(opened.dataset(5))
    assert numbers_in(opened.dataset(5, position=end).repeat(2)) == expected
    assert numbers_in(opened.dataset(5, position=begin)) == expected
    assert numbers_in(opened.split(0.5)[0].dataset(5, position=InputPosition(None, 0, 32))) == []


def test_keras_continues_in_the_middle_of_an_epoch(open_examples, fresh_keras):
    def trained(*stretches):
        opened = open_examples("csv")
        opened.num_examples()
        layer = tf.keras.layers.Dense(1, kernel_initializer="zeros")
        model = tf.keras.Sequential([tf.keras.Input((1,)), layer])
        model.compile("sgd", "mse")
        for position, batches in stretches:
            dataset = opened.dataset(8, shuffle=True, position=position).repeat()
            dense = dataset.map(lambda x, y: (x["continuous_values"].to_tensor() / 64, y))
            model.fit(dense, steps_per_epoch=batches, verbose=0)
        return model.get_weights()

    start = InputPosition(0)
    position = start.after(11, 8, ROWS)
    assert (position.epoch, position.examples) == (1, 24)
    once, twice = trained((start, 16)), trained((start, 11), (position, 5))
    for a, b in zip(once, twice, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)


@pytest.mark.parametrize("drop_remainder", [False, True])
@pytest.mark.parametrize(("size", "batch_size"), [(10, 3), (9, 3), (3, 3), (4, 3)])
def test_positions_after_batches_add_up(size, batch_size, drop_remainder):
    position = InputPosition(1)
    for batches in range(1, 12):
        position = position.after(1, batch_size, size, drop_remainder)
        assert position == InputPosition(1).after(batches, batch_size, size, drop_remainder)
        assert position.examples < size


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: InputPosition(epoch=-1), "epoch must be an integer of at least 0, got -1"),
        (lambda: InputPosition(examples=1.5), "examples must be an integer of at least 0"),
        (lambda: InputPosition("a"), "seed must be an integer or None, got 'a'"),
        (lambda: InputPosition.from_dict({"epoch": 1}), "an input position has"),
        (lambda: InputPosition(examples=9).after(1, 2, 8), "at least 9, the examples consumed"),
        (lambda: InputPosition().after(1, 9, 8, True), "num_examples must be enough for a batch"),
    ],
)
def test_positions_that_cannot_be_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_a_position_of_another_order_is_refused(open_examples):
    with pytest.raises(ValueError, match="position must have the seed 1, got None"):
        open_examples("csv").dataset(5, shuffle=True, seed=1, position=InputPosition())
