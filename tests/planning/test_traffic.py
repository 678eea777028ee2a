"""Sizes of messages, compared with figures computed by hand."""

import numpy as np
import pytest

from twml_ops.planning import STRATEGIES, ClusterResources, Compute, Job, Table, messages, predict

B, K, U, D, N = 512, 512 * 200, 40_000, 128, 2**19
TABLE = Table(N, D, entries=200, unique=U)
JOB = Job((TABLE,), B)
ROW, COLUMN = 48 + 18 / 8 * K / 2 + B, 48 + 19 / 8 * K + 9 / 8 * B  # sizes of messages with entries


def links(strategy, job=JOB, servers=2, workers=1):
    return predict(strategy, job, ClusterResources(1e8, servers, workers)).links


UP, DOWN, AROUND = "worker → server", "server → worker", "worker → worker"


@pytest.mark.parametrize(
    ("strategy", "want"),
    [
        ("single machine", {}),
        ("standard parameter server", {DOWN: N * D * 4 / 2, UP: N * D * 4 / 2}),
        ("row lookup", {UP: U / 2 * (8 + 8 + 4 * D), DOWN: U / 2 * 4 * D}),
        ("all-reduce", {}),
        ("hybrid by row", {UP: ROW + 4 * B * D, DOWN: 4 * B * D}),
        ("hybrid by column", {UP: COLUMN + 4 * B * D / 2, DOWN: 4 * B * D / 2}),
    ],
)
def test_one_worker_and_two_servers(strategy, want):
    assert links(strategy) == pytest.approx(want)


def test_an_all_reduce_sends_slices_or_the_dense_gradient_whichever_is_smaller():
    slices = U * (4 * D + 8)
    assert links("all-reduce", workers=3) == pytest.approx({AROUND: 2 * slices})
    small = Job((Table(1000, D, entries=200, unique=1000),), B)
    assert links("all-reduce", small, workers=3) == pytest.approx({AROUND: 4 / 3 * 1000 * D * 4})


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_tables_add_up(strategy):
    def total(job):
        return sum(m.bytes for m in messages(strategy, job, 3, 2))

    other = Table(2**10, 16, entries=3, unique=500)
    both = total(Job((TABLE, other), B))
    assert both == pytest.approx(total(JOB) + total(Job((other,), B)))


def test_what_servers_make_of_the_products_takes_their_place_in_the_messages():
    """The vectors of F fields, or the output of a tower of them: with the same entries."""
    fields, outputs = 26, 26 * D // 4
    vectors, tower = (
        links("hybrid by row", Job((Table(N, D, fields, U, outputs=n),), B), servers=1)
        for n in (fields * D, outputs)
    )
    assert tower[DOWN] == 4 * B * outputs == vectors[DOWN] / 4
    assert vectors[UP] - vectors[DOWN] == pytest.approx(tower[UP] - tower[DOWN])
    with pytest.raises(ValueError, match="outputs must be positive, got 0"):
        Table(N, D, outputs=0)


@pytest.mark.parametrize("axis", ["hybrid by row", "hybrid by column"])
def test_the_size_of_the_table_affects_a_hybrid_only_by_the_bits_of_an_id(axis):
    tables = [Table(2**p, D, 200, U) for p in range(18, 31)]
    found = [links(axis, Job((t,), B, deduplicate=False)) for t in tables]
    share = K / 2 if axis.endswith("row") else K
    assert [f[DOWN] for f in found] == [found[0][DOWN]] * len(found)
    assert np.diff([f[UP] for f in found]) == pytest.approx([share / 8] * (len(found) - 1))


def test_half_precision_and_values_change_the_bytes_of_a_hybrid():
    plain = links("hybrid by row")
    half = links("hybrid by row", Job((TABLE,), B, activation_bytes=2))
    valued = links("hybrid by row", Job((TABLE,), B, values=True))
    assert plain[UP] - half[UP] == plain[DOWN] - half[DOWN] == 2 * B * D
    int8 = links("hybrid by row", Job((TABLE,), B, activation_bytes=2, gradient_bytes=1))
    assert (half[UP] - int8[UP], half[DOWN] - int8[DOWN]) == (B * D - 4 * B, 0)
    by_column = Job((TABLE,), B, activation_bytes=1)
    assert links("hybrid by column", by_column)[DOWN] == B * (D / 2 + 4)
    assert valued[UP] - plain[UP] == 4 * K / 2


