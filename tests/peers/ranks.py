"""The laws that every rank of a job checks; tests/peers/test_ranks.py starts the ranks.

Each rank runs all laws in the same order and writes the error of each, or null, to a file.
"""

from __future__ import annotations

import json
import re
import sys
import traceback
import zlib
from pathlib import Path

import numpy as np
import pytest

from twml_ops import peers
from twml_ops.peers._mpi import mpi

FEATURES, EXAMPLES, ROUNDS, EVERY = 37, 64, 5, 3
LAWS = {}


def law(function):
    LAWS[function.__name__] = function
    return function


def same_bits(got, want):
    assert got.dtype == want.dtype
    assert got.shape == want.shape
    assert got.tobytes() == want.tobytes(), np.abs(got - want).max()


def vector(group, *shape, dtype="float32", **options):
    return peers.SharedVector.create(shape, dtype, group=group, **options)


def filled(rank, round_, *shape):
    return np.random.default_rng([rank, round_]).normal(size=shape).astype(np.float32)


class Sgd:
    """Logistic regression of one rank on its share of the examples."""

    def __init__(self, rank, size):
        rng = np.random.default_rng(5)
        self.x = rng.normal(size=(EXAMPLES, FEATURES)).astype(np.float32)[rank::size]
        self.y = rng.integers(0, 2, EXAMPLES).astype(np.float32)[rank::size]

    def step(self, weights, number):
        x, y = (a[number % len(self.y)] for a in (self.x, self.y))
        p = 1 / (1 + np.exp(-(x @ weights)))
        return weights - np.float32(0.1) * (p - y) * x


@law
def test_the_ranks_do_not_import_tensorflow(group):
    assert "tensorflow" not in sys.modules


@law
def test_bsp_with_all_equals_one_process_that_does_the_same_sums(group):
    shared = vector(group, FEATURES)
    mine = Sgd(group.rank, group.size)
    for number in range(ROUNDS * EVERY):
        shared.value[:] = mine.step(shared.value, number)
        if number % EVERY == EVERY - 1:
            shared.scatter()
            shared.barrier()
            shared.gather("average_with_own")
    models = [np.zeros(FEATURES, np.float32) for _ in range(group.size)]
    for number in range(ROUNDS * EVERY):
        models = [Sgd(r, group.size).step(m, number) for r, m in enumerate(models)]
        if number % EVERY == EVERY - 1:
            total = np.zeros(FEATURES, np.float32)
            for model in models:
                total = total + model
            models = [total / np.float32(group.size)] * group.size
    same_bits(shared.value, models[group.rank])
    assert shared.counts.missed == shared.counts.overwritten == shared.counts.torn == 0


@law
def test_an_exchange_is_a_scatter_a_barrier_and_a_gather(group):
    first = np.full(3, 10 + group.rank, np.float32)
    shared = peers.SharedVector.create([3], group=group, initial=first)
    same_bits(shared.value, first)
    updates = shared.exchange("sum")
    assert [u.rank for u in updates] == [r for r in range(group.size) if r != group.rank]
    same_bits(shared.value, np.full(3, sum(10 + r for r in range(group.size)), np.float32))
    with pytest.raises(ValueError, match=r"initial must have the shape \[3\], got \(2,\)"):
        peers.SharedVector.create([3], group=group, initial=first[:2])


@law
def test_ranks_with_fewer_batches_wait_at_the_end_of_an_epoch(group):
    shared = vector(group, 2)
    for epoch in range(2):
        for _ in range(1 + group.rank):
            shared.exchange()
        group.end_epoch(epoch + 1, 2)
        rounds = group.gather_all([shared.channel.iteration])[:, 0]
        np.testing.assert_array_equal(rounds, (epoch + 1) * (1 + np.arange(group.size)))
    group.epoch = 0


@law
def test_nobody_waits_for_updates_of_ranks_that_wait_at_the_end_of_an_epoch(group):
    shared = vector(group, 2, consistency="ssp", staleness=1)
    for _ in range(6 if group.rank == group.size - 1 else 1):
        shared.exchange()
    assert group.regroup() == ()
    shared.exchange()
    shared.channel.finish()


@law
def test_items_are_dealt_in_turn(group):
    assert list(group.deal(range(19))) == list(range(19))[group.rank :: group.size]
    assert list(group.deal([])) == []


