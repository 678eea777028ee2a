import pytest
from hypothesis import given
from hypothesis import strategies as st

from twml_ops.peers.dataflow import receivers, senders, without

NAMES = ("all", "halton", "chord", "ring")


def halton(i):
    """The definition of the base-2 Halton sequence."""
    value, weight = 0.0, 0.5
    while i:
        value, weight, i = value + weight * (i % 2), weight / 2, i // 2
    return value


def reaches_all(graph):
    found = [{r} for r in range(len(graph))]
    for _ in graph:
        found = [f.union(*(found[to] for to in row)) for f, row in zip(found, graph, strict=True)]
    return all(len(f) == len(graph) for f in found)


def test_eight_ranks_send_at_halton_distances_of_the_indices_four_to_six():
    assert [8 * halton(i) for i in (4, 5, 6)] == [1, 5, 3]
    assert receivers("halton", 8)[0] == (1, 3, 5)
    assert receivers("halton", 8)[6] == (1, 3, 7)


@pytest.mark.parametrize("size", range(2, 65))
def test_halton_has_log2_receivers_at_the_distances_of_the_definition(size):
    count = size.bit_length() - 1
    first = 2 ** (count - 1)
    distances = sorted(int(size * halton(i)) for i in range(first, first + count))
    assert list(receivers("halton", size)[0]) == distances
    assert len(set(distances)) == count


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("size", range(1, 65))
def test_named_graphs_are_connected_without_loops_and_balanced(name, size):
    graph = receivers(name, size)
    assert len(graph) == size
    assert reaches_all(graph)
    assert all(r not in row and len(set(row)) == len(row) for r, row in enumerate(graph))
    assert {len(row) for row in graph} == {len(row) for row in senders(graph)}


def test_the_numbers_of_receivers_are_those_of_the_definitions():
    sizes = [[len(receivers(name, n)[0]) for n in (1, 2, 5, 8)] for name in NAMES]
    assert sizes == [[0, 1, 4, 7], [0, 1, 2, 3], [0, 1, 3, 3], [0, 1, 1, 1]]


@pytest.mark.parametrize(
    ("graph", "message"),
    [
        ([[1], [0], []], r"rank 0 never reaches \[2\]"),
        ([[1], [0], [0]], r"rank 0 never reaches \[2\]"),
        ([[1, 2], [0], []], r"0 is unreached by \[2\]"),
        ([[0, 1], [2], [0]], r"dataflow\[0\] must be distinct ranks in \[0, 3\) other than 0"),
        ([[1, 1], [2], [0]], r"dataflow\[0\]"),
        ([[1], [3], [0]], r"dataflow\[1\] .*got \[3\]"),
        ([[1], [0]], "a row for each of 3 ranks, got 2"),
        ("star", "must be one of"),
    ],
)
def test_other_graphs_are_refused(graph, message):
    with pytest.raises(ValueError, match=message):
        receivers(graph, 3)


def test_no_ranks_are_refused():
    with pytest.raises(ValueError, match="size must be at least 1, got 0"):
        receivers("all", 0)


@given(st.data())
def test_a_graph_without_lost_ranks_stays_connected(data):
    size = data.draw(st.integers(2, 12))
    ring = [{(r + 1) % size} for r in range(size)]
    more = data.draw(st.lists(st.sets(st.integers(0, size - 1)), min_size=size, max_size=size))
    graph = receivers(
        [(a | b) - {r} for r, (a, b) in enumerate(zip(ring, more, strict=True))], size
    )
    lost = data.draw(st.sets(st.integers(0, size - 1), max_size=size - 1))
    left = without(graph, sorted(lost))
    assert len(left) == size - len(lost)
    assert receivers(left, len(left)) == left
