"""The plan of many tables against all plans of few ones."""

import dataclasses
import json
import math

import numpy as np
import pytest

from benchmarks.sharding_plans.generator import power_law_job
from tests.planning.sharding_instances import small_instance
from twml_ops.planning import WAYS, ClusterResources, Job, Table, shard
from twml_ops.planning.cpu_costs import CpuCosts, StepParts
from twml_ops.planning.sharding_axis import TYPICAL_COSTS
from twml_ops.planning.sharding_costs import placements
from twml_ops.planning.sharding_plan import REPLICATED, ShardedTable, ShardingPlan, read_plan

pytestmark = pytest.mark.one_tf


def loads(job, cluster, ways):
    """For each table an array [placements, 2 servers]: seconds and bytes by server."""
    found = [placements(t, job, cluster, TYPICAL_COSTS, ways) for t in job.tables]
    return [np.array([p.seconds + p.bytes for p in of_table]) for of_table in found]


def fastest(of_tables, memory):
    """Seconds of the slowest server in the best of all plans; infinite if none fits."""
    half = len(of_tables) // 2
    left, right = (every_sum(part) for part in (of_tables[:half], of_tables[half:]))
    servers, best = right.shape[1] // 2, math.inf
    for load in left:
        both = load + right
        fits = (both[:, servers:] <= memory * (1 + 1e-9)).all(axis=1)
        if fits.any():
            best = min(best, both[fits, :servers].max(axis=1).min())
    return best


def every_sum(of_tables):
    total = np.zeros((1, of_tables[0].shape[1])) if of_tables else np.zeros((1, 1))
    for load in of_tables:
        total = (total[:, None] + load[None]).reshape(-1, load.shape[1])
    return total


def test_the_plan_is_within_5_percent_of_the_best_of_all_plans():
    compared, seed = 0, 0
    while compared < 200:
        job, cluster, memory = small_instance(seed)
        ways = WAYS if seed % 2 else WAYS[:3]
        of_tables = loads(job, cluster, ways)
        seed += 1
        if math.prod(len(x) for x in of_tables) > 1_000_000:
            continue
        best = fastest(of_tables, memory)
        if math.isinf(best):
            with pytest.raises(ValueError, match="memory binds"):
                shard(job, cluster, memory=memory, ways=ways)
            continue
        plan = shard(job, cluster, memory=memory, ways=ways)
        assert max(plan.seconds) <= 1.05 * best, seed - 1
        assert max(plan.bytes) <= memory * (1 + 1e-6)
        compared += 1


def test_the_same_tables_have_the_same_plan_about_as_fast_as_any_one_way_or_faster():
    job = power_law_job(20, seed=7)
    cluster = ClusterResources(1e9, servers=4, workers=4)
    plan = shard(job, cluster)
    assert plan == shard(job, cluster)
    for way in WAYS:
        if way == REPLICATED:
            continue  # not for tables of so many rows
        assert max(plan.seconds) <= 1.001 * max(shard(job, cluster, ways=[way]).seconds)


@pytest.mark.parametrize("way", WAYS)
def test_all_servers_together_hold_each_table_once(way):
    """Also the values of copies, unless the only worker has them."""
    job = Job((Table(1000, 16, 5.0, hot_rows=10, hot_share=0.5),), 1024, slots=2)
    for workers in (1, 2):
        plan = shard(job, ClusterResources(1e9, servers=4, workers=workers), ways=[way])
        held = 0 if way == REPLICATED and workers == 1 else 1
        assert sum(plan.bytes) == pytest.approx(held * job.stored_bytes)


NO_CPU = CpuCosts(StepParts(), StepParts(), StepParts())
IN_WORKERS = {"servers_in_workers": True}


@pytest.mark.parametrize(
    ("way", "workers"),
    [("table", 1), ("row", 2), ("row", 4), ("column", 4), ("replicated", 4), ("column-row", 4)],
)
def test_an_even_table_on_workers_sends_one_minus_1_over_w_of_the_bytes(way, workers):
    """Between a worker and its own server there is no network."""
    table, cluster = Table(256, 16, 5.0), ClusterResources(1e9, workers, workers)
    apart, inside = (
        shard(Job((table,), 256), c, NO_CPU, ways=[way]).seconds
        for c in (cluster, dataclasses.replace(cluster, **IN_WORKERS))
    )
    assert min(apart) > 0
    assert inside == pytest.approx([(1 - 1 / workers) * s for s in apart])


def test_a_whole_table_on_a_worker_is_on_the_network_of_its_host_and_of_the_others():
    """What a worker of another host sends for the table, and what its host sends to the others."""
    workers = 4
    table, cluster = Table(10**6, 16, 5.0), ClusterResources(1e9, 4, workers)
    job = Job((table,), 256)
    ((apart, *_), (inside, *_)) = (
        placements(table, job, c, NO_CPU, ["table"])
        for c in (cluster, dataclasses.replace(cluster, **IN_WORKERS))
    )
    entries, products = apart.seconds[1], (apart.seconds[0] - apart.seconds[1]) / workers
    assert inside.seconds[0] == pytest.approx(entries + (workers - 1) * products)
    # Of the three workers that wait for another server, one has the table in its own process.
    assert inside.seconds[1:] == pytest.approx([entries * (workers - 2) / (workers - 1)] * 3)


