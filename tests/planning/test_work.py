"""The parts of a step: what one process does is divided among servers, messages are added."""

import pytest

from twml_ops.planning import Job, Table
from twml_ops.planning.work import work_alone, work_in_cluster

pytestmark = pytest.mark.one_tf
AXES = ("hybrid by row", "hybrid by column")
JOB = Job((Table(2**16, 64, 100, unique=3000), Table(1000, 8, 2)), 256, dense=5000)


def test_one_process_has_all_entries_and_products_and_no_message():
    alone = work_alone(JOB)
    assert (alone.step, alone.message, alone.table) == (1, 0, 2)
    assert alone.entry == 256 * 102
    assert alone.activation == 256 * 72
    assert alone.product == 256 * (100 * 64 + 2 * 8)
    assert alone.row == 3000 + JOB.tables[1].rows(256)
    assert alone.weight == 3000 * 64 + JOB.tables[1].rows(256) * 8


@pytest.mark.parametrize("axis", AXES)
@pytest.mark.parametrize("servers", [1, 2, 4])
@pytest.mark.parametrize("workers", [1, 3])
def test_servers_divide_the_products(axis, servers, workers):
    alone, work = work_alone(JOB), work_in_cluster(axis, JOB, servers, workers)
    assert servers * work.server.product == pytest.approx(alone.product)
    assert servers * work.server.weight == pytest.approx(alone.weight)
    assert work.worker.product == work.worker.weight == 0
    # The entries of a row are on one server, and columns need all entries on each.
    parts = servers if axis == AXES[0] else 1
    assert parts * work.server.entry == pytest.approx(alone.entry)
    assert work.worker.entry == alone.entry
    # What a worker exchanges is what the servers exchange with it.
    assert work.worker.message == servers * work.server.message
    assert work.worker.shard == servers * work.server.table
    # Each server looks up its columns of a row; the dense part does not depend on servers.
    assert parts * work.server.row == pytest.approx(alone.row)
    assert (work.worker.row, work.worker.output) == (alone.row, alone.activation)
    assert work.worker.activation == pytest.approx(servers * work.server.activation)


@pytest.mark.parametrize("axis", AXES)
def test_several_workers_exchange_the_dense_weights_too(axis):
    one, several = (work_in_cluster(axis, JOB, 2, w) for w in (1, 3))
    assert (one.server.message, several.server.message) == (3, 5)
    assert several.worker.activation - one.worker.activation == JOB.dense


def test_servers_in_the_same_process_exchange_no_messages():
    assert work_in_cluster(AXES[0], JOB, 2, 1, remote=0).worker.message == 0
    half = work_in_cluster(AXES[0], JOB, 2, 2, remote=0.5)
    assert half.worker.message == 2 * 5 / 2


def test_other_strategies_have_no_servers():
    with pytest.raises(ValueError, match="strategy must be hybrid by row or hybrid by column"):
        work_in_cluster("peers", JOB, 2, 2)
