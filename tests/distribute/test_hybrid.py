"""Hybrid training with servers in one process. The tests are in hybrid_*child_tests.py."""

import pytest

from tests.child_process import ChildProcess
from tests.distribute.hybrid_child_process import child_test


@pytest.fixture(scope="module")
def child():
    with ChildProcess(["-m", "tests.distribute.hybrid_child_process"]) as child:
        yield child


@pytest.mark.parametrize("name", child_test)
def test_hybrid(child, name):
    child.request(name)