def test_the_memory_of_a_worker_with_a_server_has_the_copies_of_replicated_tables_too():
    table = Table(256, 16, 5.0)
    job = Job((table,), 256, slots=1)
    for workers, held in ((1, 2.0), (2, 2.0), (4, 1.5)):  # a copy, and a share with a slot
        cluster = ClusterResources(1e9, workers, workers, **IN_WORKERS)
        plan = shard(job, cluster, ways=[REPLICATED])
        assert plan.bytes == pytest.approx([held * table.bytes] * workers)
        with pytest.raises(ValueError, match="memory binds"):
            shard(job, cluster, memory=0.99 * held * table.bytes, ways=[REPLICATED])


def test_a_host_of_a_plan_has_one_server():
    cluster = ClusterResources(1e9, servers=4, workers=3, **IN_WORKERS)
    with pytest.raises(ValueError, match="one for each of the 3 workers, got 4"):
        shard(Job((Table(1000, 16),), 64), cluster)


def test_copies_are_for_tables_of_which_a_worker_gets_no_more_than_of_the_product():
    cluster = ClusterResources(1e9, servers=4, workers=4)
    small, large = Table(256, 16, 5.0), Table(257, 16, 5.0)
    for table, chosen in ((small, True), (large, False)):
        (place,) = shard(Job((table,), 256), cluster).tables
        assert (place.way == REPLICATED) == chosen
    with pytest.raises(ValueError, match="cannot be divided over 4 servers by replicated"):
        shard(Job((large,), 256), cluster, ways=[REPLICATED])


def test_hot_rows_make_the_server_that_has_them_slower():
    cluster = ClusterResources(1e9, servers=4, workers=4)
    for hot, rows in ((0.0, 0), (0.9, 1), (0.9, 1000)):  # 1000 rows are on all servers
        table = Table(100_000, 16, 50.0, hot_rows=rows, hot_share=hot)
        seconds = shard(Job((table,), 512), cluster, ways=["row"]).seconds
        assert (max(seconds) > 1.01 * min(seconds)) == (rows == 1)


def test_errors_say_what_binds():
    job, cluster = Job((Table(1000, 2, 5.0),), 64), ClusterResources(1e9, servers=4)
    with pytest.raises(ValueError, match="need 8,000 bytes, but 4 servers hold 4,000"):
        shard(job, cluster, memory=1000)
    with pytest.raises(ValueError, match=r"table 0 \(1,000 x 2\), at least 8,000 bytes"):
        shard(job, cluster, memory=4000, ways=["table"])
    with pytest.raises(ValueError, match="cannot be divided over 4 servers by column"):
        shard(job, cluster, ways=["column"])
    with pytest.raises(ValueError, match="ways must be some of"):
        shard(job, cluster, ways=["diagonal"])


_PLAN = (
    '{"tables": [{"name": "a", "way": "%s", "servers": [%s]}], "seconds": [1, 1], "bytes": [1, 1]}'
)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[" * 100_000,
        "[]",
        '{"seconds": [1], "bytes": [1]}',
        _PLAN % ("table", "1e999"),
        _PLAN % ("table", ""),
        _PLAN % ("table", "2"),
        _PLAN % ("row", "0"),
        _PLAN % ("by row", "0"),
        _PLAN % ("row", "0.7, 1.9"),
        _PLAN % ("row", "false, true"),
        _PLAN % ("row", '"0", "1"'),
        _PLAN % ("row", "0, 1" + "0" * 4000),
        (_PLAN % ("row", "0, 1")).replace('"a"', "null"),
        (_PLAN % ("row", "0, 1")).replace('"seconds": [1, 1]', '"seconds": "11"'),
        (_PLAN % ("row", "0, 1")).replace('"seconds": [1, 1]', '"seconds": [1, NaN]'),
        (_PLAN % ("row", "0, 1")).replace('"bytes": [1, 1]', '"bytes": [-1, 1]'),
        (_PLAN % ("row", "0, 1")).replace("{", '{"tables": [], ', 1),
    ],
)
def test_a_file_that_is_no_plan_is_named(tmp_path, text):
    path = tmp_path / "plan.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"plan\.json: ") as raised:
        read_plan(path)
    assert len(str(raised.value).replace(str(path), "")) < 400


def test_a_plan_is_read_as_it_was_written(tmp_path):
    plan = ShardingPlan((ShardedTable("table", 1), ShardedTable("row", 0)), (0.5, 2.0), (3.0, 4.0))
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(plan.to_json(["a", "b"])))
    assert read_plan(path) == (("a", "b"), plan)
