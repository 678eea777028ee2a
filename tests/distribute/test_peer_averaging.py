"""Starts a job of two ranks, which check the laws of tests/distribute/peer_ranks.py."""

import pytest

from tests.distribute.peer_ranks import LAWS
from tests.pairwise import on_both
from tests.peers.jobs import Job, needs_mpi, started_once

pytestmark = needs_mpi

JOBS = {"keras": Job("tests.distribute.peer_ranks", 2, (1, 2))}
job_of = started_once(JOBS)


@pytest.mark.parametrize("size", on_both([1, 2], 2))
@pytest.mark.parametrize("law", LAWS)
def test_law(job_of, law, size):
    job_of("keras").check(size, law)


def test_all_ranks_end(job_of):
    job_of("keras").check_end()
