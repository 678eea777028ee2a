"""Hybrid training with servers in one process. The tests are in hybrid_child_tests.py."""

import pytest
import tensorflow as tf

from tests.child_process import ChildProcess
from tests.distribute.hybrid_child_tests import child_test

LATE_ERRORS = ["a_checkpoint_that_cannot_be_written_is_a_warning_and_its_rows_come_again"]


@pytest.fixture(scope="module")
def child():
    with ChildProcess(["-m", "tests.distribute.hybrid_child_tests"]) as child:
        yield child


@pytest.mark.parametrize("name", child_test)
def test_hybrid(child, name):
    if name in LATE_ERRORS and tf.__version__.startswith("2.15."):
        pytest.skip("TensorFlow 2.15 reports the error of a write in a later operation")
    child.request(name)
