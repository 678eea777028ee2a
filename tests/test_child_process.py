"""Tests that share a child process fail one by one, and only those that are requested run."""

import pytest

from tests.child_process import ChildProcess

SCRIPT = """
import os
import pytest
from tests.child_process import ChildTests, serve_requests

child_test = ChildTests()
ran = []

@child_test
def passes():
    ran.append("passes")

@child_test
def fails():
    with pytest.raises(ValueError):
        ran.append("fails")

@child_test
def ends_the_process():
    os._exit(3)

def is_not_registered():
    raise AssertionError

def reply(request):
    if request == "ran":
        return ran
    if request == "names":
        return list(child_test)
    return child_test.run(request)

serve_requests(reply)
"""


@pytest.fixture
def child():
    with ChildProcess(["-c", SCRIPT]) as child:
        yield child


def test_only_registered_functions_are_tests_and_only_requested_ones_run(child):
    assert child.request("names") == ["passes", "fails", "ends_the_process"]
    assert child.request("passes") is None
    assert child.request("ran") == ["passes"]


def test_a_failure_does_not_affect_other_tests(child):
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        child.request("fails")
    child.request("passes")
    assert child.request("ran") == ["fails", "passes"]


def test_the_end_of_the_process_is_a_failure_and_the_next_test_gets_a_new_one(child):
    with pytest.raises(pytest.fail.Exception, match="ends_the_process: no answer"):
        child.request("ends_the_process")
    child.request("passes")
    assert child.request("ran") == ["passes"]