def test_distinct_ids_are_sent_once_if_that_is_smaller():
    def ids(unique, **options):
        job = Job((Table(N, D, 200, unique),), B, **options)
        return links("hybrid by row", job, servers=1)[UP] - 48 - 9 / 8 * B - 4 * B * D

    assert ids(10) == (4 * K + 18 * 10) / 8  # gaps of up to N / 10 (1 + ln(10)) numbers
    assert ids(10, deduplicate=False) == 19 / 8 * K
    # With so many distinct ids, repeated ones are not searched for.
    assert ids(2**16 - 1) == 19 / 8 * K
    assert ids(2**15) == (15 * K + 8 * 2**15) / 8


def test_dense_weights_are_sent_by_servers_or_between_workers():
    job = Job((TABLE,), B, dense=1000)
    for strategy in ("standard parameter server", "row lookup"):
        more, less = links(strategy, job), links(strategy)
        assert more[UP] - less[UP] == more[DOWN] - less[DOWN] == 4 * 1000 / 2
    for strategy in ("hybrid by row", "hybrid by column"):
        assert links(strategy, job) == links(strategy)  # one worker keeps it
        more, less = links(strategy, job, workers=2), links(strategy, workers=2)
        assert more[UP] - less[UP] == more[DOWN] - less[DOWN] == 4 * 1000 / 2
    assert links("all-reduce", job, workers=2)[AROUND] - links("all-reduce", workers=2)[AROUND] == (
        4 * 1000
    )


def test_the_default_number_of_distinct_ids_is_that_of_uniform_ids():
    assert Table(10, 1, entries=1).rows(10) == pytest.approx(10 * (1 - 0.9**10))
    assert Table(2**62, 1, entries=200).rows(512) == pytest.approx(K)
    assert Table(1, 1, entries=200).rows(512) == 1
    assert Table(2**19, 1, entries=1, unique=100).rows(7) == 7  # never more than there are entries


@pytest.mark.parametrize(
    ("text", "shape"),
    [
        ("2^19x128", (2**19, 128)),
        ("524288x128", (2**19, 128)),
        (" 10^6 X 2^6"[1:].replace(" ", ""), (10**6, 64)),
        ("3×4", (3, 4)),
    ],
)
def test_sizes(text, shape):
    table = Table.parse(text)
    assert (table.input_dim, table.units) == shape


def test_peers_send_changed_rows_and_dense_weights_to_all_others_every_few_batches():
    table = Table(N, D, entries=200, unique=U, exchanged=3 * U)
    for workers in (2, 5):
        found = links("peers", Job((table,), B, dense=1000, every=4), workers=workers)
        size = 48 + 3 * U * (4 * D + 19 / 8) + 4 * 1000
        assert found == {AROUND: pytest.approx((workers - 1) * size / 4)}
    assert links("peers", workers=1) == {}


def test_the_rows_of_an_exchange_are_those_of_its_batches_and_of_the_table():
    assert TABLE.exchanged_rows(B, 2) == 2 * U
    assert TABLE.exchanged_rows(B, 100) == N
    assert Table(N, D, 200, exchanged=N).exchanged_rows(1, 2) == 400
    assert Table(N, D, 200).exchanged_rows(B, 4) == pytest.approx(Table(N, D, 800).rows(B))


def test_the_latency_of_an_exchange_is_paid_once_in_its_batches():
    job = Job((TABLE,), B, every=8)
    seconds = [
        predict("peers", job, ClusterResources(1e9, workers=2), Compute(latency=at)).seconds
        for at in (0, 0.8)
    ]
    assert seconds[1] - seconds[0] == pytest.approx(0.1)


@pytest.mark.parametrize(
    "text", ["", "128", "2^19", "x", "2^19x", "0x4", "4x0", "-1x4", "2^99x4", "2x3x4", "1e6x4"]
)
def test_invalid_sizes_are_rejected(text):
    with pytest.raises(ValueError, match="must"):
        Table.parse(text)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Table(8, 2, unique=9),
        lambda: Table(8, 2, exchanged=9),
        lambda: Table(8, 2, entries=0),
        lambda: Job((TABLE,), 4, every=0),
        lambda: Job((), 4),
        lambda: Job((TABLE,), 0),
        lambda: Job((TABLE,), 4, activation_bytes=3),
        lambda: Job((TABLE,), 4, activation_bytes=None),
        lambda: Job((TABLE,), 4, gradient_bytes=0),
        lambda: ClusterResources(0),
        lambda: ClusterResources(float("nan")),
        lambda: ClusterResources(1, servers=0),
        lambda: ClusterResources(1, workers=-1),
        lambda: messages("hybrid", JOB, 1, 1),
    ],
)
def test_invalid_arguments_are_named(make):
    with pytest.raises(ValueError, match="must (be|name)"):
        make()
