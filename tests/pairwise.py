"""Which cases of a product of parameters run on every change, and on which TensorFlow.

A product grows with each parameter, while what fails does so for one value, or for two that meet.
`make test-slow` runs what the decorators here leave out.
"""

import itertools

import pytest

ONE_TF, SLOW = pytest.mark.one_tf, pytest.mark.slow


def _cover(rows, width, taken):
    """Adds rows to `taken` until all combinations of `width` values are in one of them."""

    def combinations(row):
        return set(itertools.combinations(enumerate(row), width))

    missing = set().union(*map(combinations, rows)) - set().union(*map(combinations, taken))
    while missing:
        best = max(rows, key=lambda row: len(combinations(row) & missing))
        missing -= combinations(best)
        taken.append(best)


def classes(lengths, together=2):
    """The mark of each case of a product, by the places of its values, or None.

    Args:
        lengths: How many values each parameter has.
        together: How many values have to meet in a case that is not slow.
    """
    rows = list(itertools.product(*map(range, lengths)))
    taken = []
    _cover(rows, 1, taken)
    each = set(taken)
    _cover(rows, min(together, len(lengths)), taken)
    return {r: None if r in each else ONE_TF if r in taken else SLOW for r in rows}


def _parametrize(parameters, together):
    values = [list(v) for v in parameters.values()]  # the names, if they are a dict
    cases = []
    for places, mark in classes([len(v) for v in values], together).items():
        case = [v[i] for v, i in zip(values, places, strict=True)]
        cases.append(pytest.param(*case, marks=[mark] if mark else []))
    return pytest.mark.parametrize(list(parameters), cases)


def pairwise(**parameters):
    """Instead of a `pytest.mark.parametrize` for each parameter: each value with each other one.

    On the second TensorFlow each value comes once.
    """
    return _parametrize(parameters, 2)


def each_value(**parameters):
    """The same for cases that take seconds: each value comes once on every TensorFlow."""
    return _parametrize(parameters, 1)


def on_both(values, *kept):
    """Values of a parameter. On the second TensorFlow, only the values in `kept` are tested."""
    return [pytest.param(v, marks=[] if v in kept else [ONE_TF]) for v in values]
