"""Servers and workers that are killed, stopped or cut off from the network."""

import functools
import random

import numpy as np
import pytest

from benchmarks.distributed.network import unavailable
from tests import forked
from tests.child_process import ChildProcess
from tests.distribute.parameter_server import faulty_network
from tests.distribute.parameter_server.model import (
    ROWS,
    assert_close_by_way,
    names_of_tables,
    whole_batches,
)
from twml_ops.distribute.launch import EXIT_LOST

SAME_DATA = {"one_batch": True, "partition_axis": "row"}
UNREACHABLE = {"checkpoints": True, "checkpoint_every": 10, "later_timeout": 6}
NOISE = 0.01  # in the final log loss of asynchronous runs, which falls from 0.69 to about 0.004
KILLED = {"checkpoints": True, "checkpoint_every": 10, "timeout": 60}

SYNCHRONOUS = {"servers": 2, "workers": 2, "mode": "sync", "partition_axis": "row"}
PLANNED = {
    "servers": 2, "workers": 2, "mode": "sync",
    "tables": names_of_tables(["table", "row", "column", "replicated"], ["adagrad", "adam"]),
}  # fmt: skip
TWO_WITH_IDS = {
    "steps": 20, "rows_of_ids": True, "uses": 2, "steps_per_execution": 2, **SYNCHRONOUS,
}  # fmt: skip