@law
def test_one_rank_keeps_every_bit(group):
    if group.size > 1:
        return
    shared, plain = vector(group, FEATURES), np.zeros(FEATURES, np.float32)
    mine = Sgd(0, 1)
    for number in range(ROUNDS):
        plain = mine.step(plain, number)
        shared.value[:] = mine.step(shared.value, number)
        shared.scatter()
        shared.barrier()
        assert shared.gather() == []
    same_bits(shared.value, plain)


@law
def test_every_reduction_equals_numpy_on_every_type_and_graph(group):
    for dtype in ("float32", "float64", "float16", "bfloat16"):
        for dataflow in ("all", "halton", "ring"):
            shared = vector(group, 3, 5, dtype=dtype, dataflow=dataflow)
            graph = peers.receivers(dataflow, group.size)
            senders = [r for r, row in enumerate(graph) if group.rank in row]
            kinds = ("average", "average_with_own", "sum", "replace", "function")
            for round_, kind in enumerate(kinds):
                values = [
                    filled(r, round_, 3, 5).astype(shared.value.dtype) for r in range(group.size)
                ]
                shared.value[...] = values[group.rank]
                shared.scatter()
                shared.barrier()
                reduce = (lambda own, got: own * 2 + len(got)) if kind == "function" else kind
                got = shared.gather(reduce)
                assert [u.rank for u in got] == senders
                assert {u.iteration for u in got} <= {round_ + 1}
                own = values[group.rank]
                if not senders:
                    same_bits(shared.value, own)
                    continue
                wide = np.float64 if dtype == "float64" else np.float32
                ranks = sorted([*senders, *([group.rank] if kind != "average" else [])])
                total = sum((values[r].astype(wide) for r in ranks), np.zeros((3, 5), wide))
                want = {
                    "sum": total,
                    "replace": values[max(senders)],
                    "function": own * 2 + len(senders),
                }.get(kind, total / wide(len(ranks)))
                same_bits(shared.value, np.asarray(want).astype(own.dtype))


@law
def test_sparse_rows_are_merged_over_the_ranks_that_sent_them(group):
    rows, width = 50, 3
    for wire in ("float32", "bfloat16"):
        for kind in ("average", "average_with_own", "sum", "replace"):
            shared = vector(
                group, rows, width, representation="sparse", wire_dtype=wire, max_rows=20
            )
            values = [filled(r, 0, rows, width) for r in range(group.size)]
            values = [v.astype(shared._part.wire).astype(np.float32) for v in values]
            for round_ in range(2):
                ids = [
                    np.random.default_rng([r, round_]).permutation(rows)[: 20 * (r != 1)]
                    for r in range(group.size)
                ]
                shared.value[...] = before = values[group.rank].copy()
                shared.scatter(ids[group.rank])
                shared.barrier()
                shared.gather(kind)
                for row in range(rows):
                    others = [r for r in range(group.size) if r != group.rank and row in ids[r]]
                    if not others:
                        same_bits(shared.value[row], before[row])
                        continue
                    own = kind == "sum" or (kind == "average_with_own" and row in ids[group.rank])
                    ranks = sorted([*others, *([group.rank] if own else [])])
                    total = np.zeros(width, np.float32)
                    for r in ranks:
                        total = total + values[r][row]
                    want = total if kind == "sum" else total / np.float32(len(ranks))
                    same_bits(
                        shared.value[row], values[others[-1]][row] if kind == "replace" else want
                    )


@law
def test_overwritten_and_missing_updates_are_counted(group):
    shared = vector(group, 2, consistency="async")
    for number in range(3):
        shared.value[:] = number + 10 * group.rank
        shared.scatter()
    group.all_sum([0])
    got = shared.gather("replace")
    others = group.size - 1
    assert [u.iteration for u in got] == [3] * others
    assert all((u.values == 2 + 10 * u.rank).all() for u in got)
    assert shared.gather() == []
    counts = shared.counts
    assert (counts.gathered, counts.overwritten, counts.missed) == (others, 2 * others, others)
    group.all_sum([0])


@law
def test_stale_synchronous_ranks_are_never_further_ahead(group):
    staleness = 2
    shared = vector(group, 2, consistency="ssp", staleness=staleness)
    for number in range(1, 13):
        if group.rank == group.size - 1:
            group.comm.Iprobe()  # slower than the others
            sum(range(200_000))
        shared.scatter()
        shared.barrier()
        assert all(n >= number - staleness for n in shared.channel.arrived().values())
        shared.gather()
    shared.channel.finish()
    group.all_sum([0])


