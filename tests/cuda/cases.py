"""Cases for the CUDA kernels, and what their results are compared with."""

from __future__ import annotations

import collections
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.cuda.cpu_kernels import Reference
from tests.cuda.interface import NO_ERRORS, RULES, Csr
from tests.cuda.library import CudaLibrary

Array = Any
DIMS = (1, 3, 8, 16, 17, 50, 64, 128, 400)
FACTORS: dict[str, Sequence[Any]] = {
    "dim": DIMS,
    "rule": tuple(RULES),
    "rows": ("short", "long", "one_id", "empty"),
    "wide_ids": (False, True),
    "weighted": (False, True),
    "bfloat16": (False, True),
    "seed": (1, 2, 3),
}
TABLE_ROWS = 37


@dataclass(frozen=True)
class Case:
    """A combination of FACTORS."""

    dim: int
    rule: str
    rows: str
    wide_ids: bool
    weighted: bool
    bfloat16: bool
    seed: int

    def __str__(self) -> str:
        return "-".join(str(v) for v in vars(self).values())


def pairwise(factors: Mapping[str, Sequence[Any]]) -> Iterator[dict[str, Any]]:
    """Yields combinations of factors in which every two values of two factors occur together."""
    # A bit for each two values of two factors: what a combination has, and what is missing.
    bits: dict[Any, int] = collections.defaultdict(lambda: 1 << len(bits))
    every = {
        values: sum(bits[pair] for pair in itertools.combinations(enumerate(values), 2))
        for values in itertools.product(*factors.values())
    }
    missing = (1 << len(bits)) - 1
    while missing:
        best = max(every, key=lambda values: (every[values] & missing).bit_count())
        missing &= ~every[best]
        yield dict(zip(factors, best, strict=True))


def to_bfloat16(a: Array) -> Array:
    """The upper halves of floats."""
    return (np.asarray(a, np.float32).view(np.uint32) >> 16).astype(np.uint16)


def to_float(table: Array) -> Array:
    """The values of a table of floats or of bfloat16."""
    if table.dtype != np.uint16:
        return table
    return (table.astype(np.uint32) << 16).view(np.float32)


def lengths_of(rows: str, random: Any, long: int) -> Array:
    """The number of entries of each row of a batch."""
    if rows == "empty":
        return np.array([0, 0, 3, 0])
    if rows == "one_id":
        return np.ones(70, np.int64)
    lengths = random.integers(0, 40, 5)
    if rows == "long":
        lengths[1:3] = long, 2048
    return lengths


def batch_of(case: Case, long: int = 2060) -> Csr:
    """The batch of a case."""
    random = np.random.default_rng(case.dim)
    splits = np.concatenate([[0], np.cumsum(lengths_of(case.rows, random, long))]).astype(np.int64)
    ids = random.integers(0, TABLE_ROWS, splits[-1])
    if case.rows == "one_id":
        ids[:] = 5
    if case.rows == "long":
        ids[::2] = 11  # a long group
    values = random.normal(size=len(ids)).astype(np.float32) if case.weighted else None
    return Csr(ids.astype(np.int64 if case.wide_ids else np.int32), values, splits)


def slots_of(rule: str, rows: int, dim: int, random: Any) -> list[Array]:
    """Slots as they are in the middle of a training."""
    width = 1 if rule == "rowwise_adagrad" else dim
    slots = [
        random.uniform(0.1, 1, (rows, width)).astype(np.float32) for _ in range(RULES[rule][1])
    ]
    if rule == "ftrl":
        slots[1] -= 0.5
    return slots