SCENARIOS = {
    "one": {"servers": 2, "workers": 1, "steps": 20, "partition_axis": "row"},
    "two": {"servers": 2, "workers": 2, "steps": 20, "partition_axis": "row"},
    "one, clipped": {"servers": 1, "workers": 1, "steps": 10, "global_clipnorm": 0.1},
    "two, clipped": {
        "servers": 2, "workers": 2, "steps": 10, "partition_axis": "row", "global_clipnorm": 0.1,
    },
    "towers, one": {"servers": 1, "workers": 1, "steps": 8, "towers": True},
    "towers, two": {"servers": 2, "workers": 2, "steps": 8, "mode": "sync", "towers": True},
    "towers, kills": {
        "servers": 2, "workers": 2, "steps": 8, "mode": "sync", "towers": True,
        "kills": [[3, "ps", 1, 3], [6, "worker", 1, 3]],
        "checkpoints": True, "checkpoint_every": 2, "timeout": 120, "limit": 1800,
    },
    "states": {"servers": 2, "workers": 2, "steps": 8, "partition_axis": "row", "states": True},
    "slow": {"servers": 1, "workers": 2, "steps": 60, "mode": "async", "pause": [1, 5]},
    "bounded": {
        "servers": 1, "workers": 2, "steps": 30, "mode": "hogwild", "max_staleness": 2,
        "pause": [1, 5], "resume_after": 1, "later_timeout": 6,
    },
    "killed": {
        "servers": 2, "workers": 2, "steps": 80, "mode": "async",
        "kills": [[20, "worker", 1], [45, "ps", 1]], "exchange_every": 3, **KILLED,
    },
    "unreachable": {
        "servers": 2, "workers": 2, "steps": 40, "stops": [[20, "ps", 1]], "resume_after": 2,
        **SAME_DATA, **UNREACHABLE,
    },
    "undisturbed": {"servers": 2, "workers": 2, "steps": 40, **SAME_DATA},
    "kills": {
        "steps": 20, "checkpoint_policy": "intermittent", **SYNCHRONOUS,
        "kills": [[6, "worker", 1], [11, "ps", 1, 9], [16, "worker", 0, 5]],
        "checkpoints": True, "checkpoint_every": 4, "timeout": 120, "limit": 1800,
    },
    "rows of ids": {
        "servers": 2, "workers": 1, "steps": 20, "partition_axis": "row", "rows_of_ids": True,
        "kills": [[7, "ps", 1, 3], [13, "worker", 0, 3]],
        "checkpoints": True, "checkpoint_every": 4, "timeout": 120,
    },
    "rows of ids, one": {
        "servers": 1, "workers": 1, "steps": 20, "rows_of_ids": True, "uses": 2, "in_halves": True,
    },
    "rows of ids, two": TWO_WITH_IDS,
    "rows of ids, two, kills": {
        **TWO_WITH_IDS, "kills": [[6, "worker", 1, 3], [12, "ps", 1, 3], [16, "worker", 0, 3]],
        "checkpoints": True, "checkpoint_every": 4, "timeout": 120, "limit": 1800,
    },
    "rows of ids, asynchronous": {
        "servers": 2, "workers": 3, "mode": "async", "steps": 400, "rows_of_ids": True, "uses": 2,
        "partition_axis": "row", "steps_per_execution": 2,
        "kills": [[60, "worker", 1], [120, "ps", 1, 3], [200, "worker", 0, 5], [300, "ps", 0, 7]],
        "checkpoints": True, "checkpoint_every": 20, "timeout": 120, "limit": 1800,
    },
    "no kills": {"steps": 20, **SYNCHRONOUS},
    "plan": {"steps": 8, **PLANNED},
    "plan, kills": {
        "steps": 8, **PLANNED, "kills": [[3, "ps", 1, 3], [6, "worker", 1, 3]],
        "checkpoints": True, "checkpoint_every": 2, "timeout": 120, "limit": 1800,
    },
    "plan on workers, kills": {
        "steps": 8, **PLANNED, "servers_in_workers": True,
        "kills": [[3, "worker", 1, 3], [6, "worker", 0, 3]],
        "checkpoints": True, "checkpoint_every": 2, "timeout": 120, "limit": 1800,
    },
    "several steps": {"steps": 20, "steps_per_execution": 4, **SYNCHRONOUS},
    "servers in workers": {
        "steps": 20, "steps_per_execution": 3, "servers_in_workers": True, **SYNCHRONOUS,
        "kills": [[8, "worker", 1], [14, "worker", 0]],
        "checkpoints": True, "checkpoint_every": 4, "timeout": 120, "limit": 1800,
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def child():
    with ChildProcess(
        ["-m", "tests.distribute.parameter_server.cluster_supervisor"], timeout=3600
    ) as child:
        yield child


@pytest.fixture(scope="module")
def outcome(child):
    """Returns the outcome of a scenario, which runs once and only if a test needs it."""
    return functools.cache(lambda name: child.request(SCENARIOS[name]))


def test_two_synchronous_workers_equal_one_with_the_concatenated_batch(outcome):
    assert outcome("two")["deaths"] == []
    for one, two in zip(outcome("one")["weights"], outcome("two")["weights"], strict=True):
        np.testing.assert_allclose(two, one, rtol=2e-6, atol=2e-6)


@pytest.mark.slow
def test_two_synchronous_workers_train_towers_as_one_with_the_concatenated_batch(outcome):
    for one, two in zip(
        outcome("towers, one")["weights"], outcome("towers, two")["weights"], strict=True
    ):
        np.testing.assert_allclose(two, one, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@pytest.mark.one_tf
def test_towers_of_killed_servers_and_workers_reach_the_same_bits(outcome):
    killed = outcome("towers, kills")
    assert "hang" not in killed
    assert killed["weights"] == outcome("towers, two")["weights"]


@pytest.mark.slow
def test_synchronous_workers_clip_by_the_norm_of_the_concatenated_batch(outcome):
    pairs = zip(outcome("one, clipped")["weights"], outcome("two, clipped")["weights"], strict=True)
    for one, two in pairs:
        np.testing.assert_allclose(two, one, rtol=5e-6, atol=5e-6)


@pytest.mark.slow
def test_states_of_layers_learn_from_the_batches_of_all_synchronous_workers(outcome):
    found = [np.array(w) for w in outcome("states")["weights"]]
    largest, moments = np.zeros(ROWS, "f"), [[] for _ in range(ROWS)]
    mean, variance = np.zeros(1), np.ones(1)
    for (ids, values), _ in whole_batches():
        np.maximum.at(largest, ids.numpy(), np.abs(values.numpy()))
        for i, v in zip(ids.flat_values.numpy(), values.flat_values.numpy(), strict=True):
            moments[i].append(v)
        parts = np.split(values.numpy().sum(axis=1), 2)
        mean = 0.9 * mean + 0.1 * np.mean(parts)
        variance = 0.9 * variance + 0.1 * np.mean([p.var() for p in parts])
    seen = [(len(v), np.mean(v or [0.0]), np.var(v or [0.0]) * len(v)) for v in moments]
    for want, tolerance in ((largest, 0), (seen, 1e-6), (mean, 1e-5), (variance, 1e-5)):
        same = [w.shape == np.shape(want) and np.allclose(w, want, tolerance, 1e-7) for w in found]
        assert any(same), want


def test_only_workers_that_were_in_the_run_before_start_generations_of_queues(outcome):
    assert outcome("two")["generation"] == {"0": 1, "1": 1}
    killed = outcome("kills")["generation"]
    assert killed["0"] == killed["1"] > 1


@pytest.mark.one_tf
def test_a_stopped_worker_does_not_delay_asynchronous_training(outcome):
    slow = outcome("slow")
    assert slow["deaths"] == []
    assert slow["resumed"] >= 60  # the chief has done all remaining steps
    assert slow["reported"]["1"] == 5
    assert slow["reported"]["0"] >= 55
    assert slow["own"]["0"] + slow["own"]["1"] <= 61


@pytest.mark.one_tf
def test_bounded_staleness_is_never_exceeded(outcome):
    bounded = outcome("bounded")
    # The chief has timed out after 2 steps more than the other worker and one in progress.
    assert bounded["reported"] == {"0": 5 + 2 + 1, "1": 5}
    assert bounded["deaths"][0] == ["worker", 0, EXIT_LOST << 8]
    assert "hang" not in bounded
    assert bounded["step"] >= 30


@pytest.mark.one_tf
def test_training_survives_a_killed_worker_and_a_killed_server(outcome):
    killed = outcome("killed")
    assert "hang" not in killed
    assert killed["step"] >= 80
    assert [d[:2] for d in killed["deaths"] if d[2] == 9] == [["worker", 1], ["ps", 1]]
    assert killed["final"] < 0.69  # the initial loss


@pytest.mark.one_tf
def test_an_unreachable_server_is_an_error_and_the_result_is_the_same(outcome):
    unreachable = outcome("unreachable")
    assert_same_end(unreachable, outcome("undisturbed"))
    assert {tuple(d) for d in unreachable["deaths"]} == {
        ("worker", i, EXIT_LOST << 8) for i in range(2)
    }


def test_a_synchronous_run_that_is_killed_three_times_reaches_the_same_bits(outcome):
    killed, undisturbed = outcome("kills"), outcome("no kills")
    assert "hang" not in killed
    assert sum(d[2] == 9 for d in killed["deaths"]) == 3
    assert killed["step"] == undisturbed["step"] == 20
    assert killed["weights"] == undisturbed["weights"]


@pytest.mark.one_tf
def test_several_steps_of_a_call_are_the_same_steps(outcome):
    assert outcome("several steps")["deaths"] == []
    assert outcome("several steps")["weights"] == outcome("no kills")["weights"]


@pytest.mark.one_tf
def test_rows_of_ids_have_the_same_bits_after_a_killed_server_and_a_killed_worker(child, outcome):
    killed = outcome("rows of ids")
    undisturbed = {"servers": 2, "workers": 1, "steps": 20, "partition_axis": "row"}
    assert "hang" not in killed
    assert [d[:2] for d in killed["deaths"] if d[2] == 9] == [["ps", 1], ["worker", 0]]
    assert killed["weights"] == child.request({**undisturbed, "rows_of_ids": True})["weights"]


@pytest.mark.slow
def test_synchronous_workers_give_rows_to_ids_as_one_process_does_for_parts_of_a_batch(outcome):
    """Keys, counts and evictions are equal, and the rows differ in the order of additions only."""
    want, got = (outcome(f"rows of ids, {n}")["weights"] for n in ("one", "two"))
    for one, two in zip(want, got, strict=True):
        tolerance = 0 if np.array(one).dtype.kind in "bi" else 5e-6
        np.testing.assert_allclose(two, one, rtol=tolerance, atol=tolerance)


@pytest.mark.slow
@pytest.mark.one_tf
def test_rows_of_ids_of_two_workers_have_the_same_bits_after_three_kills(outcome):
    """A step that is repeated looks up its ids again, which changes their counts only."""
    killed, undisturbed = (outcome(f"rows of ids, two{n}") for n in (", kills", ""))
    assert "hang" not in killed
    assert sum(d[2] == 9 for d in killed["deaths"]) == 3
    pairs = zip(killed["weights"], undisturbed["weights"], strict=True)
    rows = [(a, b) for a, b in pairs if np.array(a).dtype.kind == "f"]
    assert rows
    assert all(a == b for a, b in rows)


@pytest.mark.slow
@pytest.mark.one_tf
def test_rows_of_ids_of_asynchronous_workers_survive_four_kills(outcome):
    """The state of the lookup is whole: each id has one row, which its index finds."""
    killed = outcome("rows of ids, asynchronous")
    assert "hang" not in killed
    assert sum(d[2] == 9 for d in killed["deaths"]) == 4
    assert killed["step"] >= 400
    weights = [np.array(w) for w in killed["weights"]]
    assert all(np.isfinite(w).all() for w in weights if w.dtype.kind == "f")
    keys, last_used, _, index = [w for w in weights if w.dtype.kind == "i" and w.ndim == 1][:4]
    used = np.flatnonzero(last_used)
    assert len(set(keys[used])) == len(used) == len(keys) - 1
    assert sorted(index[index >= 0]) == used.tolist()


@pytest.mark.slow
@pytest.mark.one_tf
def test_a_planned_run_has_the_same_bits_after_a_killed_server_and_a_killed_worker(outcome):
    killed = outcome("plan, kills")
    assert "hang" not in killed
    assert [d[:2] for d in killed["deaths"] if d[2] == 9] == [["ps", 1], ["worker", 1]]
    assert killed["weights"] == outcome("plan")["weights"]


@pytest.mark.slow
@pytest.mark.one_tf
@pytest.mark.parametrize("workers", [2, 4])
def test_planned_tables_of_several_workers_equal_whole_tables(child, workers):
    """Of each optimizer: bits by table and by column, else all but the order of additions."""
    names = names_of_tables(["table", "row", "column", "column-row", "replicated"])
    run = {"steps": 4, "mode": "sync", "tables": names}
    own = {"servers_in_workers": True} if workers == 2 else {}
    got = child.request({**run, "servers": 4, "workers": workers, **own})["weights"]
    whole = {**run, "tables": [f"table_{n}" for n in names], "servers": 1, "workers": 1}
    want = child.request(whole)["weights"]
    assert_close_by_way(names, want, got)


@pytest.mark.slow
@pytest.mark.one_tf
@pytest.mark.parametrize("workers", [1, 2, 4])
def test_tables_on_workers_have_the_bits_of_the_same_plan_on_servers(child, workers):
    """One server in each worker. Whole tables in one process have them but for orders of sums."""
    names = names_of_tables(["table", "row", "column", "replicated"], ["sgd", "adagrad"])
    run = {"steps": 4, "mode": "sync", "tables": names, "servers": workers, "workers": workers}
    apart, inside = (child.request({**run, "servers_in_workers": own}) for own in (False, True))
    assert inside["deaths"] == []
    assert inside["weights"] == apart["weights"]
    whole = {**run, "tables": [f"table_{n}" for n in names], "servers": 1, "workers": 1}
    assert_close_by_way(names, child.request(whole)["weights"], inside["weights"])


@pytest.mark.slow
@pytest.mark.one_tf
def test_a_planned_run_has_the_same_bits_after_killed_hosts_of_a_worker_and_its_shards(outcome):
    killed = outcome("plan on workers, kills")
    assert "hang" not in killed
    assert [d[:2] for d in killed["deaths"] if d[2] == 9] == [["worker", 1], ["worker", 0]]
    assert killed["weights"] == outcome("plan")["weights"]


@pytest.mark.one_tf
def test_servers_in_workers_reach_the_same_bits_when_they_are_killed(outcome):
    killed = outcome("servers in workers")
    assert "hang" not in killed
    assert [d[:2] for d in killed["deaths"] if d[2] == 9] == [["worker", 1], ["worker", 0]]
    assert killed["weights"] == outcome("no kills")["weights"]


@pytest.mark.slow
@pytest.mark.parametrize("part", range(5))
@pytest.mark.parametrize("policy", ["full", "intermittent"])
def test_a_synchronous_run_that_is_killed_a_hundred_times_reaches_the_same_bits(
    child, policy, part
):
    """Ten of the kills: of servers, of the chief and of the other worker, at random moments."""
    rng = random.Random(f"{policy}{part}")
    tasks = [("ps", 0), ("ps", 1), ("worker", 0), ("worker", 1)]
    kills = sorted(
        [rng.randrange(5, 145), *rng.choice(tasks), rng.randrange(40)] for _ in range(10)
    )
    run = {"steps": 150, **SYNCHRONOUS}
    saved = {"checkpoints": True, "checkpoint_every": 4, "checkpoint_policy": policy}
    killed = child.request({**run, **saved, "kills": kills, "timeout": 120, "limit": 3000})
    undisturbed = child.request(run)
    victims = [d[:2] for d in killed["deaths"] if d[2] == 9]
    print({"policy": policy, "killed": victims, "step": killed["step"]})
    assert "hang" not in killed
    assert len(victims) == 10
    assert killed["step"] == undisturbed["step"] == 150
    assert killed["weights"] == undisturbed["weights"]


def assert_same_end(got, want):
    assert "hang" not in got
    assert got["step"] == want["step"]
    for a, b in zip(want["weights"], got["weights"], strict=True):
        np.testing.assert_allclose(b, a, rtol=2e-6, atol=2e-6)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["async", "sync"])
@pytest.mark.parametrize("job", ["worker", "ps"])
def test_a_cut_network_is_an_error_and_the_result_is_the_same(child, outcome, mode, job):
    why = unavailable()
    if why is not None:
        pytest.skip(f"network namespaces are not available: {why}")
    # An asynchronous chief does not depend on the other worker and ends without it.
    lost = 1 if (job, mode) == ("worker", "async") else 2
    cut = {"mode": mode, "network": True, "resume_after": lost, "stops": [[20, job, 1]]}
    # Stale gradients make the first steps noisy. The loss is compared when it has settled.
    cut["steps"] = 40 if mode == "sync" else 200
    got = child.request({**SCENARIOS["undisturbed"], **cut, **UNREACHABLE})
    assert {d[2] for d in got["deaths"]} == {EXIT_LOST << 8}
    if mode == "sync":
        assert_same_end(got, outcome("undisturbed"))
    else:
        assert "hang" not in got
        assert got["step"] >= 200
        assert got["final"] < 0.5  # initially 0.69


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["async", "sync"])
@pytest.mark.parametrize("job", ["worker", "ps"])
def test_training_survives_ten_kills_at_random_steps(child, mode, job):
    rng = random.Random(f"{mode}{job}")
    kills = sorted([rng.randrange(20, 900), job, rng.randrange(2)] for _ in range(10))
    common = {"servers": 2, "workers": 2, "steps": 1000, "mode": mode, "partition_axis": "row"}
    common["one_batch"] = mode == "sync"
    killed = child.request({**common, "kills": kills, **KILLED})
    undisturbed = child.request(common)
    for name, result in (("killed", killed), ("undisturbed", undisturbed)):
        print({"run": name, **{k: v for k, v in result.items() if k != "weights"}})
    assert "hang" not in killed
    assert sum(d[2] == 9 for d in killed["deaths"]) == 10
    assert killed["step"] >= 1000
    assert abs(killed["final"] - undisturbed["final"]) < NOISE
    if mode == "sync":
        assert_same_end(killed, undisturbed)


STOPPED = {"checkpoints": True, "checkpoint_every": 4, "later_timeout": 6}


@pytest.mark.slow
@pytest.mark.parametrize("index", [0, 1])
@pytest.mark.parametrize("job", ["worker", "ps"])
def test_a_member_that_is_stopped_for_longer_than_the_timeout_changes_no_bit(
    child, outcome, job, index
):
    """It goes on when all that wait for it have ended, and have been started again."""
    waiting = 1 if job == "worker" else 2
    stops = {"stops": [[7, job, index]], "resume_after": waiting}
    stopped = child.request({"steps": 20, **SYNCHRONOUS, **STOPPED, **stops})
    assert "hang" not in stopped
    assert sum(d[2] == EXIT_LOST << 8 for d in stopped["deaths"]) >= waiting
    assert stopped["step"] == 20
    assert stopped["weights"] == outcome("no kills")["weights"]


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_a_worker_that_was_replaced_while_it_was_stopped_ends_and_changes_no_bit(child, workers):
    run = {**SYNCHRONOUS, "workers": workers, "steps": 30}
    undisturbed = child.request(run)
    for index in range(workers):
        replaced = child.request({**run, "stops": [[8, "worker", index]], "replaced": True})
        assert "hang" not in replaced
        (zombie,) = replaced["zombies"]
        assert zombie[:2] == [index, 1]
        assert zombie[2] <= 1  # the step that was under way
        assert replaced["weights"] == undisturbed["weights"]


@pytest.mark.slow
@pytest.mark.parametrize("index", [0, 1])
@pytest.mark.parametrize("axis", ["row", "auto"])
def test_an_asynchronous_worker_that_was_replaced_while_it_was_stopped_ends(child, index, axis):
    """With the table on the servers, and with copies of it on the workers."""
    run = {**SYNCHRONOUS, "partition_axis": axis, "replicated_rows": ROWS}
    run |= {"mode": "async", "steps": 1500}
    replaced = child.request({**run, "stops": [[20, "worker", index]], "replaced": True})
    assert "hang" not in replaced
    (zombie,) = replaced["zombies"]
    assert zombie[:2] == [index, 1]
    assert zombie[2] <= 1  # the step that was under way
    assert replaced["own"][str(index)] > 0
    assert replaced["final"] < 0.1  # initially 0.69


WIRES = {
    "loses, repeats and swaps packets": {
        "faults": {"lost": 0.01, "repeated": 0.02, "late": 0.1, "delay": 0.002},
    },
    "is cut, once from a server and once from a worker, and heals": {
        "faults": {},
        "cuts": [[4, "ps", 1, 12], [9, "worker", 1, 12]],
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("name", WIRES)
def test_a_wire_that_heals_before_the_timeout_changes_no_bit(child, outcome, name):
    why = unavailable() or faulty_network.unavailable()
    if why is not None:
        pytest.skip(f"no wire with faults: {why}")
    got = child.request({"steps": 20, **SYNCHRONOUS, "network": True, **WIRES[name]})
    print(got["packets"])
    assert "hang" not in got
    assert got["deaths"] == []
    assert got["weights"] == outcome("no kills")["weights"]
    wanted = ("lost", "repeated", "late") if "cuts" not in WIRES[name] else ("cut",)
    assert all(got["packets"][kind] >= 10 for kind in wanted)


RAISES = """
import sys
import tensorflow as tf
from twml_ops.distribute import exit_on_cluster_error

with exit_on_cluster_error():
    raise getattr(tf.errors, sys.argv[1])(None, None, sys.argv[2])
"""


@pytest.mark.parametrize(
    ("error", "message", "status"),
    [
        ("AbortedError", "Unable to find a context_id matching the specified one", EXIT_LOST),
        ("UnavailableError", "failed to connect to all addresses", EXIT_LOST),
        ("InvalidArgumentError", "Unable to find a context_id matching", EXIT_LOST),
        ("InvalidArgumentError", "indices[0] = 9 is not in [0, 4)", 1),
        ("NotFoundError", "data.csv; No such file or directory", 1),
    ],
)
def test_a_process_is_restarted_for_errors_that_only_lost_connections_have(error, message, status):
    done = forked.run(["-c", RAISES, error, message], capture_output=True, text=True)
    assert done.returncode == status, done.stderr
    assert message in done.stderr
