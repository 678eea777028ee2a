"""Parameter servers and a worker in one process. The tests are in *_child_tests.py."""

import pytest

from tests.child_process import ChildProcess
from tests.distribute.parameter_server.child import child_test


@pytest.fixture(scope="module")
def child():
    with ChildProcess(["-m", "tests.distribute.parameter_server.child"]) as child:
        yield child


@pytest.mark.parametrize("name", child_test)
def test_one_process(child, name):
    child.request(name)
