"""What `make mutants` may change, and which tests it takes for a file."""

import ast
import itertools

import pytest

from tests.mutation import operators, run

PYTHON = b'''"""A docstring with 1 < 2."""
import logging

__all__ = ["f"]

def f(x: int = 3, y: "1 < 2" = "0") -> int:
    """Not 1 + 1."""
    # if x < 1: raise
    if x < len(y) and y:
        raise ValueError(f"expected {x + 1} > 2", 7)
    logging.info("4 < 5", 4 < 5)
    y.items[0] = min(x, 1)
    for i in range(x):
        print(i + x)
    return x - 1
'''
CC = b"""#include <vector>  // 1 < 2
#define TWO (1 + 1)
template <class T>
Status Sum(const std::vector<int>& x, int n) {
  if (n < 0) return Invalid("n < 0", n + 1);
  __builtin_prefetch(&x[n + 8]);
  int64_t sum = 0;
  parallel_for(n, 64, [&](int64_t i) { sum += x[i]; });
  y->resize(sum);
  return Check(sum);
}
"""


def changed(language, text):
    """The line and the old and the new text of each change."""
    found = {"python": operators.python_changes, "cc": operators.cc_changes}[language](text)
    return [(c.line, text[c.start : c.end].decode().strip(), c.new.strip()) for c in found]


def test_each_kind_of_python_is_changed_and_all_else_is_left_alone():
    found = changed("python", PYTHON)
    assert {line for line, _, _ in found} == {6, 9, 10, 12, 13, 14, 15}
    assert {
        (9, "x < len(y)", "(x <= len(y))"),
        (9, "x < len(y) and y", "(x < len(y) or y)"),
        (9, "x < len(y) and y", "(not (x < len(y) and y))"),
        (12, "min(x, 1)", "(max(x, 1))"),
        (12, "y.items[0] = min(x, 1)", "pass"),
        (13, "range(x)", "(range(x - 1))"),
        (14, "print(i + x)", "pass"),
        (15, "return x - 1", "return None"),
        (15, "1", "(1 + 1)"),
    } < set(found)
    assert [new for line, _, new in found if line == 10] == ["pass"]


def test_each_kind_of_c_plus_plus_is_changed_and_all_else_is_left_alone():
    found = changed("cc", CC)
    assert {line for line, _, _ in found} == {5, 7, 8, 9, 10}
    assert {
        (5, "n < 0", "!(n < 0)"),
        (5, "n < 0", "false && (n < 0)"),
        (5, "<", "<="),
        (8, "+=", "-="),
        (9, "y->resize(sum);", ";"),
        (10, "return Check(sum);", "return {};"),
    } < set(found)
    assert not {(8, "64", "(64 + 1)"), (5, "+", "-")} & set(found)


@pytest.mark.parametrize("language", run.LANGUAGES)
def test_a_seed_draws_the_same_changes_each_of_one_line(language):
    first, again = (list(itertools.islice(run.drawn(language, 5), 40)) for _ in range(2))
    assert first == again
    assert len({(name, change.line) for name, change in first}) == 40
    for name, change in first:
        old = (run.ROOT / name).read_bytes()
        new = change.apply(old)
        assert new != old
        if language == "python":
            ast.parse(new)


@pytest.mark.parametrize(
    ("source", "test"),
    [
        ("twml_ops/data/csv.py", "tests/data/test_csv.py"),
        ("twml_ops/_publish.py", "tests/test_publish.py"),
        ("cc/core/scorer/json.cc", "tests/core/test_scorer.py"),
    ],
)
def test_the_tests_of_a_file_come_first(source, test):
    assert run.TestFiles().rank(source)[0] == test
