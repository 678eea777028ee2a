"""Dataflow graphs: which rank sends its updates to which."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

Name = Literal["all", "halton", "chord", "ring"]
Dataflow = Name | Sequence[Sequence[int]]
"""The name of a graph, or for each rank the ranks that it sends to."""


def receivers(dataflow: Dataflow, size: int) -> tuple[tuple[int, ...], ...]:
    """The ranks that each rank sends to.

    - "all": every other rank; N (N - 1) messages when every rank scatters once.
    - "halton": floor(log2 N) ranks at distances floor(N h(i)), where h is the base-2 Halton
      sequence (van der Corput) and i counts from 2^(floor(log2 N) - 1). The first distance is 1.
      See Li et al., "MALT: Distributed Data-Parallelism for Existing ML Applications", EuroSys
      2015.
    - "chord": ceil(log2 N) ranks at distances 1, 2, 4, ...; see Stoica et al., "Chord", SIGCOMM
      2001.
    - "ring": the next rank.

    Args:
        dataflow: Name of a graph, or for each rank the ranks that it sends to.
        size: Number of ranks, N.

    Returns:
        For each rank the ranks that it sends to, in ascending order.

    Raises:
        ValueError: There is no such graph; a rank is out of range, sends to itself or to the same
            rank twice; or the graph is not strongly connected, so that the updates of some rank
            never reach some other one.
    """
    if size < 1:
        raise ValueError(f"size must be at least 1, got {size}")
    if isinstance(dataflow, str):
        distances = _distances(dataflow, size)
        return tuple(tuple(sorted((r + d) % size for d in distances)) for r in range(size))
    graph = tuple(tuple(sorted(int(to) for to in row)) for row in dataflow)
    if len(graph) != size:
        raise ValueError(f"dataflow must have a row for each of {size} ranks, got {len(graph)}")
    for rank, row in enumerate(graph):
        if rank in row or len(set(row)) < len(row) or not all(0 <= to < size for to in row):
            raise ValueError(
                f"dataflow[{rank}] must be distinct ranks in [0, {size}) other than {rank}, "
                f"got {list(row)}"
            )
    for start, edges in ((0, graph), (0, senders(graph))):
        missing = sorted(set(range(size)) - _reached(edges, start))
        if missing:
            raise ValueError(
                "dataflow must be strongly connected: "
                + (f"rank {start} never reaches" if edges is graph else f"{start} is unreached by")
                + f" {missing}"
            )
    return graph


def senders(graph: Sequence[Sequence[int]]) -> tuple[tuple[int, ...], ...]:
    """The ranks that each rank receives from.

    Args:
        graph: For each rank the ranks that it sends to.

    Returns:
        For each rank the ranks that send to it, in ascending order.
    """
    return tuple(tuple(r for r, row in enumerate(graph) if to in row) for to in range(len(graph)))


def without(graph: Sequence[Sequence[int]], lost: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """The graph of the ranks that remain, with new consecutive numbers.

    Those that sent to a lost rank send to its receivers instead, so the graph stays strongly
    connected.

    Args:
        graph: For each rank the ranks that it sends to.
        lost: Ranks to remove.

    Returns:
        The graph of the remaining ranks.
    """
    edges = {rank: set(row) for rank, row in enumerate(graph)}
    for rank in lost:
        to = edges.pop(rank)
        for other, row in edges.items():
            if rank in row:
                row |= to
                row -= {rank, other}
    numbers = {rank: i for i, rank in enumerate(edges)}
    return tuple(tuple(sorted(numbers[to] for to in row)) for row in edges.values())


def _distances(name: str, size: int) -> list[int]:
    if name not in get_args(Name):
        raise ValueError(f"dataflow must be one of {get_args(Name)} or rows of ranks, got {name!r}")
    if size == 1:
        return []
    if name == "all":
        return list(range(1, size))
    if name == "ring":
        return [1]
    if name == "chord":
        return [1 << i for i in range((size - 1).bit_length())]
    count = size.bit_length() - 1
    first = 1 << (count - 1)
    return [size * _reversed_bits(i, count) >> count for i in range(first, first + count)]


def _reversed_bits(number: int, bits: int) -> int:
    """h(number) 2^bits, where h is the base-2 Halton sequence."""
    return int(f"{number:0{bits}b}"[::-1], 2)


def _reached(edges: Sequence[Sequence[int]], start: int) -> set[int]:
    found, open_ = {start}, [start]
    while open_:
        new = set(edges[open_.pop()]) - found
        found |= new
        open_ += new
    return found
