"""Laws that share a process of their own fail one by one, and only those asked for run."""

import pytest

from tests.children import Child

SCRIPT = """
import os
import pytest
from tests.children import Laws, answer

law = Laws()
ran = []

@law
def it_holds():
    ran.append("it_holds")

@law
def nothing_is_raised():
    with pytest.raises(ValueError):
        ran.append("nothing_is_raised")

@law
def it_ends_the_process():
    os._exit(3)

def a_helper():
    raise AssertionError("is no law")

def reply(request):
    if request == "ran":
        return ran
    if request == "laws":
        return list(law)
    return law.check(request)

answer(reply)
"""


@pytest.fixture
def child():
    with Child(["-c", SCRIPT]) as child:
        yield child


def test_laws_are_the_marked_functions_and_only_those_asked_for_run(child):
    assert child.ask("laws") == ["it_holds", "nothing_is_raised", "it_ends_the_process"]
    assert child.ask("it_holds") is None
    assert child.ask("ran") == ["it_holds"]


def test_a_failure_is_of_one_law_alone(child):
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        child.ask("nothing_is_raised")
    child.ask("it_holds")
    assert child.ask("ran") == ["nothing_is_raised", "it_holds"]


def test_a_process_that_ends_is_a_failure_and_the_next_law_gets_another(child):
    with pytest.raises(pytest.fail.Exception, match="it_ends_the_process: no answer"):
        child.ask("it_ends_the_process")
    child.ask("it_holds")
    assert child.ask("ran") == ["it_holds"]
