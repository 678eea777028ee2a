"""SciPy, single-threaded."""

from __future__ import annotations

from scipy.sparse import csr_matrix

from benchmarks.contender import FORWARD, Prepare, Running
from benchmarks.workload import Case


def forward(case: Case) -> Running:
    """A CSR matrix times a dense one."""
    columns = len(case.table)
    matrices = [
        csr_matrix((b.values, b.ids, b.row_splits), shape=(b.num_rows, columns))
        for b in case.batches
    ]
    return Running(lambda i: matrices[i] @ case.table)


CONTENDERS: dict[str, dict[str, Prepare]] = {FORWARD: {"SciPy CSR @ dense": forward}}
