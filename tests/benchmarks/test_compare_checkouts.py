"""The comparison of two checkouts, with tiny sizes."""

import pytest

from benchmarks.checkout_process import WHOLE
from benchmarks.compare_checkouts import ROOT, Child, compare
from benchmarks.contender import FORWARD, TWML_OPS


@pytest.mark.slow
def test_a_checkout_is_compared_with_itself_in_two_processes():
    with Child(ROOT, quick=True) as before, Child(ROOT, quick=True) as now:
        for task in (FORWARD, *WHOLE):
            times = compare([before, now], task, TWML_OPS, 1.05, rounds=1)
            assert all(t > 0 for t in times)
