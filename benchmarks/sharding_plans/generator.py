"""Many tables whose sizes and traffic follow power laws, and batches of their ids. Seeded."""

from __future__ import annotations

import numpy as np

from twml_ops.planning import Job, Table

MOST_ROWS = 10**8


def power_law_job(tables: int, seed: int, batch: int = 512, most_rows: int = MOST_ROWS) -> Job:
    """A job of many tables whose rows and entries do not depend on each other.

    Args:
        tables: the number of tables.
        seed: of the generator.
        batch: examples of a batch.
        most_rows: the most rows of a table.

    Returns:
        The job, with one slot for each weight.
    """
    rng = np.random.default_rng(seed)
    return Job(tuple(_table(rng, most_rows) for _ in range(tables)), batch, slots=1)


def ids_of_batch(job: Job, seed: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """The entries of a batch of a job.

    Args:
        job: the job.
        seed: of the generator.

    Returns:
        For each table ids int64 [K], and lengths int64 [batch] with a Poisson distribution.
    """
    rng = np.random.default_rng(seed)
    found = []
    for table in job.tables:
        lengths = rng.poisson(table.entries, job.batch)
        count = int(lengths.sum())
        ids = rng.integers(table.hot_rows % table.input_dim, table.input_dim, count)
        is_hot = rng.uniform(size=count) < table.hot_share
        ids[is_hot] = rng.integers(0, max(1, table.hot_rows), int(is_hot.sum()))
        found.append((ids, lengths))
    return found


def _table(rng: np.random.Generator, most_rows: int) -> Table:
    """A table with Pareto-distributed rows and entries, half of the time with hot rows."""
    rows = int(min(most_rows, 1000 * (1 + rng.pareto(0.5))))
    entries = float(min(500.0, 1 + rng.pareto(0.8)))
    hot = bool(rng.integers(2))
    return Table(
        rows,
        int(2 ** rng.integers(2, 8)),
        entries,
        hot_rows=max(1, rows // 100) if hot else 0,
        hot_share=float(rng.uniform(0.1, 0.9)) if hot else 0.0,
    )
