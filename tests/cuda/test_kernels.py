"""The CUDA kernels keep every law of laws.py, and the checks of the laws find errors."""

import itertools

import numpy as np
import pytest

from tests.cuda.cases import FACTORS, Case, Checker
from tests.cuda.laws import ALL, PAIRS, Lab, laws


def test_every_pair_of_values_occurs_in_a_case():
    for a, b in itertools.combinations(FACTORS, 2):
        found = {(getattr(c, a), getattr(c, b)) for c in PAIRS}
        assert found == set(itertools.product(FACTORS[a], FACTORS[b]))


@pytest.mark.parametrize(
    "law",
    [
        pytest.param(w, id=w.name, marks=[pytest.mark.slow] if w.level == ALL else [])
        for w in laws(ALL, emulated=True)
    ],
)
def test_law(cuda, checker, law):
    if law.emulated_only and not cuda.is_emulated:
        pytest.skip("a real library cannot be asked")
    law.check(Lab(cuda, checker.core), **law.options)


def test_the_checker_finds_a_wrong_bit(checker, cuda):
    # Where the CPU rounds in another way, results are compared with a tolerance.
    bit = 1 << 6 if checker.same_rounding else 1 << 22

    class OneBitOff(type(cuda)):
        def sparse_linear(self, batches, tables):
            result = cuda.sparse_linear(batches, tables)
            result.arrays[0].view(np.uint32)[0, 0] ^= bit
            return result

    wrong = OneBitOff.__new__(OneBitOff)
    wrong.__dict__.update(vars(cuda))
    with pytest.raises(AssertionError):
        Checker(wrong, checker.core).check(Case(17, "sgd", "short", True, True, False, 1))
