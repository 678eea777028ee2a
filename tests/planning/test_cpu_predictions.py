"""Steps per second that the CPUs of the hosts allow, and the recommendation of a cluster."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twml_ops.planning import (
    ClusterResources,
    Compute,
    CpuCosts,
    Job,
    StepParts,
    Table,
    calibrate,
    choose,
    hosts_to_break_even,
    messages,
    predict,
    recommend,
)
from twml_ops.planning.predict import WIRE_OVERHEAD

pytestmark = pytest.mark.one_tf
COSTS = CpuCosts(
    alone=StepParts(1.2e-3, 0, 90e-6, 16e-9, 0.6e-9, 0.1e-9, 1.1e-9),
    worker=StepParts(0.3e-3, 50e-6, 110e-6, 16e-9, 3e-9),
    server=StepParts(0, 50e-6, 30e-6, 16e-9, 0.8e-9, 0.1e-9, 1e-9),
)
JOB = Job((Table(2**19, 128, 200, unique=28_000),), 512)
FAST = 1e15  # bytes per second of a network that takes no time
ROW, COLUMN = "hybrid by row", "hybrid by column"


def predicted(servers=1, workers=1, axis=ROW, job=JOB, costs=COSTS, egress=FAST, **of_cluster):
    cluster = ClusterResources(egress, servers, workers, **of_cluster)
    return predict(axis, job, cluster, Compute(costs=costs))


def test_a_synchronous_step_is_the_worker_and_then_the_server():
    p = predicted(2, 3)
    assert p.server_cpu == pytest.approx(3 * predicted(2, 3).server_cpu / 3)
    assert p.seconds == pytest.approx(p.worker_cpu + p.server_cpu)
    slow = predicted(2, 3, cores=0.2)
    assert slow.seconds == pytest.approx(5 * p.seconds)


def test_in_calls_of_many_steps_the_servers_work_while_a_worker_packs():
    one, two, many = (predicted(2, steps_per_call=k) for k in (1, 2, 10**6))
    packing = 102_400 * COSTS.worker.entry
    assert one.seconds - two.seconds == pytest.approx(packing / 2)
    assert one.seconds - many.seconds == pytest.approx(packing, rel=1e-4)
    # Packing that takes longer than the servers is hidden behind them only in part.
    slow = dataclasses.replace(COSTS, worker=StepParts(entry=1e-6))
    p = predicted(2, costs=slow, steps_per_call=10**6)
    assert p.seconds == pytest.approx(p.worker_cpu, rel=1e-4)


def test_a_single_machine_has_no_messages():
    p = predicted(axis="single machine", cores=0.5)
    assert p.seconds == pytest.approx(2 * p.worker_cpu)
    assert p.server_cpu == 0
    assert p.worker_cpu == pytest.approx(
        1.2e-3 + 90e-6 + 102_400 * 16e-9 + 512 * 128 * 0.6e-9 + 102_400 * 128e-10 + 28_000 * 128e-9
        + 28_000 * 128e-10
    )  # fmt: skip


@pytest.mark.parametrize("k", [1, 4])
def test_one_asynchronous_worker_is_as_fast_as_one_synchronous(k):
    both = [predicted(2, egress=1e8, asynchronous=a, steps_per_call=k).seconds for a in (0, 1)]
    assert both[0] == pytest.approx(both[1])


@given(st.integers(1, 8), st.integers(1, 12), st.sampled_from([1, 4]), st.sampled_from([1e7, FAST]))
def test_asynchronous_workers_are_limited_by_the_busiest_host(servers, workers, k, egress):
    options = {"egress": egress, "steps_per_call": k, "asynchronous": True}
    p, alone = (predicted(servers, w, **options) for w in (workers, 1))
    assert p.steps_per_second <= workers / p.server_cpu * (1 + 1e-9)
    assert p.steps_per_second <= workers * alone.steps_per_second * (1 + 1e-9)
    # A synchronous step ends when the slowest has ended, so that it is not faster.
    waiting = predicted(servers, workers, **{**options, "asynchronous": False})
    assert p.steps_per_second >= waiting.steps_per_second * (1 - 1e-9)


@pytest.mark.parametrize("servers", [1, 2])
def test_calibrated_costs_predict_the_cpu_time_that_was_measured(servers):
    cluster, compute = ClusterResources(FAST, servers, 2, cores=0.5), Compute(costs=COSTS)
    before = predict(ROW, JOB, cluster, compute)
    worker, server = 3 * before.worker_cpu, before.server_cpu  # twice as much for each worker
    after = predict(ROW, JOB, cluster, calibrate(ROW, JOB, cluster, compute, worker, server))
    assert after.worker_cpu == pytest.approx(worker)
    assert after.server_cpu == pytest.approx(2 * server)
    assert calibrate(ROW, JOB, cluster, compute, 0.0, 0.0) == compute  # no cost is negative


def test_many_asynchronous_workers_reach_that_limit():
    p = predicted(1, 100, asynchronous=True)
    assert p.steps_per_second == pytest.approx(100 / p.server_cpu, rel=0.02)


@given(
    st.integers(1, 6),
    st.integers(1, 6),
    st.booleans(),
    st.booleans(),
    st.sampled_from([ROW, COLUMN]),
)
def test_more_cores_and_cheaper_parts_are_never_slower(
    servers, workers, asynchronous, in_workers, axis
):
    options = {"asynchronous": asynchronous, "servers_in_workers": in_workers, "axis": axis}
    rates = [
        predicted(servers, workers, cores=c, egress=1e8, **options).seconds
        for c in (0.1, 0.5, 1, 2, 16)
    ]
    assert rates == sorted(rates, reverse=True)
    cheap = dataclasses.replace(COSTS, worker=dataclasses.replace(COSTS.worker, message=0.0))
    assert (
        predicted(servers, workers, costs=cheap, **options).seconds
        <= predicted(servers, workers, **options).seconds
    )


@given(
    st.integers(1, 6), st.integers(1, 12), st.booleans(), st.floats(0.01, 0.9), st.floats(1e-4, 1)
)
def test_hosts_with_a_quota_are_faster_if_they_wait_and_never_use_more_than_it(
    servers, workers, asynchronous, cores, burst
):
    options = {"egress": 1e9, "asynchronous": asynchronous, "steps_per_call": 4}
    slow, quota, longer = (
        predicted(servers, workers, cores=cores, burst=b, **options)
        for b in (0.0, burst, 2 * burst)
    )
    whole = predicted(servers, workers, cores=1.0, **options)
    assert whole.seconds * (1 - 1e-9) <= longer.seconds <= quota.seconds * (1 + 1e-9)
    assert quota.seconds <= slow.seconds
    for cpu in (quota.worker_cpu, quota.server_cpu):
        assert cpu <= cores * quota.seconds * (1 + 1e-9)


def test_a_quota_changes_nothing_for_hosts_that_are_always_busy_or_have_whole_cores():
    options = {"asynchronous": True, "cores": 0.1}
    slow, quota = (predicted(1, 200, burst=b, **options).seconds for b in (0.0, 1e-3))
    assert quota == pytest.approx(slow, rel=0.02)
    assert predicted(2, 2, burst=1e-3).seconds == predicted(2, 2).seconds
    inside = {"servers_in_workers": True, "cores": 0.1}
    assert predicted(2, 2, burst=1e-3, **inside).seconds == predicted(2, 2, **inside).seconds
    with pytest.raises(ValueError, match="burst must not be negative, got -1"):
        ClusterResources(FAST, burst=-1)


def test_two_idle_hosts_take_turns_at_full_speed():
    """All of a step is in one period, and each host is idle while the other works."""
    p = predicted(cores=0.25, burst=1.0)
    idle = [1 - cpu / (0.25 * p.seconds) for cpu in (p.worker_cpu, p.server_cpu)]
    parts = zip((p.worker_cpu, p.server_cpu), idle, strict=True)
    assert p.seconds == pytest.approx(sum(cpu * (4 - 3 * share) for cpu, share in parts))


def test_servers_in_workers_save_messages_and_hosts_and_share_the_cores():
    apart, inside = predicted(2, 2), predicted(2, 2, servers_in_workers=True)
    assert inside.worker_cpu < apart.worker_cpu
    assert inside.server_cpu < apart.server_cpu
    assert inside.seconds == pytest.approx(inside.worker_cpu + inside.server_cpu)
    uneven = predicted(3, 2, servers_in_workers=True)
    assert uneven.seconds == pytest.approx(uneven.worker_cpu + 2 * uneven.server_cpu)


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("servers", [1, 2, 4, 6, 8])
def test_a_step_waits_for_the_host_of_workers_that_sends_most(servers, overlap):
    """By what each of four hosts sends that run as many of the servers as `launch` gives them."""
    workers, job = 4, dataclasses.replace(JOB, dense=10**5)
    own = [len(range(w, servers, workers)) for w in range(workers)]
    cluster = ClusterResources(1e8, servers, workers, servers_in_workers=True)
    phases = {}
    for m in messages(ROW, job, servers, workers):
        sent = phases.setdefault(0 if overlap else m.phase, [0.0] * workers)
        for host, n in enumerate(own):
            count = servers - n if m.sender == "worker" else n * (workers - 1)
            sent[host] += m.bytes * count
    p = predict(ROW, job, cluster, overlap=overlap)
    want = sum(map(max, phases.values())) * WIRE_OVERHEAD / cluster.egress
    assert p.wire_seconds == pytest.approx(want)


def test_servers_are_in_workers_if_messages_cost_more_than_arithmetic():
    small = Job((Table(1000, 8, 2),), 32)
    cluster = ClusterResources(FAST, 2, 2)
    assert choose(small, cluster, Compute(costs=COSTS)).prediction.servers_in_workers
    calls = dataclasses.replace(cluster, steps_per_call=8)
    assert not choose(JOB, calls, Compute(costs=COSTS)).prediction.servers_in_workers


def test_larger_batches_are_recommended_if_they_train_more_examples():
    jobs = [dataclasses.replace(JOB, batch=b) for b in (512, 32, 4096)]
    found = recommend(jobs, ClusterResources(FAST, 2, 2), Compute(costs=COSTS))
    rates = found.examples_per_second_by_batch
    assert list(rates) == [32, 512, 4096]
    assert found.job.batch == 4096
    assert rates[32] < rates[512] < rates[4096]
    # Without fixed costs all sizes are equally good, and the smallest is taken.
    uniform = [dataclasses.replace(j, tables=(Table(2**30, 128, 200),)) for j in jobs]
    per_entry = StepParts(entry=1e-6)
    same = Compute(costs=CpuCosts(per_entry, per_entry, per_entry))
    assert recommend(uniform, ClusterResources(FAST), same).job.batch == 32


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_cluster_of_so_many_hosts_is_faster_and_of_fewer_is_not(asynchronous):
    compute = Compute(costs=COSTS)
    cluster = ClusterResources(FAST, cores=0.2, asynchronous=asynchronous, steps_per_call=4)
    for job in (JOB, Job((Table(1000, 8, 2),), 32)):
        hosts = hosts_to_break_even(job, cluster, compute)
        alone = predict("single machine", job, cluster, compute).steps_per_second

        def best(count, job=job):
            splits = [(count - w, w, False) for w in range(1, count)] + [(count, count, True)]
            return max(
                predict(
                    axis,
                    job,
                    dataclasses.replace(cluster, servers=s, workers=w, servers_in_workers=inside),
                    compute,
                ).steps_per_second
                for s, w, inside in splits
                for axis in (ROW, COLUMN)
                if axis == ROW or s <= 8
            )

        assert best(hosts) > alone
        assert all(best(fewer) <= alone for fewer in range(2, hosts))


def test_a_cluster_whose_messages_cost_too_much_is_never_faster():
    slow = dataclasses.replace(COSTS, worker=StepParts(message=1.0))
    assert hosts_to_break_even(JOB, ClusterResources(FAST), Compute(costs=slow)) is None
