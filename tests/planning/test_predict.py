"""Durations and choices computed from the sizes of messages."""

import math

import pytest

from twml_ops.planning import STRATEGIES, ClusterResources, Compute, Job, Table, choose, predict
from twml_ops.planning.predict import WIRE_OVERHEAD

JOB = Job((Table(2**19, 128, entries=200, unique=40_000),), 512)
MB = 1e6
HYBRIDS = ("hybrid by row", "hybrid by column")


def rate(strategy, egress=150 * MB, compute=None, job=JOB, servers=2, workers=1, **options):
    cluster = ClusterResources(egress, servers, workers)
    return predict(strategy, job, cluster, compute, **options).steps_per_second


def test_a_parameter_server_of_2_gb_is_limited_by_its_network():
    """2 GB, 10 servers and 150 MB/s: at most 0.75 steps/s, with any number of workers."""
    job = Job((Table(5 * 10**6, 100, unique=1),), 1)
    limits = []
    for workers in (1, 5, 20, 100):
        p = predict("standard parameter server", job, ClusterResources(150 * MB, 10, workers))
        down = p.sent["server"] * WIRE_OVERHEAD / (150 * MB)
        limits.append(workers / down)
        assert p.steps_per_second < limits[-1]
    assert limits == pytest.approx([0.75 / WIRE_OVERHEAD] * 4)


def test_phases_are_sequential_and_hosts_send_in_parallel():
    p = predict("hybrid by row", JOB, ClusterResources(100 * MB, 2, 3))
    ids, out, back = 512 * 200 * 18 / 8 + 2 * 48 + 2 * 512, 3 * 512 * 128 * 4, 2 * 512 * 128 * 4
    assert p.wire_seconds == pytest.approx((ids + out + back) * WIRE_OVERHEAD / (100 * MB))
    assert p.steps_per_second == pytest.approx(3 / p.seconds)


def test_with_overlap_a_step_takes_the_longer_of_transfer_and_computation():
    p = predict("hybrid by row", JOB, ClusterResources(100 * MB, 2, 1), overlap=True)
    assert p.wire_seconds == pytest.approx(p.sent["worker"] * WIRE_OVERHEAD / (100 * MB))
    slow = Compute(sparse=1.0)
    assert rate("hybrid by row", compute=slow, overlap=True) == pytest.approx(2)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("compute", [Compute(), Compute(0.01, 0.002, 0.001)])
def test_more_egress_is_never_slower_and_more_computation_never_faster(strategy, compute):
    rates = [rate(strategy, 10**p, compute, workers=2) for p in range(5, 12)]
    assert rates == sorted(rates)
    more = Compute(compute.sparse + 0.01, compute.dense, compute.latency)
    assert rate(strategy, compute=more) < rate(strategy, compute=compute) or math.isinf(
        rate(strategy, compute=more)
    )


def test_servers_share_the_computation_and_transfers_are_added():
    wire = 1 / rate("hybrid by column", servers=4)
    of = Compute(sparse=0.4, dense=0.05, latency=0.001)
    assert 1 / rate("hybrid by column", compute=of, servers=4) == pytest.approx(
        wire + 0.1 + 0.05 + 3 * 0.001
    )
    assert rate("single machine", compute=of, workers=3) == pytest.approx(1 / 0.45)


def test_transport_limits_the_steps_but_not_the_wire_limit():
    slower, faster = Compute(transport=50 * MB), Compute(transport=500 * MB)
    for strategy in ("standard parameter server", "hybrid by row"):
        assert rate(strategy, compute=slower) == pytest.approx(rate(strategy, 50 * MB))
        assert rate(strategy, compute=faster) == pytest.approx(rate(strategy))
        p = predict(strategy, JOB, ClusterResources(100 * MB, 2, 1), slower)
        assert p.wire_limit == pytest.approx(1 / p.wire_seconds)
    with pytest.raises(ValueError, match="transport must be positive, got 0"):
        Compute(transport=0)


def test_columns_are_faster_if_products_are_larger_than_entries():
    few = Job((Table(2**20, 400, entries=20),), 512)
    assert choose_at(few, 4).strategy == "hybrid by column"
    many = Job((Table(2**20, 16, entries=400),), 512)
    assert choose_at(many, 4).strategy == "hybrid by row"


def choose_at(job, servers):
    """The choice among exactly `servers` servers."""
    memory = job.stored_bytes / (servers - 0.5)
    found = choose(job, ClusterResources(150 * MB, servers, 1), server_memory=memory)
    assert found.prediction.servers == servers
    return found.prediction


def test_the_choice_is_the_fastest():
    cluster = ClusterResources(150 * MB, 4, 3)
    compute = Compute(sparse=0.02)
    best = choose(JOB, cluster, compute).prediction
    rates = [rate(s, compute=compute, servers=n, workers=3) for s in HYBRIDS for n in range(1, 5)]
    assert best.steps_per_second >= 0.98 * max(rates)


def test_servers_that_do_not_help_are_not_chosen():
    assert choose(JOB, ClusterResources(150 * MB, 4, 1)).prediction.servers == 1
    busy = choose(JOB, ClusterResources(150 * MB, 4, 1), Compute(sparse=1.0)).prediction
    assert busy.servers == 4


def test_a_single_machine_is_faster_if_messages_take_longer_than_the_work_that_servers_share():
    cluster = ClusterResources(150 * MB, 4, 1)
    for sparse, slower in ((0.0, False), (0.001, True), (1.0, False)):
        choice = choose(JOB, cluster, Compute(sparse=sparse, latency=0.001))
        assert choice.is_slower_than_alone == slower
        assert choice.alone == predict("single machine", JOB, cluster, Compute(sparse=sparse))


def test_memory_sets_the_least_number_of_servers():
    job = Job(JOB.tables, 512, slots=2)
    memory = job.stored_bytes / 3
    assert choose(job, ClusterResources(1e8, 3, 1), server_memory=memory).prediction.servers == 3
    with pytest.raises(ValueError, match="servers must be at least 3"):
        choose(job, ClusterResources(1e8, 2, 1), server_memory=memory)
    with pytest.raises(ValueError, match="server_memory must be positive"):
        choose(job, ClusterResources(1e8, 2, 1), server_memory=-1)


def test_a_table_is_not_sharded_into_more_columns_than_it_has():
    job = Job((Table(100, 1),), 4)
    found = choose(job, ClusterResources(1e8, 4, 1), server_memory=101).prediction
    assert (found.servers, found.strategy) == (4, "hybrid by row")
