"""The CUDA library on NumPy arrays, which are copied to the device and back.

The same code calls the emulated library and, on a machine with a GPU, the real one.
"""

from __future__ import annotations

import ctypes
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


class CudaLibrary:
    """The functions of cc/cuda/twml_cuda.h.

    Args:
        path: The library.
    """

    def __init__(self, path: Path) -> None:
        self.library = ctypes.CDLL(str(path))
        self.library.twml_cuda_allocate.restype = ctypes.c_void_p
        self.library.twml_cuda_allocate.argtypes = [ctypes.c_size_t]
        self.library.twml_cuda_free.argtypes = [ctypes.c_void_p]
        self.library.twml_cuda_copy.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
        assert self.library.twml_cuda_abi() == 2
        self.is_emulated = hasattr(self.library, "cuda_on_cpu_seed")
        if self.is_emulated:
            # As on a GPU, work is done after the call that queues it.
            self.library.cuda_on_cpu_defer(1)
            self.library.cuda_on_cpu_fail.argtypes = [ctypes.c_int64]
            self.library.cuda_on_cpu_fail.restype = ctypes.c_int64

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

    def sparse_linear(self, batches: list[Csr], tables: list[Array]) -> Result:
        """The products of batches with their tables."""

        def run(memory: Memory, call: Any) -> tuple[int, list[Array]]:
            outs = [
                memory.put(np.full((b.num_rows, t.shape[1]), np.nan, np.float32))
                for b, t in zip(batches, tables, strict=True)
            ]
            code = self.library.twml_cuda_sparse_linear(
                call,
                len(batches),
                (Batch * len(batches))(*(batch_of(memory, b) for b in batches)),
                (Table * len(batches))(*(table_of(memory.put(t), t) for t in tables)),
                (ctypes.c_void_p * len(batches))(*outs),
            )
            shapes = [(b.num_rows, t.shape[1]) for b, t in zip(batches, tables, strict=True)]
            return code, [memory.get(o, s, np.float32) for o, s in zip(outs, shapes, strict=True)]

        return self._run(run)

    def values_grad(self, batch: Csr, table: Array, grad: Array) -> Result:
        """The gradient with respect to the values."""

        def run(memory: Memory, call: Any) -> tuple[int, list[Array]]:
            out = memory.put(np.full(len(batch.ids), np.nan, np.float32))
            code = self.library.twml_cuda_values_grad(
                call,
                ctypes.byref(batch_of(memory, batch)),
                ctypes.byref(table_of(memory.put(table), table)),
                ctypes.c_void_p(memory.put(grad)),
                ctypes.c_void_p(out),
            )
            return code, [memory.get(out, len(batch.ids), np.float32)]

        return self._run(run)

    def weights_grad(self, batch: Csr, input_dim: int, grad: Array) -> Result:
        """The gradient with respect to the table, as unique ids and their rows."""

        def run(memory: Memory, call: Any) -> tuple[int, list[Array]]:
            dim = grad.shape[1]
            out = memory.put(np.full((len(batch.ids), dim), np.nan, np.float32))
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
            if code != 0:
                return code, []
            number = int(memory.get(groups.num_groups, (), np.int64))
            ids = memory.get(groups.ids, len(batch.ids), np.int64)[:number]
            return code, [ids, memory.get(out, (len(batch.ids), dim), np.float32)[:number]]

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
        budget: int | None = None,
    ) -> Result:
        """Updates tables with the gradients of their batches. Returns each table and its slots."""

        def run(memory: Memory, call: Any) -> tuple[int, list[Array]]:
            groups, rows, pointers, entries = [], [], [], []
            code = 0
            for i, (batch, table) in enumerate(zip(batches, tables, strict=True)):
                # Copies to the device wait for it: none is between the groups and their use.
                rows.append(memory.put(grads[i]))
                pointers.append([memory.put(a) for a in (table, *slots[i])])
                group, code = self._group(memory, call, batch, table.shape[0])
                if code != 0:
                    return code, []
                groups.append(group)
                number, _, hyper = RULES[rules[i]]
                hyper = hyper if hypers is None else hypers[i]
                entries.append(
                    Rule(
                        number,
                        (ctypes.c_float * 8)(*hyper),
                        seed,
                        (ctypes.c_void_p * 2)(*pointers[i][1:]),
                    )
                )
            memory.budget = budget
            n = len(batches)
            code = self.library.twml_cuda_update_groups(
                call,
                n,
                (Groups * n)(*groups),
                (ctypes.c_void_p * n)(*rows),
                (Table * n)(*(table_of(p[0], t) for p, t in zip(pointers, tables, strict=True))),
                (Rule * n)(*entries),
            )
            return code, [
                memory.get(p, a.shape, a.dtype)
                for i in range(n)
                for p, a in zip(pointers[i], (tables[i], *slots[i]), strict=True)
            ]

        return self._run(run)

    def discretize(self, batch: Csr, features: Array, boundaries: Array, splits: Array, **o: Any):
        """Discretizes a batch; the options have the names of the struct. Returns a CSR triple."""

        def run(memory: Memory, call: Any) -> tuple[int, list[Array]]:
            n = len(batch.ids)
            pointers = (memory.put(a) for a in (features, boundaries, splits))
            buckets = Buckets(*pointers, len(features), len(boundaries), **o)
            csr = batch_of(memory, batch)
            ends = memory.put(np.full(n, -1, np.int64))
            splits_out = memory.put(np.full(batch.num_rows + 1, -1, np.int64))
            arguments = (call, ctypes.byref(csr), ctypes.byref(buckets), ctypes.c_void_p(ends))
            code = self.library.twml_cuda_discretize_sizes(*arguments, ctypes.c_void_p(splits_out))
            if code != 0:
                return code, []
            total = int(memory.get(ends, n, np.int64)[-1]) if n else 0
            ids = memory.put(np.full(total, -1, np.int64))
            values = memory.put(np.full(total, np.nan, np.float32))
            code = self.library.twml_cuda_discretize(
                *arguments, ctypes.c_void_p(ids), ctypes.c_void_p(values)
            )
            return code, [
                memory.get(ids, total, np.int64),
                memory.get(values, total, np.float32),
                memory.get(splits_out, batch.num_rows + 1, np.int64),
            ]

        return self._run(run)

    def max_norm(self, batch: Csr, max_abs: Array, bias: Array | None, **options: Any) -> Result:
        """Normalizes a batch. Returns the values, their scales, and the new state."""

        def run(memory: Memory, call: Any) -> tuple[int, list[Array]]:
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
            arrays = [memory.get(o, n, np.float32) for o in outs]
            return code, [*arrays, memory.get(state, len(max_abs), np.float32)]

        return self._run(run)

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

    def _run(self, body: Any) -> Result:
        memory = Memory(self.library)
        allocate = ALLOCATE(lambda _, size: memory.allocate(size))
        errors = memory.put(np.array(NO_ERRORS, np.uint64))
        call = Call(None, ctypes.cast(allocate, ctypes.c_void_p), None, errors)
        try:
            code, arrays = body(memory, ctypes.byref(call))
            found = memory.get(errors, len(NO_ERRORS), np.uint64)
            memory.check_fences()
            return Result(code, arrays, tuple(int(e) for e in found))
        finally:
            memory.free()
