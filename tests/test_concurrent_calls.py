"""Public operations have the results that they have alone while others run in another thread."""

import itertools
from pathlib import Path

import pytest

from tests.child_process import ChildProcess
from tests.concurrent_calls import OPERATIONS

pytestmark = pytest.mark.one_tf

PROGRAM = Path(__file__).with_name("concurrent_calls.py")
PAIRS = [  # and how often both run
    ("classifier", "classifier", 1),
    ("plots", "plots", 8),
    ("trees", "trees", 8),
    ("discretizers", "training", 1),
    ("readers", "readers", 8),
    ("checkpoints", "files", 8),
    ("kernels", "lookups", 1),
]


@pytest.fixture(scope="module")
def child():
    """A process of its own, since a fault may end it."""
    with ChildProcess([str(PROGRAM)]) as process:
        yield process


@pytest.mark.parametrize(("first", "second", "rounds"), PAIRS)
def test_two_threads_disturb_neither_each_other_nor_the_process(child, first, second, rounds):
    assert child.request([first, second, rounds]) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "pair", [*itertools.combinations_with_replacement(OPERATIONS, 2)], ids="-".join
)
def test_any_two_operations_disturb_neither_each_other_nor_the_process(child, pair):
    assert child.request([*pair, 2 if "classifier" in pair else 8]) == []
