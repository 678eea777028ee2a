"""Starts jobs of several ranks, which check the laws of tests/peers/ranks.py."""

import pytest

from tests.peers.jobs import Job, needs_mpi, started_once
from tests.peers.ranks import LAWS

pytestmark = needs_mpi

JOBS = {
    "shared memory": Job("tests.peers.ranks", 8, (1, 2, 4, 8)),
    "TCP": Job("tests.peers.ranks", 2, (2,), "tcp"),
}
job_of = started_once(JOBS)


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize(
    ("job", "size"), [(n, size) for n, job in JOBS.items() for size in job.sizes]
)
def test_law(job_of, job, size, law):
    job_of(job).check(size, law)


@pytest.mark.parametrize("job", JOBS)
def test_all_ranks_end(job_of, job):
    job_of(job).check_end()