@law
def test_a_rank_that_has_finished_is_not_awaited(group):
    shared = vector(group, 2, consistency="ssp", staleness=0)
    steps = 3 if group.rank == group.size - 1 else 9
    for _ in range(steps):
        shared.scatter()
        shared.barrier()
        shared.gather()
    shared.channel.finish()
    group.all_sum([0])


@law
def test_a_rank_that_pauses_is_not_missed_before_its_next_message(group):
    channel, missed = peers.Channel(group, "all", 8, "async"), []
    message = [np.zeros(8, np.uint8)]
    for send in (lambda: channel.scatter(message), channel.pause, lambda: channel.scatter(message)):
        send()
        group.all_sum([0])
        for _ in range(2):  # the second one finds nothing new
            channel.gather()
        missed.append(channel.counts.missed)
        group.all_sum([0])
    others = group.size - 1
    assert missed == [others, others, 2 * others]


@law
def test_ranks_with_fewer_steps_join_the_rounds_of_the_others(group):
    shared = vector(group, 2)
    for _ in range(2 + group.rank % 2):
        shared.scatter()
        shared.barrier()
        shared.gather()
    rounds = 0
    while not shared.channel.join_round(finished=True):
        shared.channel.gather()
        rounds += 1
    assert rounds == (1 - group.rank % 2 if group.size > 1 else 0)


@law
def test_no_gathered_message_is_torn(group):
    """Every rank writes messages of varying size as fast as it can, and reads at the same time."""
    channel = peers.Channel(group, "all", 20_000, "async")
    rng = np.random.default_rng(group.rank)
    wanted, gathered, done = 300 * (group.size - 1), 0, group.size == 1
    while not done:
        for _ in range(20):
            payload = rng.integers(0, 256, int(rng.integers(0, 19_000)), np.uint8)
            sums = np.array([zlib.crc32(payload), payload.size], np.int64).view(np.uint8)
            channel.scatter([sums, payload])
            for message in channel.gather():
                crc, size = (int(n) for n in message.data[:16].view(np.int64))
                assert size == message.data.size - 16
                assert crc == zlib.crc32(message.data[16:])
                gathered += 1
        done = int(group.all_sum([gathered < wanted])[0]) == 0
    assert channel.counts.gathered == gathered


@law
def test_arguments_are_checked_and_a_failed_call_sends_nothing(group):
    def fails(message, function, *args, **options):
        with pytest.raises(ValueError, match=re.escape(message)):
            function(*args, **options)

    fails("shape must have dimensions of at least 1", vector, group, 0)
    fails("dtype must be one of", vector, group, 2, dtype="int32")
    fails("dataflow must be one of", vector, group, 2, dataflow="star")
    fails("consistency must be one of", vector, group, 2, consistency="sync")
    fails("staleness must be at least 0", vector, group, 2, staleness=-1)
    fails("representation must be", vector, group, 2, representation="csr")
    fails("max_rows must be at least 1", vector, group, 2, max_rows=0)
    fails("timeout must be a positive", peers.PeerGroup, 0)
    dense = vector(group, 4)
    fails("ids must be None", dense.scatter, [1])
    fails("reduce must be a function or one of", dense.gather, "mean")
    sparse = vector(group, 4, 2, representation="sparse", max_rows=1)
    fails("ids must be rows", sparse.scatter)
    fails("ids must be in [0, 4), got 0 to 4", sparse.scatter, [0, 4])
    fails("ids must be distinct", sparse.scatter, [1, 1])
    fails("ids must be a vector of integers", sparse.scatter, [0.5])
    fails("ids must be at most max_rows = 1, got 4", sparse.scatter, np.arange(4))
    fails("at most 0 bytes, got 1", peers.Channel(group).scatter, [np.zeros(1, np.uint8)])
    assert dense.counts.scatters == sparse.counts.scatters == 0


def run(laws, folder, sizes, context):
    """Runs laws in groups of several sizes, which are parts of one job."""
    world = mpi().COMM_WORLD
    errors = {}
    for size in map(int, sizes.split(",")):
        group = peers.PeerGroup(timeout=120, comm=world.Split(world.rank // size, world.rank))
        for name, function in laws.items():
            try:
                function(group, *context)
                errors[f"{size} {name}"] = None
            except Exception:
                errors[f"{size} {name}"] = traceback.format_exc()
                break  # the other ranks may wait for calls that this one skipped
    Path(folder, f"{world.rank}.json").write_text(json.dumps(errors))
    if any(errors.values()):
        raise SystemExit(next(filter(None, errors.values())))


if __name__ == "__main__":
    run(LAWS, *sys.argv[1:], ())
