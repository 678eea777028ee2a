"""What the proof measures, in the order of importance, and the bytes that must be moved for it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

FORWARD, VALUES_GRAD = "forward", "values_grad"
STEPS = ("adagrad", "sgd", "rowwise_adagrad", "lazy_adam")
BATCHES = 4  # of each cell, so that no batch finds its rows in a cache


@dataclass(frozen=True)
class Cell:
    """A measurement.

    Attributes:
        task: FORWARD, VALUES_GRAD, or the rule of an update: the backward pass with the update.
        dim: Columns of the table.
        rows: Rows of a batch.
        length: Ids of each row.
        bfloat16: Whether the table has this type, else float32.
        caches: Bytes of the table, in sizes of the L2 cache, which then holds one of `caches` rows.
        skew: Exponent of a Zipf distribution of the ids; 0: uniform.
        wide_ids: Whether ids are int64, else int32.
        weighted: Whether ids have values.
    """

    task: str
    dim: int
    rows: int
    length: int
    bfloat16: bool = False
    caches: float = 20
    skew: float = 0
    wide_ids: bool = True
    weighted: bool = True

    @property
    def name(self) -> str:
        """A short description, which no other cell has."""
        kind = "bfloat16" if self.bfloat16 else "float32"
        parts = [f"{self.task} {kind} D={self.dim} B={self.rows} L={self.length}"]
        parts += [f"{self.caches:g}xL2"] if self.caches != 20 else []
        parts += [f"Zipf {self.skew:g}"] if self.skew else []
        parts += [] if self.wide_ids else ["int32 ids"]
        parts += [] if self.weighted else ["no values"]
        return " ".join(parts)

    @property
    def judged(self) -> bool:
        """Whether ids are uniform and the table does not fit into the cache."""
        return self.skew == 0 and self.caches >= 10

    @property
    def row_bytes(self) -> int:
        """Bytes of a row of the table."""
        return self.dim * (2 if self.bfloat16 else 4)

    def table_rows(self, cache: int) -> int:
        """Rows of the table, for an L2 cache of so many bytes."""
        return max(32, int(np.ceil(self.caches * cache / self.row_bytes)))

    def tiny(self) -> Cell:
        """The same for the emulation."""
        return replace(self, dim=min(self.dim, 36), rows=5, length=4)

    def batch(self, table_rows: int, seed: int) -> tuple[Any, Any, Any]:
        """The ids, values (or None) and row splits of a batch."""
        random = np.random.default_rng(seed)
        n = self.rows * self.length
        if self.skew:
            # The inverse of the distribution function of the continuous law.
            low = random.random(n) * (1 - table_rows ** (1 - self.skew))
            ranks = ((1 - low) ** (1 / (1 - self.skew)) - 1).astype(np.int64)
            ids = ranks * 2654435761 % table_rows  # a prime: popular rows are not neighbors
        else:
            ids = random.integers(0, table_rows, n)
        ids = ids if self.wide_ids else ids.astype(np.int32)
        values = random.random(n, np.float32) if self.weighted else None
        return ids, values, np.arange(self.rows + 1) * self.length

    def slot_floats(self) -> int:
        """Floats of slots of each row of the table."""
        return {"adagrad": self.dim, "rowwise_adagrad": 1, "lazy_adam": 2 * self.dim}.get(
            self.task, 0
        )

    def bytes(self, ids: Any) -> int:
        """The least bytes that must be moved for a batch: each distinct row counts once.

        The forward pass reads ids, values, splits and rows, and writes the output. A step reads
        ids, values, splits and the gradient of the output, and reads and writes rows and slots.
        """
        entries = ids.nbytes + (4 * len(ids) if self.weighted else 0) + 8 * (self.rows + 1)
        distinct, activations = len(np.unique(ids)), 4 * self.rows * self.dim
        row = self.row_bytes
        if self.task not in (FORWARD, VALUES_GRAD):
            row = 2 * (row + 4 * self.slot_floats())
        of_values = 4 * len(ids) if self.task == VALUES_GRAD else 0
        return entries + activations + distinct * row + of_values


def _ordered() -> Iterator[Cell]:
    shapes = ((64, 8192, 64), (16, 1024, 256), (128, 8192, 64))
    first = (FORWARD, STEPS[0])
    for bfloat16 in (False, True):
        for tasks in (first, STEPS[1:]):
            yield from (Cell(t, *s, bfloat16) for s in shapes for t in tasks)
    for dim in (32, 8, 256, 50):
        yield from (Cell(t, dim, 8192, 64) for t in first)
    for shape in ((64, 256, 64), (64, 65536, 16), (16, 65536, 32)):
        yield from (Cell(t, *shape) for t in first)
    for caches in (0.25, 60):
        yield from (Cell(t, *shapes[0], caches=caches) for t in first)
    for shape in shapes:
        yield from (Cell(t, *shape, skew=1.05) for t in first)
    yield from (Cell(t, *shapes[0], wide_ids=False) for t in first)
    yield from (Cell(t, *shapes[0], weighted=False) for t in first)
    yield from (Cell(VALUES_GRAD, *s) for s in shapes[:2])


CELLS = tuple(_ordered())
