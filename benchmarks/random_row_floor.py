"""Floors that are measured: the memory accesses of a kernel without its other work.

`EntryAccesses` reads the row of every entry of a batch in the order of a kernel, from a cache or
from memory, and adds them up; for a step it also sums the gradients of each id and passes over its
row of the table and of the slots. Nothing else is done: no values, no sorting, no rule.

`RandomRowProbe` visits the distinct rows of a batch once, in the order of their ids. The bandwidth
found replaces that of a stream where `bandwidth_floor` counts rows of the table and of the slots.

`python -m benchmarks.random_row_floor` times the forward pass and the steps of twml_ops, and the
forward pass of torch if it is installed, in turns with `EntryAccesses`.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np
import typer

from benchmarks import machine, tables, timing
from benchmarks.bandwidth_floor import Bandwidth
from benchmarks.contender import FORWARD, RULES, TWML_OPS
from benchmarks.workload import QUICK, Batch, Case, Workload, make_case

READ, UPDATE = "random rows read", "random rows read and written"
SOURCE = Path(__file__).with_name("random_rows.cc")
_FLOATS = np.ctypeslib.ndpointer(np.float32, flags="C_CONTIGUOUS")
_IDS = np.ctypeslib.ndpointer(np.int64, flags="C_CONTIGUOUS")
_ROWS = np.ctypeslib.ndpointer(np.int32, flags="C_CONTIGUOUS")
_FLOATS_PER_LINE = 16
_SLOTS = {"sgd": "", "adagrad": "rows", "rowwise_adagrad": "number", "lazy_adam": "rows rows"}
_TORCH = "torch embedding_bag"


def main(
    threads: Annotated[int, typer.Option(min=1, help="Threads of all.")] = 2,
    rounds: Annotated[int, typer.Option(min=1, help="Turns of each.")] = 5,
    quick: Annotated[bool, typer.Option(help="Tiny sizes, as a test.")] = False,
    docs: Annotated[Path | None, typer.Option(help="Folder of performance.md.")] = None,
) -> None:
    """Prints the table."""
    machine.limit_threads(threads)
    from benchmarks.kernels import prepare  # it imports TensorFlow, so the threads are set first

    about = machine.describe(machine.command_line("benchmarks.random_row_floor"))
    workload, number = (QUICK if quick else Workload()), 4
    distributions = {"Zipf 1.05": 1.05, "uniform": 0.0}
    batches = [
        b for skew in distributions.values() for b in workload.replace(skew=skew).batches(number)
    ]
    case = make_case(workload, batches, threads)
    accesses = EntryAccesses(case)
    rows = []
    for task in (FORWARD, *RULES):
        prepared, _ = prepare(case, [task], only=(TWML_OPS, _TORCH))
        runs = {name: contender.run for (_, name), contender in prepared.items()}
        for i, distribution in enumerate(distributions):
            indices = range(i * number, (i + 1) * number)
            found = timing.interleave({**runs, "": accesses.run(task)}, indices, rounds=rounds)
            floor = found.pop("")
            cells = [tables.milliseconds(floor.median), tables.milliseconds(floor.cpu)]
            for name in (TWML_OPS, _TORCH):
                own = found.get(name)
                cells.append(tables.milliseconds(own and own.median))
                cells.append(tables.ratio(own and own.median, floor.median))
                cells.append(tables.ratio(own and own.cpu, floor.cpu))
            rows.append([tables.TASK_TITLES[task], distribution, *cells])
    header = ["", "ids", "floor, ms", "floor, CPU ms"]
    for name in (TWML_OPS, _TORCH):
        header += [f"{name}, ms", "÷ floor", "CPU ÷ floor"]
    sizes = f"N = {workload.input_dim:,}, D = {workload.units}, B = {workload.batch_size:,}"
    text = (
        f"{tables.machine(about)}\n\n{sizes}, about {workload.row_length} entries per row, "
        f"{threads} threads. Medians of {rounds} interleaved rounds.\n\n"
        f"{tables.markdown(header, rows)}"
    )
    print(text)
    if docs is not None:
        tables.insert(
            docs / "performance.md", "entry_floor", text, "benchmarks/random_row_floor.py"
        )


class EntryAccesses:
    """The memory accesses of a forward pass and of a step, without other work.

    Args:
        case: the table, whose D is a multiple of 16, the batches and the gradient. The table is
            multiplied by 1, so it does not change.

    Raises:
        ValueError: D is not a multiple of 16.
    """

    def __init__(self, case: Case) -> None:
        if case.table.shape[1] % _FLOATS_PER_LINE:
            raise ValueError(f"D must be a multiple of 16, got {case.table.shape[1]}")
        self._library = _compiled()
        self._case = case
        self._pool = ThreadPoolExecutor(case.threads)  # ctypes releases the GIL during a call
        self._groups = [_groups(batch) for batch in case.batches]
        self.output = np.zeros((case.batches[0].num_rows, case.table.shape[1]), np.float32)

    def run(self, task: str) -> Callable[[int], None]:
        """The accesses of a task as a contender of `timing.interleave`.

        Args:
            task: FORWARD, or the optimizer of a step.
        """
        if task == FORWARD:
            return self._forward
        rows, dim = self._case.table.shape
        shapes = {"rows": (rows, dim), "number": (rows, 1)}
        # Memory that was never written is one page of zeros in a cache, which is read too fast.
        slots = [np.ones(shapes[kind], np.float32) for kind in _SLOTS[task].split()]

        def step(i: int) -> None:
            self._forward(i)
            self._update(i, [self._case.table, *slots])

        return step

    def _forward(self, i: int) -> None:
        batch, table = self._case.batches[i], self._case.table
        self._in_parts(
            batch.row_splits,
            lambda begin, end: self._library.sum(
                table, batch.ids, batch.row_splits, begin, end, table.shape[1], self.output
            ),
        )

    def _update(self, i: int, tables: list[np.ndarray]) -> None:
        ids, splits, rows = self._groups[i]
        pointers = (ctypes.c_void_p * len(tables))(*[table.ctypes.data for table in tables])
        dims = np.array([table.shape[1] for table in tables], np.int64)
        grad = self._case.grad_output
        dim = grad.shape[1]
        self._in_parts(
            splits,
            lambda begin, end: self._library.update_groups(
                grad, rows, splits, ids, begin, end, dim, pointers, dims, len(tables), 1.0,
                np.empty(dim, np.float32),
            ),
        )  # fmt: skip

    def _in_parts(self, splits: np.ndarray, call: Callable[[int, int], None]) -> None:
        """Calls `call` with a range of segments for each thread, with about as many entries."""
        threads, segments = self._case.threads, len(splits) - 1
        work = splits + 2 * np.arange(segments + 1)
        bounds = np.searchsorted(work, np.arange(threads) * work[-1] / threads).tolist()
        list(self._pool.map(call, bounds, [*bounds[1:], segments]))


class RandomRowProbe:
    """Measures the bandwidth of random rows.

    Args:
        table: float32 [N, D]. Its rows are multiplied by 1, so they do not change.
        batches: batches whose distinct ids are the rows.
        threads: number of threads; each has a range of ids.
    """

    def __init__(self, table: np.ndarray, batches: Sequence[Batch], threads: int) -> None:
        self._library = _compiled()
        self._table = table
        self._parts = [np.array_split(np.unique(batch.ids), threads) for batch in batches]
        self._sums = [np.zeros(table.shape[1], np.float32) for _ in range(threads)]
        self._pool = ThreadPoolExecutor(threads)  # ctypes releases the GIL during a call

    def runs(self) -> dict[str, Callable[[int], object]]:
        """The two passes over the rows of a batch, as contenders of `timing.interleave`."""
        return {READ: self._read, UPDATE: self._update}

    def bandwidth(
        self, batches: Sequence[int], read_seconds: float, update_seconds: float
    ) -> Bandwidth:
        """Converts the times of the two passes, in seconds, to bandwidths.

        Args:
            batches: indices of the batches that were timed.
            read_seconds: seconds per batch of the reading pass.
            update_seconds: seconds per batch of the updating pass.
        """
        rows = np.mean([sum(len(part) for part in self._parts[i]) for i in batches])
        size = float(rows) * self._table.shape[1] * self._table.itemsize
        return Bandwidth(size / read_seconds, 2 * size / update_seconds)

    def _read(self, batch: int) -> object:
        def part(ids: np.ndarray, total: np.ndarray) -> None:
            self._library.read(self._table, ids, len(ids), len(total), total)

        return list(self._pool.map(part, self._parts[batch], self._sums))

    def _update(self, batch: int) -> object:
        def part(ids: np.ndarray) -> None:
            self._library.update(self._table, ids, len(ids), self._table.shape[1], 1.0)

        return list(self._pool.map(part, self._parts[batch]))


class _Library(NamedTuple):
    """The functions of `random_rows.cc`."""

    read: Callable[..., None]
    update: Callable[..., None]
    sum: Callable[..., None]
    update_groups: Callable[..., None]


def _groups(batch: Batch) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The distinct ids in order, the splits of their entries, and the example of each entry."""
    order = np.argsort(batch.ids, kind="stable")
    ids, first = np.unique(batch.ids[order], return_index=True)
    splits = np.append(first, len(order)).astype(np.int64)
    return ids, splits, batch.row_indices[order].astype(np.int32)


