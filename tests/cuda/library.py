"""The CUDA library on NumPy arrays, which are copied to the device and back.

The same code calls the emulated library and, on a machine with a GPU, the real one.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tests.cuda.interface import (
    ALLOCATE,
    NO_ERRORS,
    RULES,
    Array,
    Batch,
    Buckets,
    Call,
    Csr,
    Groups,
    MaxNorm,
    Result,
    Rule,
    Table,
)
from tests.cuda.memory import Memory, batch_of, table_of
from tests.cuda.reports import Reports

Collect = Callable[[], list[Array]]


class CudaLibrary:
    """The functions of cc/cuda/twml_cuda.h.

    Args:
        path: The library.

    Attributes:
        workspace: What allocates working memory, see `Memory`; None for the library's own function.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.library = ctypes.CDLL(str(path))
        self.library.twml_cuda_allocate.restype = ctypes.c_void_p
        self.library.twml_cuda_allocate.argtypes = [ctypes.c_size_t]
        self.library.twml_cuda_free.argtypes = [ctypes.c_void_p]
        self.library.twml_cuda_copy.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
        self.library.twml_cuda_synchronize.argtypes = [ctypes.c_void_p]
        assert self.library.twml_cuda_abi() == 2
        self.workspace: Callable[[Memory, int], int | None] | None = None
        self.is_emulated = hasattr(self.library, "cuda_on_cpu_seed")
        if self.is_emulated:
            # As on a GPU, work is done after the call that queues it.
            self.library.cuda_on_cpu_defer(1)
            self.library.cuda_on_cpu_fail.argtypes = [ctypes.c_int64]
            self.library.cuda_on_cpu_fail.restype = ctypes.c_int64
            self.library.cuda_on_cpu_capacity.argtypes = [ctypes.c_int64]

    def seed(self, seed: int) -> None:
        """Chooses the order of blocks and threads, if the library is emulated."""
        if self.is_emulated:
            self.library.cuda_on_cpu_seed(seed)

    def fail_after(self, calls: int) -> int:
        """Makes a call of CUDA fail after others that do not; a negative number: never.

        Returns:
            How many were left from the last time, negative if that call has failed.
        """
        return int(self.library.cuda_on_cpu_fail(calls))

    def streams(self, number: int) -> list[int]:
        """New streams, which do not wait for the default stream."""
        if self.is_emulated:
            return list(range(1, number + 1))
        driver, found = ctypes.CDLL("libcuda.so.1"), []
        for _ in range(number):
            stream = ctypes.c_void_p()
            assert driver.cuStreamCreate(ctypes.byref(stream), 1) == 0  # CU_STREAM_NON_BLOCKING
            found.append(stream.value)
        return found

    def sparse_linear(self, batches: list[Csr], tables: list[Array]) -> Result:
        """The products of batches with their tables."""

        def run(memory: Memory, call: Any) -> tuple[int, Collect]:
            shapes = [(b.num_rows, t.shape[1]) for b, t in zip(batches, tables, strict=True)]
            outs = [memory.put(np.full(s, np.nan, np.float32)) for s in shapes]
            code = self.library.twml_cuda_sparse_linear(
                call,
                len(batches),
                (Batch * len(batches))(*(batch_of(memory, b) for b in batches)),
                (Table * len(batches))(*(table_of(memory.put(t), t) for t in tables)),
                (ctypes.c_void_p * len(batches))(*outs),
            )
            return code, lambda: [
                memory.get(o, s, np.float32) for o, s in zip(outs, shapes, strict=True)
            ]

        return self._run(run)

    def values_grad(self, batch: Csr, table: Array, grad: Array) -> Result:
        """The gradient with respect to the values."""

        def run(memory: Memory, call: Any) -> tuple[int, Collect]:
            out = memory.put(np.full(len(batch.ids), np.nan, np.float32))
            code = self.library.twml_cuda_values_grad(
                call,
                ctypes.byref(batch_of(memory, batch)),
                ctypes.byref(table_of(memory.put(table), table)),
                ctypes.c_void_p(memory.put(grad)),
                ctypes.c_void_p(out),
            )
            return code, lambda: [memory.get(out, len(batch.ids), np.float32)]

        return self._run(run)

    def group(self, batch: Csr, input_dim: int) -> Result:
        """Groups a batch. Returns the ids and splits of the groups, and rows and values."""

        def run(memory: Memory, call: Any) -> tuple[int, Collect]:
            groups, code = self._group(memory, call, batch, input_dim)
            n = len(batch.ids)

            def collect() -> list[Array]:
                number = int(memory.get(groups.num_groups, (), np.int64))
                arrays = [
                    memory.get(groups.ids, number, np.int64),
                    memory.get(groups.splits, number + 1, np.int64),
                    memory.get(groups.rows, n, np.int32),
                ]
                if batch.values is not None:
                    arrays.append(memory.get(groups.values, n, np.float32))
                return arrays

            return code, collect

        return self._run(run)

    def copy_ids(self, ids: Array, wide: bool) -> Result:
        """Ids of groups, as int64 if `wide`, else as int32."""

        def run(memory: Memory, call: Any) -> tuple[int, Collect]:
            dtype = np.int64 if wide else np.int32
            out = memory.put(np.full(len(ids), -1, dtype))
            code = self.library.twml_cuda_copy_ids(
                ctypes.c_void_p(memory.stream),
                ctypes.c_void_p(memory.put(ids)),
                ctypes.c_int64(len(ids)),
                int(wide),
                ctypes.c_void_p(out),
            )
            return code, lambda: [memory.get(out, len(ids), dtype)]

        return self._run(run)

    def weights_grad(self, batch: Csr, input_dim: int, grad: Array) -> Result:
        """The gradient with respect to the table, as unique ids and their rows."""

        def run(memory: Memory, call: Any) -> tuple[int, Collect]:
            n, dim = len(batch.ids), grad.shape[1]
            out = memory.put(np.full((n, dim), np.nan, np.float32))
            rows = memory.put(grad)
            groups, code = self._group(memory, call, batch, input_dim)
            if code == 0:
                code = self.library.twml_cuda_sum_groups(
                    call,
                    ctypes.byref(groups),
                    ctypes.c_void_p(rows),
                    ctypes.c_int64(dim),
                    ctypes.c_void_p(out),
                )

            def collect() -> list[Array]:
                number = int(memory.get(groups.num_groups, (), np.int64))
                ids = memory.get(groups.ids, n, np.int64)[:number]
                return [ids, memory.get(out, (n, dim), np.float32)[:number]]

            return code, collect

        return self._run(run)

    def update(
        self,
        batches: list[Csr],
        grads: list[Array],
        tables: list[Array],
        slots: list[list[Array]],
        rules: list[str],
        seed: int = 7,
        hypers: list[Any] | None = None,
    ) -> Result:
        """Updates tables with the gradients of their batches. Returns each table and its slots."""

        def run(memory: Memory, call: Any) -> tuple[int, Collect]:
            # Copies to the device wait for it: none is between the groups and their use.
            rows = [memory.put(g) for g in grads]
            pointers = [
                [memory.put(a) for a in (t, *s)] for t, s in zip(tables, slots, strict=True)
            ]
            groups, entries = [], []
            code = 0
            for i, (batch, table) in enumerate(zip(batches, tables, strict=True)):
                group, code = self._group(memory, call, batch, table.shape[0])
                if code != 0:
                    break
                groups.append(group)
                number, _, hyper = RULES[rules[i]]
                hyper = hyper if hypers is None else hypers[i]
                own_slots = (ctypes.c_void_p * 2)(*pointers[i][1:])
                entries.append(Rule(number, (ctypes.c_float * 8)(*hyper), seed, own_slots))
            n = len(batches)
            if code == 0:
                code = self.library.twml_cuda_update_groups(
                    call,
                    n,
                    (Groups * n)(*groups),
                    (ctypes.c_void_p * n)(*rows),
                    (Table * n)(
                        *(table_of(p[0], t) for p, t in zip(pointers, tables, strict=True))
                    ),
                    (Rule * n)(*entries),
                )
            return code, lambda: [
                memory.get(p, a.shape, a.dtype)
                for i in range(n)
                for p, a in zip(pointers[i], (tables[i], *slots[i]), strict=True)
            ]

        return self._run(run, always=True)

    def discretize(self, batch: Csr, features: Array, boundaries: Array, splits: Array, **o: Any):
        """Discretizes a batch; the options have the names of the struct. Returns a CSR triple."""

        def run(memory: Memory, call: Any) -> tuple[int, Collect]:
            n = len(batch.ids)
            pointers = (memory.put(a) for a in (features, boundaries, splits))
            buckets = Buckets(*pointers, len(features), len(boundaries), **o)
            csr = batch_of(memory, batch)
            ends = memory.put(np.full(n, -1, np.int64))
            splits_out = memory.put(np.full(batch.num_rows + 1, -1, np.int64))
            arguments = (call, ctypes.byref(csr), ctypes.byref(buckets), ctypes.c_void_p(ends))
            code = self.library.twml_cuda_discretize_sizes(*arguments, ctypes.c_void_p(splits_out))
            if code != 0:
                return code, list
            total = int(memory.get(ends, n, np.int64)[-1]) if n else 0
            assert 0 <= total <= 2 * n, "an entry becomes two at most"
            ids = memory.put(np.full(total, -1, np.int64))
            values = memory.put(np.full(total, np.nan, np.float32))
            code = self.library.twml_cuda_discretize(
                *arguments, ctypes.c_void_p(ids), ctypes.c_void_p(values)
            )
            return code, lambda: [
                memory.get(ids, total, np.int64),
                memory.get(values, total, np.float32),
                memory.get(splits_out, batch.num_rows + 1, np.int64),
            ]

        return self._run(run)

    def max_norm(self, batch: Csr, max_abs: Array, bias: Array | None, **options: Any) -> Result:
        """Normalizes a batch. Returns the values, their scales, and the new state."""

        def run(memory: Memory, call: Any) -> tuple[int, Collect]:
            n = len(batch.ids)
            state = memory.put(max_abs)
            norm = MaxNorm(state, memory.put(bias), len(max_abs), **options)
            outs = [memory.put(np.full(n, np.nan, np.float32)) for _ in range(2)]
            code = self.library.twml_cuda_max_norm(
                call,
                ctypes.byref(batch_of(memory, batch)),
                ctypes.byref(norm),
                *(ctypes.c_void_p(o) for o in outs),
            )
            return code, lambda: [
                *(memory.get(o, n, np.float32) for o in outs),
                memory.get(state, len(max_abs), np.float32),
            ]

        return self._run(run, always=True)

    def reports(self) -> Reports:
        """New reports of bad input."""
        return Reports(self.library)

    def _group(self, memory: Memory, call: Any, batch: Csr, input_dim: int) -> tuple[Any, int]:
        n = len(batch.ids)
        groups = Groups(
            memory.put(np.full(n, -1, np.int64)),
            memory.put(np.full(n + 1, -1, np.int64)),
            memory.put(np.full(1, -1, np.int64)),
            memory.put(np.full(n, -1, np.int32)),
            None if batch.values is None else memory.put(np.full(n, np.nan, np.float32)),
            n,
            batch.num_rows,
        )
        code = self.library.twml_cuda_group_batch(
            call,
            ctypes.byref(batch_of(memory, batch)),
            ctypes.c_int64(input_dim),
            ctypes.byref(groups),
        )
        return groups, code

    def _run(self, body: Any, always: bool = False) -> Result:
        """Runs a function and collects its results; if `always`, also after a failure."""
        return Queued(self, body, None, always).result()


