"""The order of an epoch: every example once, mixed across files, given by the seed."""

from itertools import chain

import numpy as np
import pytest

from tests.data.conftest import FORMATS, ROWS
from twml_ops.data import order, source, tfrecord

WINDOW = 16


@pytest.fixture(autouse=True)
def small_windows(monkeypatch):
    monkeypatch.setattr(order, "WINDOW_ROWS", WINDOW)
    monkeypatch.setattr(source, "CACHE_BYTES", 0)


@pytest.mark.parametrize("name", FORMATS)
def test_a_shuffled_epoch_is_a_permutation_given_by_seed_and_epoch(name, open_examples, numbers_in):
    def epochs(seed):
        dataset = open_examples(name).dataset(ROWS, shuffle=True, seed=seed)
        return [list(chain(*numbers_in(dataset))) for _ in range(2)]

    first, second = epochs(1)
    assert sorted(first) == sorted(second) == list(range(ROWS))
    assert first != second
    assert epochs(1) == [first, second]
    assert epochs(2)[0] != first


@pytest.mark.parametrize("name", [n for n in FORMATS if n != "libsvm.gz"])
def test_a_window_holds_examples_from_all_over_the_data(
    name, open_examples, numbers_in, monkeypatch
):
    monkeypatch.setattr(tfrecord, "_BATCH_ROWS", 2)
    spread = []
    for seed in range(3):
        dataset = open_examples(name).dataset(WINDOW, shuffle=True, seed=seed)
        spread += [max(window) - min(window) for window in numbers_in(dataset)]
    assert np.mean(spread) >= 1.5 * WINDOW  # in file order it is WINDOW - 1


def test_a_single_compressed_file_is_shuffled_within_windows(open_examples, numbers_in):
    dataset = open_examples("libsvm.gz").dataset(WINDOW, shuffle=True)
    for k, window in enumerate(numbers_in(dataset)):
        assert sorted(window) == list(range(k * WINDOW, (k + 1) * WINDOW))
        assert window != sorted(window)


def test_few_files_are_open_at_a_time():
    opened = []

    class Piece:
        def __init__(self, index):
            self.index = index

        def units(self):
            opened.append(self.index)
            yield from [object()] * 3
            opened.remove(self.index)

    units = 0
    for _ in order.shuffled([Piece(i) for i in range(40)], 0, 0):
        units += 1
        assert len(opened) <= order._OPEN_PIECES
    assert units == 3 * 40
