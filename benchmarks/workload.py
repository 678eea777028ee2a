"""Seeded, skewed sparse batches like the batches of ads and feed ranking."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np


@dataclass(frozen=True)
class Batch:
    """A batch in CSR form: row b has the entries row_splits[b] to row_splits[b + 1].

    Attributes:
        ids: int64 [K].
        values: float32 [K].
        row_splits: int64 [B + 1].
        unique: number of distinct ids.
    """

    ids: np.ndarray
    values: np.ndarray
    row_splits: np.ndarray
    unique: int

    @property
    def num_rows(self) -> int:
        """Number of rows, B."""
        return len(self.row_splits) - 1

    @property
    def row_indices(self) -> np.ndarray:
        """The row of each entry, int64 [K]."""
        return np.repeat(np.arange(self.num_rows), np.diff(self.row_splits))


@dataclass(frozen=True)
class Workload:
    """Sizes of the table and the batches, and the distribution of ids.

    Attributes:
        input_dim: N, rows of the table.
        units: D, columns of the table.
        batch_size: B.
        row_length: mean number of entries per row; lengths are uniform from half to one and a half
            times of it.
        skew: Zipf exponent of the ids, whose ranks are randomly permuted; 0 for uniform ids.
        active_ids: number of ids that occur, spread evenly over the table; 0 for all.
    """

    input_dim: int = 2**20
    units: int = 128
    batch_size: int = 1024
    row_length: int = 200
    skew: float = 1.05
    active_ids: int = 0

    def replace(self, **changes: float) -> Workload:
        """A copy with some attributes changed."""
        return replace(self, **changes)

    def batches(self, number: int, seed: int = 1) -> list[Batch]:
        """`number` different batches, which depend only on the seed, not on the machine."""
        rng = np.random.default_rng(seed)
        draw = self._id_sampler(rng)
        return [self._batch(rng, draw) for _ in range(number)]

    def _batch(self, rng: np.random.Generator, draw: Callable[[int], np.ndarray]) -> Batch:
        low, high = (self.row_length + 1) // 2, self.row_length + self.row_length // 2
        lengths = rng.integers(low, high + 1, self.batch_size)
        row_splits = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        ids = draw(int(row_splits[-1]))
        values = rng.uniform(0.5, 1.5, len(ids)).astype(np.float32)
        return Batch(ids, values, row_splits, len(np.unique(ids)))

    def _id_sampler(self, rng: np.random.Generator) -> Callable[[int], np.ndarray]:
        active = self.active_ids or self.input_dim
        if self.input_dim % active:
            raise ValueError(f"active_ids must divide input_dim {self.input_dim}, got {active}")
        spread = rng.permutation(active) * (self.input_dim // active)
        if not self.skew:
            return lambda count: spread[rng.integers(0, active, count)]
        mass = np.cumsum(np.arange(1, active + 1, dtype=np.float64) ** -self.skew)
        return lambda count: spread[np.searchsorted(mass, rng.random(count) * mass[-1])]


QUICK = Workload(input_dim=2**12, units=16, batch_size=32, row_length=10)
"""Tiny sizes, for tests of the benchmarks."""


@dataclass(frozen=True)
class Case:
    """The inputs of a contender.

    Attributes:
        table: float32 [N, D], the weights before the first step; contenders copy it.
        batches: the batches.
        grad_output: float32 [B, D], the gradient of the loss with respect to the layer's output.
        threads: number of threads to use.
        torch_device: where PyTorch and FBGEMM compute, "cpu" or "cuda".
    """

    table: np.ndarray
    batches: Sequence[Batch]
    grad_output: np.ndarray
    threads: int = 2
    torch_device: str = "cpu"


def make_case(workload: Workload, batches: Sequence[Batch], threads: int, seed: int = 0) -> Case:
    """A case with a random table and a random gradient of the output.

    Args:
        workload: sizes of the table.
        batches: the batches of the case.
        threads: number of threads to use.
        seed: the seed of the random numbers.
    """
    rng = np.random.default_rng(seed)
    scale = np.float32(0.1)
    table = rng.random((workload.input_dim, workload.units), dtype=np.float32)
    table -= np.float32(0.5)
    table *= scale
    grad = rng.standard_normal((workload.batch_size, workload.units), dtype=np.float32)
    return Case(table, batches, grad * scale, threads)