class OnStream(CudaLibrary):
    """The same functions on a stream. They return a `Queued`, whose `result` waits."""

    def __init__(self, cuda: CudaLibrary, stream: int) -> None:
        vars(self).update(vars(cuda))
        self.stream = stream

    def _run(self, body: Any, always: bool = False) -> Any:
        return Queued(self, body, self.stream, always)


class Queued:
    """A call whose work may not be done yet.

    Args:
        cuda: The library.
        body: (memory, call) -> (code, a function that copies the results to the host).
        stream: The stream; None for the default one.
        always: Whether a call that failed has results.
    """

    def __init__(self, cuda: CudaLibrary, body: Any, stream: int | None, always: bool) -> None:
        self.memory = memory = Memory(cuda.library, stream, cuda.workspace)
        try:
            allocate = ALLOCATE(lambda _, size: memory.allocate_workspace(size))
            self.errors = memory.put(np.array(NO_ERRORS, np.uint64))
            call = Call(stream, ctypes.cast(allocate, ctypes.c_void_p), None, self.errors)
            self.code, collect = body(memory, ctypes.byref(call))
        except BaseException:
            memory.free()
            raise
        self.collect = collect if self.code == 0 or always else list

    def result(self) -> Result:
        """Waits for the work and returns its results."""
        try:
            arrays = self.collect()
            found = self.memory.get(self.errors, len(NO_ERRORS), np.uint64)
            self.memory.check_fences()
            return Result(self.code, arrays, tuple(int(e) for e in found))
        finally:
            self.memory.free()
