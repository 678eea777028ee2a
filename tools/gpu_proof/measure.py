"""Measures cells in a process of its own.

    python -m tools.gpu_proof.measure LIBRARY REFERENCE

It writes a line of JSON before and after each cell, see stage.py.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tests.cuda.interface import NO_ERRORS, RULES, Batch, Call, Groups, Rule, Table
from tests.cuda.library import CudaLibrary
from tools.gpu_proof import device, peers
from tools.gpu_proof.cells import BATCHES, CELLS, FORWARD, VALUES_GRAD, Cell

SAMPLES = 5
BANDWIDTH = "bandwidth of a copy"


class _Arena(ctypes.Structure):
    _fields_ = [("memory", ctypes.c_void_p), ("size", ctypes.c_size_t), ("used", ctypes.c_size_t)]


class Bench:
    """The library and its working memory.

    Args:
        cuda: The library.
        reference: The library of tests/cuda/reference.cc, which has an allocator.
        seconds: How long a sample takes, about.
    """

    def __init__(self, cuda: CudaLibrary, reference: Path, seconds: float) -> None:
        self.cuda, self.seconds = cuda, seconds
        self.about = device.EMULATED if cuda.is_emulated else device.describe() or device.EMULATED
        allocate = ctypes.cast(ctypes.CDLL(str(reference)).reference_allocate, ctypes.c_void_p)
        size = 1 << (22 if cuda.is_emulated else 29)
        memory = device.DeviceArray(cuda, (size,), np.uint8)
        self._arena = _Arena(memory.pointer, size, 0)
        self._errors = device.DeviceArray.of(cuda, np.array(NO_ERRORS, np.uint64))
        user = ctypes.cast(ctypes.pointer(self._arena), ctypes.c_void_p)
        self.call = ctypes.byref(Call(None, allocate, user, self._errors.pointer))

    def queue(self, function: Any, *arguments: Any) -> None:
        """Calls a function of the library, which must succeed."""
        code = function(self.call, *arguments)
        if code != 0:
            raise RuntimeError(f"{function.__name__} returned {code}")

    def reset(self) -> None:
        """Lets the next call reuse the working memory: a stream does one thing after the other."""
        self._arena.used = 0

    def wait(self) -> None:
        """Waits for all work."""
        code = self.cuda.library.twml_cuda_synchronize(None)
        if code != 0:
            raise RuntimeError(f"the work failed with error {code}")

    def check_errors(self) -> None:
        """Inputs of benchmarks are valid."""
        if tuple(self._errors.numpy()) != NO_ERRORS:
            raise RuntimeError(f"kernels reported bad input: {self._errors.numpy()}")

    def time(self, run: Callable[[int], Any], wait: Callable[[], Any]) -> dict[str, float]:
        """Times a function that queues the work of a batch.

        Args:
            run: The function.
            wait: Waits for what it has queued.

        Returns:
            The median and the least of several samples, and the time in which the host queues the
            work; all in seconds for each batch.
        """
        run(0)
        wait()
        begin = time.perf_counter()
        for i in range(4):
            run(i % BATCHES)
        queued = (time.perf_counter() - begin) / 4
        wait()
        once = (time.perf_counter() - begin) / 4
        calls = int(min(1000, max(1, self.seconds / SAMPLES / once)))
        samples = []
        for _ in range(SAMPLES):
            begin = time.perf_counter()
            for i in range(calls):
                run(i % BATCHES)
            wait()
            samples.append((time.perf_counter() - begin) / calls)
        return {"median": float(np.median(samples)), "least": min(samples), "queued": queued}


def bandwidth(bench: Bench) -> dict[str, Any]:
    """The bytes per second that a copy within the memory of the device reads and writes."""
    size = 1 << (16 if bench.cuda.is_emulated else 30)
    one, other = (device.DeviceArray(bench.cuda, (size,), np.uint8) for _ in range(2))
    library = bench.cuda.library
    arguments = [ctypes.c_void_p(a.pointer) for a in (one, other)]

    def copy(_: int) -> None:
        library.twml_cuda_copy_async(None, *arguments, ctypes.c_size_t(size))

    found = bench.time(copy, bench.wait)
    for array in (one, other):
        array.free()
    return {"bytes_per_second": 2 * size / found["least"]}


class Prepared:
    """The arrays of a cell on the device, and the functions that work on them.

    Args:
        bench: The library.
        cell: The cell.
    """

    def __init__(self, bench: Bench, cell: Cell) -> None:
        cuda, random = bench.cuda, np.random.default_rng(1)
        self.bench, self.cell = bench, cell
        self.arrays: list[device.DeviceArray] = []
        rows, n = cell.table_rows(bench.about["l2_bytes"]), cell.rows * cell.length
        host = [cell.batch(rows, seed) for seed in range(BATCHES)]
        self.bytes = float(np.mean([cell.bytes(ids) for ids, _, _ in host]))
        block = random.normal(size=1 << 20).astype(np.float32)
        kind = np.uint16 if cell.bfloat16 else np.float32
        values = (block.view(np.uint32) >> 16).astype(np.uint16) if cell.bfloat16 else block
        try:
            self.table = self._empty((rows, cell.dim), kind).fill(values)
            self.grad = self._empty((cell.rows, cell.dim), np.float32).fill(block)
            self.out = self._empty((cell.rows, cell.dim), np.float32)
            self.dots = self._empty((n,), np.float32)
            slots = cell.slot_floats()
            width = cell.dim if slots > 1 else 1
            self.slots = [
                self._empty((rows, width), np.float32).fill(np.abs(block) + 1)
                for _ in range(-(-slots // width))
            ]
            self.batches = [
                [None if a is None else self._keep(device.DeviceArray.of(cuda, a)) for a in arrays]
                for arrays in host
            ]
            shapes = ((n, np.int64), (n + 1, np.int64), (1, np.int64), (n, np.int32))
            grouped = [self._empty((s,), d).pointer for s, d in (*shapes, (n, np.float32))]
        except MemoryError:
            self.free()
            raise
        if not cell.weighted:
            grouped[-1] = None
        self._csr = [
            Batch(
                ids.pointer,
                cell.wide_ids,
                None if weights is None else weights.pointer,
                splits.pointer,
                n,
                cell.rows,
            )
            for ids, weights, splits in self.batches
        ]
        self._table = Table(self.table.pointer, cell.bfloat16, rows, cell.dim)
        self._groups = Groups(*grouped, n, cell.rows)
        self._rows = ctypes.c_int64(rows)

    def _keep(self, array: device.DeviceArray) -> device.DeviceArray:
        self.arrays.append(array)
        return array

    def _empty(self, shape: tuple[int, ...], dtype: Any) -> device.DeviceArray:
        return self._keep(device.DeviceArray(self.bench.cuda, shape, dtype))

    def free(self) -> None:
        """Gives the memory of the device back."""
        for array in self.arrays:
            array.free()

    def forward(self, i: int) -> None:
        """Queues the product of batch i with the table."""
        self.bench.reset()
        self.bench.queue(
            self.bench.cuda.library.twml_cuda_sparse_linear,
            1,
            ctypes.byref(self._csr[i]),
            ctypes.byref(self._table),
            ctypes.byref(ctypes.c_void_p(self.out.pointer)),
        )

    def values_grad(self, i: int) -> None:
        """Queues the gradient of the values of batch i."""
        self.bench.reset()
        self.bench.queue(
            self.bench.cuda.library.twml_cuda_values_grad,
            ctypes.byref(self._csr[i]),
            ctypes.byref(self._table),
            ctypes.c_void_p(self.grad.pointer),
            ctypes.c_void_p(self.dots.pointer),
        )

    def step(self, i: int) -> None:
        """Queues the backward pass of batch i with the update of the table."""
        bench, library = self.bench, self.bench.cuda.library
        number, _, hyper = RULES[self.cell.task]
        slots = (ctypes.c_void_p * 2)(*(s.pointer for s in self.slots))
        rule = Rule(number, (ctypes.c_float * 8)(*hyper), 7, slots)
        groups = ctypes.byref(self._groups)
        bench.reset()
        bench.queue(library.twml_cuda_group_batch, ctypes.byref(self._csr[i]), self._rows, groups)
        bench.queue(
            library.twml_cuda_update_groups,
            1,
            groups,
            ctypes.byref(ctypes.c_void_p(self.grad.pointer)),
            ctypes.byref(self._table),
            ctypes.byref(rule),
        )

    def train(self, i: int) -> None:
        """Queues the forward pass and the step, which is what peers have."""
        self.forward(i)
        self.step(i)


def measure(bench: Bench, cell: Cell, with_peers: bool) -> dict[str, Any]:
    """Measures a cell.

    Args:
        bench: The library.
        cell: The cell.
        with_peers: Whether other packages are measured beside it.

    Returns:
        The times of the library and its peers, the bytes that must be moved, and what peers could
        not do. The times of a rule are of the step alone, and of the forward pass with it.
    """
    prepared = Prepared(bench, cell)
    try:
        tasks = {FORWARD: prepared.forward, VALUES_GRAD: prepared.values_grad}
        ours = bench.time(tasks.get(cell.task, prepared.step), bench.wait)
        found: dict[str, Any] = {"ours": ours, "bytes": prepared.bytes, "peers": {}, "skipped": {}}
        if cell.task not in tasks:
            found["forward_and_step"] = bench.time(prepared.train, bench.wait)
        bench.check_errors()
        prepared.forward(0)
        bench.wait()
        want = prepared.out.numpy()
        if with_peers:
            for name, prepare in peers.of(cell).items():
                try:
                    peer = prepare(prepared)
                    found["peers"][name] = measure_peer(bench, cell, peer, want)
                except Exception as e:  # a peer that does not work here must not end the proof
                    found["skipped"][name] = f"{type(e).__name__}: {str(e)[:200]}"
        return found
    finally:
        prepared.free()
        peers.free_memory()


def measure_peer(bench: Bench, cell: Cell, peer: peers.Peer, want: Any) -> dict[str, float]:
    """Times a peer whose results of the first batch are right."""
    if cell.task == FORWARD:
        got = peers.to_numpy(peer.run(0))
        # The sums of bfloat16 are rounded to this type, or added in it.
        close = 0.05 if cell.bfloat16 else 1e-4
        if not np.allclose(got, want, rtol=close, atol=close * np.abs(want).max()):
            raise RuntimeError(f"wrong by up to {np.abs(got - want).max()}")
    return bench.time(peer.run, peer.wait)


def main() -> int:
    """Measures the cells that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("library", type=Path, help="the CUDA library, or the emulated one")
    parser.add_argument("reference", type=Path, help="the library of the CPU's kernels")
    parser.add_argument("--skip", type=int, default=0, help="how many of the first to leave out")
    parser.add_argument("--no-peers", action="store_true", help="measure no other packages")
    parser.add_argument("--seconds", type=float, default=0.3, help="of each measurement, about")
    arguments = parser.parse_args()
    cuda = CudaLibrary(arguments.library)
    bench = Bench(cuda, arguments.reference, 0 if cuda.is_emulated else arguments.seconds)
    work: list[tuple[str, Callable[[], dict[str, Any]]]] = [(BANDWIDTH, lambda: bandwidth(bench))]
    for cell in CELLS:
        small = cell.tiny() if cuda.is_emulated else cell
        work.append((cell.name, lambda c=small: measure(bench, c, not arguments.no_peers)))
    for name, run in work[arguments.skip :]:
        print(json.dumps({"start": name}), flush=True)
        begin, why, found = time.perf_counter(), None, {}
        try:
            found = run()
        except MemoryError as e:
            found = {"left_out": str(e)}
        except Exception:  # the next cells may work
            why = traceback.format_exc()
        seconds = round(time.perf_counter() - begin, 3)
        done = {"done": name, "why": why, "seconds": seconds, "found": found}
        print(json.dumps(done), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
