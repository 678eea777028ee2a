"""A few cases that find defects of the kernels, for libraries that may crash.

    python -m tests.cuda.battery LIBRARY REFERENCE

The process succeeds if all results are right.
"""

import sys
from pathlib import Path

import numpy as np

from tests.cuda.cases import Case, Checker
from tests.cuda.cpu_kernels import Reference
from tests.cuda.interface import Csr
from tests.cuda.library import CudaLibrary


def main(library: str, reference: str) -> None:
    """Runs the cases."""
    cuda = CudaLibrary(Path(library))
    checker = Checker(cuda, Reference(Path(reference)))
    for case in (
        Case(1, "sgd", "short", True, True, False, 1),
        Case(3, "adagrad", "short", False, True, True, 2),
        Case(17, "rowwise_adagrad", "long", True, False, False, 3),
        Case(50, "lazy_adam", "empty", False, True, False, 4),
        Case(16, "ftrl", "one_id", True, True, True, 5),
    ):
        checker.check(case)
    check_bad_input(cuda)
    check_features(cuda)


def check_features(cuda: CudaLibrary) -> None:
    """A normalization and a discretizer, with bad splits of its boundaries as well."""
    values = np.array([1, -3, 2, 5], np.float32)
    batch = Csr(np.array([0, 0, 2, 0]), values, np.array([0, 2, 4]))
    state = np.array([4, 1, 8], np.float32)
    for decay, want in ((1.0, [5, 1, 8]), (0.5, [5, 1, 4])):
        options = {"epsilon": 1e-6, "decay": decay, "training": True, "nonfinite": 0}
        result = cuda.max_norm(batch, state, None, **options)
        np.testing.assert_array_equal(result.arrays[2], want)
        np.testing.assert_array_equal(result.arrays[0], values / result.arrays[2][batch.ids])
    features, boundaries = np.array([0, 2]), np.array([0, 2, 1], np.float32)
    result = cuda.discretize(batch, features, boundaries, np.array([0, 2, 3]), bits=4)
    np.testing.assert_array_equal(result.arrays[0], [1, 0, 5, 2])
    bad = cuda.discretize(batch, features, boundaries, np.array([0, 2**40, 3]), bits=4)
    assert bad.errors[5] > 0, bad.errors


def check_bad_input(cuda: CudaLibrary) -> None:
    """Bad entries are reported, and skipped without an access outside of the arrays."""
    table = np.ones((4, 20), np.float32)
    ids = np.array([0, 4, -1, 3, 2**40], np.int64)
    batch = Csr(ids, None, np.array([0, 2, 5]))
    result = cuda.sparse_linear([batch], [table])
    assert result.errors[:3] == (3, 1, 0), result.errors
    np.testing.assert_array_equal(result.arrays[0], np.ones((2, 20)))
    result = cuda.values_grad(batch, table, np.ones((2, 20), np.float32))
    assert result.errors[:3] == (3, 1, 0), result.errors
    np.testing.assert_array_equal(result.arrays[0], [20, 0, 0, 20, 0])
    result = cuda.update([batch], [np.ones((2, 20), np.float32)], [table], [[]], ["sgd"])
    assert result.errors[:3] == (3, 1, 0), result.errors
    assert (result.arrays[0][1:3] == 1).all()
    assert (result.arrays[0][[0, 3]] != 1).all()
    for splits, rows in (([0, 9, 5], [0, 0]), ([0, -3, 5], [0, 0]), ([0, 2, 3000], [2, 0])):
        batch = Csr(np.array([0, 1, 2, 3, 0]), None, np.array(splits))
        result = cuda.sparse_linear([batch], [table])
        assert result.errors[2] > 0, splits
        np.testing.assert_array_equal(result.arrays[0], np.repeat([rows], 20, 0).T)
        grad = np.ones((2, 20), np.float32)
        assert cuda.values_grad(batch, table, grad).errors[2] > 0, splits
        assert cuda.update([batch], [grad], [table], [[]], ["sgd"]).errors[2] > 0, splits


if __name__ == "__main__":
    main(*sys.argv[1:])