class Checker:
    """Compares the results of a CUDA library with the results of the CPU's kernels and of NumPy.

    Args:
        cuda: The library to test.
        core: The CPU's kernels.
    """

    def __init__(self, cuda: CudaLibrary, core: Reference) -> None:
        self.cuda, self.core = cuda, core
        # Kernels of other levels round products, or add squares and dot products in another order.
        self.same_rounding = core.level in ("avx2", "avx512")
        self.same_order = core.level == "avx512"

    def check(self, case: Case, long: int = 2060) -> None:
        """Checks all kernels on one case."""
        random = np.random.default_rng(case.dim + 1)
        batch = batch_of(case, long)
        table = random.normal(size=(TABLE_ROWS, case.dim)).astype(np.float32)
        if case.bfloat16:
            table = to_bfloat16(table)
        grad = random.normal(size=(batch.num_rows, case.dim)).astype(np.float32)
        self.cuda.seed(case.seed)
        self.check_products(batch, table, grad)
        self.check_update(batch, table, grad, case.rule, random)

    def check_products(self, batch: Csr, table: Array, grad: Array) -> None:
        """Checks the forward pass and the gradients."""
        out = self._arrays(self.cuda.sparse_linear([batch], [table]))[0]
        self._compare(out, self.core.sparse_linear(batch, table), self.same_rounding)
        weights = to_float(table).astype(np.float64)
        rows = np.repeat(np.arange(batch.num_rows), np.diff(batch.row_splits))
        values = np.ones(len(rows)) if batch.values is None else batch.values.astype(np.float64)
        _near(out, rows, values[:, None] * weights[batch.ids])

        dots = self._arrays(self.cuda.values_grad(batch, table, grad))[0]
        self._compare(dots, self.core.values_grad(batch, table, grad), self.same_order)
        products = (weights[batch.ids] * grad[rows]).reshape(-1)
        _near(dots[:, None], np.repeat(np.arange(len(rows)), table.shape[1]), products[:, None])

        ids, sums = self._arrays(self.cuda.weights_grad(batch, len(table), grad))
        expected_ids, expected_sums = self.core.weights_grad(batch, len(table), grad)
        np.testing.assert_array_equal(ids, expected_ids)
        self._compare(sums, expected_sums, self.same_rounding)
        groups = np.searchsorted(ids, batch.ids)
        _near(sums, groups, values[:, None] * grad[rows].astype(np.float64))

    def check_update(
        self,
        batch: Csr,
        table: Array,
        grad: Array,
        rule: str,
        random: Any,
        hyper: Any = None,
        exact: bool = True,
    ) -> None:
        """Checks an update; `exact` tells whether the CPU has the same functions."""
        slots = slots_of(rule, *table.shape, random)
        hypers = None if hyper is None else [hyper]
        result = self.cuda.update([batch], [grad], [table], [slots], [rule], hypers=hypers)
        expected = self.core.update(batch, grad, table, slots, rule, hyper=hyper)
        same = self.same_order if rule == "rowwise_adagrad" else self.same_rounding
        same = same and exact
        for got, want in zip(self._arrays(result), expected, strict=True):
            self._compare(got, want, same)

    @staticmethod
    def _arrays(result: Any) -> list[Array]:
        assert result.code == 0
        assert result.errors == NO_ERRORS
        return list(result.arrays)

    @staticmethod
    def _compare(got: Array, want: Array, same_bits: bool) -> None:
        if same_bits:
            np.testing.assert_array_equal(got, want)
        elif want.dtype == np.uint16:  # stochastic rounding may fall to the other side
            np.testing.assert_allclose(to_float(got), to_float(want), rtol=2**-7)
        else:
            scale = np.abs(want).max(initial=1)
            np.testing.assert_allclose(got, want, rtol=1e-6, atol=4e-6 * scale)


def _near(got: Array, owners: Array, terms: Array) -> None:
    """Compares sums of floats with sums of float64, by the bound of their rounding errors."""
    want, scale = np.zeros(got.shape), np.zeros(got.shape)
    np.add.at(want, owners, terms)
    np.add.at(scale, owners, np.abs(terms))
    count = np.bincount(owners, minlength=len(got))[:, None]
    additions = np.minimum(count, 2048) + count // 2048
    assert (np.abs(got - want) <= (additions + 1) * 2.0**-24 * scale).all()