def _compiled() -> _Library:
    """Compiles the loops for this machine, with $CXX or g++."""
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "random_rows.so")
        compiler = os.environ.get("CXX", "g++").split()
        flags = ["-O3", "-march=native", "-shared", "-fPIC"]
        subprocess.run([*compiler, *flags, str(SOURCE), "-o", path], check=True)
        library = ctypes.CDLL(path)
    sizes = [ctypes.c_int64, ctypes.c_int64]
    library.ReadRows.argtypes = [_FLOATS, _IDS, *sizes, _FLOATS]
    library.UpdateRows.argtypes = [_FLOATS, _IDS, *sizes, ctypes.c_float]
    library.SumSegments.argtypes = [_FLOATS, _IDS, _IDS, *sizes, ctypes.c_int64, _FLOATS]
    library.UpdateGroups.argtypes = [
        *(_FLOATS, _ROWS, _IDS, _IDS, *sizes, ctypes.c_int64),
        *(ctypes.c_void_p, _IDS, ctypes.c_int64, ctypes.c_float, _FLOATS),
    ]
    functions = library.ReadRows, library.UpdateRows, library.SumSegments, library.UpdateGroups
    for function in functions:
        function.restype = None
    return _Library(*functions)


if __name__ == "__main__":
    typer.run(main)
