"""SciPy, which is single-threaded."""

from __future__ import annotations

from scipy.sparse import csr_matrix

from benchmarks.contender import FORWARD, Prepare, PreparedContender
from benchmarks.workload import Case


def forward(case: Case) -> PreparedContender:
    """The product of a CSR matrix and a dense matrix."""
    columns = len(case.table)
    matrices = [
        csr_matrix((b.values, b.ids, b.row_splits), shape=(b.num_rows, columns))
        for b in case.batches
    ]
    return PreparedContender(lambda i: matrices[i] @ case.table)


CONTENDERS: dict[str, dict[str, Prepare]] = {FORWARD: {"SciPy CSR @ dense": forward}}
