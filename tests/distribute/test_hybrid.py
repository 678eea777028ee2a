"""Hybrid training with servers in one process; see hybrid_laws.py, where the laws are."""

import pytest

from tests.children import Child
from tests.distribute import hybrid_laws


@pytest.fixture(scope="module")
def child():
    with Child(["-m", "tests.distribute.hybrid_laws"]) as child:
        yield child


@pytest.mark.parametrize("name", hybrid_laws.law)
def test_law(child, name):
    child.ask(name)
