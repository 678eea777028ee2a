"""The CUDA library on NumPy arrays, which are copied to the device and back.

The same code calls the emulated library and, on a machine with a GPU, the real one.
"""

from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

Array = Any
RULES = {  # name -> (number, number of slots, hyperparameters)
    "sgd": (0, 0, (0.1, 0.01)),
    "momentum": (1, 1, (0.1, 0.0, 0.9, 1.0)),
    "adagrad": (2, 1, (0.1, 0.001, 1e-7)),
    "rowwise_adagrad": (3, 1, (0.1, 0.0, 1e-7)),
    "lazy_adam": (4, 2, (0.01, 0.0, 0.9, 0.999, 1e-8)),
    "ftrl": (5, 2, (0.1, 0.0, -0.5, 0.001, 0.01, 0.02)),
}
NO_ERRORS = (0, 2**64 - 1, 0, 0, 0, 0)


def _struct(name: str, fields: str) -> type[ctypes.Structure]:
    types = {
        "p": ctypes.c_void_p,
        "i": ctypes.c_int,
        "q": ctypes.c_int64,
        "Q": ctypes.c_uint64,
        "f": ctypes.c_float,
        "h": ctypes.c_float * 8,
        "s": ctypes.c_void_p * 2,
    }
    pairs = [f.split(":") for f in fields.split()]
    return type(name, (ctypes.Structure,), {"_fields_": [(n, types[t]) for n, t in pairs]})


# The structs of cc/cuda/twml_cuda.h.
Call = _struct("Call", "stream:p allocate:p user:p errors:p")
Batch = _struct("Batch", "ids:p wide_ids:i values:p row_splits:p num_entries:q num_rows:q")
Table = _struct("Table", "data:p bfloat16:i rows:q dim:q")
Groups = _struct("Groups", "ids:p splits:p num_groups:p rows:p values:p num_entries:q num_rows:q")
Rule = _struct("Rule", "rule:i hyper:h seed:Q slots:s")
Buckets = _struct(
    "Buckets",
    "feature_ids:p boundaries:p splits:p num_features:q num_boundaries:q side:i missing:i "
    "unknown:i keep_inputs:i hashing:i bits:i",
)
MaxNorm = _struct(
    "MaxNorm", "max_abs:p bias:p input_dim:q epsilon:f decay:f nonfinite:i training:i"
)
_ALLOCATE = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)


@dataclass
class Csr:
    """A batch of NumPy arrays. row_splits is None if entry k is row k."""

    ids: Array
    values: Array | None
    row_splits: Array | None

    @property
    def num_rows(self) -> int:
        return len(self.ids) if self.row_splits is None else len(self.row_splits) - 1


@dataclass
class Result:
    """What a function of the library has written, its return code, and the errors it reported."""

    code: int
    arrays: list[Array]
    errors: tuple[int, ...]


# Bytes of ones (NaNs, or negative integers) before and after each array. Kernels that read them get
# wrong results, and those that write them are found. The address sanitizer does better without.
_FENCE = 0 if "asan" in os.environ.get("LD_PRELOAD", "") else 4096


@dataclass
class _Memory:
    """The arrays of one call on the device."""

    library: Any
    pointers: list[int] = field(default_factory=list)
    fenced: list[tuple[int, int]] = field(default_factory=list)  # (first byte, bytes) of arrays
    budget: int | None = None  # bytes that the library may allocate

    def allocate(self, size: int) -> int | None:
        if self.budget is not None:
            if size > self.budget:
                return None
            self.budget -= size
        pointer = self.library.twml_cuda_allocate(max(size, 1))
        assert pointer, "the device is out of memory"
        self.pointers.append(pointer)
        return pointer

    def put(self, array: Array | None) -> int | None:
        if array is None:
            return None
        data = np.frombuffer(np.ascontiguousarray(array).tobytes(), np.uint8)
        fence = np.full(_FENCE, 255, np.uint8)
        data = np.concatenate([fence, data, fence])
        pointer = self.allocate(data.nbytes)
        assert pointer is not None
        assert self.library.twml_cuda_copy(pointer, data.ctypes.data, data.nbytes) == 0
        self.fenced.append((pointer + _FENCE, array.nbytes))
        return pointer + _FENCE

    def check_fences(self) -> None:
        for first, size in self.fenced:
            for fence in (first - _FENCE, first + size):
                assert (self.get(fence, _FENCE, np.uint8) == 255).all(), "written out of bounds"

    def get(self, pointer: int, shape: Any, dtype: Any) -> Array:
        array = np.empty(shape, dtype)
        assert self.library.twml_cuda_copy(array.ctypes.data, pointer, array.nbytes) == 0
        return array

    def free(self) -> None:
        for pointer in self.pointers:
            assert self.library.twml_cuda_free(pointer) == 0


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

        def run(memory: _Memory, call: Any) -> tuple[int, list[Array]]:
            outs = [
                memory.put(np.full((b.num_rows, t.shape[1]), np.nan, np.float32))
                for b, t in zip(batches, tables, strict=True)
            ]
            code = self.library.twml_cuda_sparse_linear(
                call,
                len(batches),
                (Batch * len(batches))(*(_batch(memory, b) for b in batches)),
                (Table * len(batches))(*(_table(memory.put(t), t) for t in tables)),
                (ctypes.c_void_p * len(batches))(*outs),
            )
            shapes = [(b.num_rows, t.shape[1]) for b, t in zip(batches, tables, strict=True)]
            return code, [memory.get(o, s, np.float32) for o, s in zip(outs, shapes, strict=True)]

        return self._run(run)

    def values_grad(self, batch: Csr, table: Array, grad: Array) -> Result:
        """The gradient with respect to the values."""

        def run(memory: _Memory, call: Any) -> tuple[int, list[Array]]:
            out = memory.put(np.full(len(batch.ids), np.nan, np.float32))
            code = self.library.twml_cuda_values_grad(
                call,
                ctypes.byref(_batch(memory, batch)),
                ctypes.byref(_table(memory.put(table), table)),
                ctypes.c_void_p(memory.put(grad)),
                ctypes.c_void_p(out),
            )
            return code, [memory.get(out, len(batch.ids), np.float32)]

        return self._run(run)

    def weights_grad(self, batch: Csr, input_dim: int, grad: Array) -> Result:
        """The gradient with respect to the table, as unique ids and their rows."""

        def run(memory: _Memory, call: Any) -> tuple[int, list[Array]]:
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

        def run(memory: _Memory, call: Any) -> tuple[int, list[Array]]:
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
                (Table * n)(*(_table(p[0], t) for p, t in zip(pointers, tables, strict=True))),
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

        def run(memory: _Memory, call: Any) -> tuple[int, list[Array]]:
            n = len(batch.ids)
            pointers = (memory.put(a) for a in (features, boundaries, splits))
            buckets = Buckets(*pointers, len(features), len(boundaries), **o)
            csr = _batch(memory, batch)
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

        def run(memory: _Memory, call: Any) -> tuple[int, list[Array]]:
            n = len(batch.ids)
            state = memory.put(max_abs)
            norm = MaxNorm(state, memory.put(bias), len(max_abs), **options)
            outs = [memory.put(np.full(n, np.nan, np.float32)) for _ in range(2)]
            code = self.library.twml_cuda_max_norm(
                call,
                ctypes.byref(_batch(memory, batch)),
                ctypes.byref(norm),
                *(ctypes.c_void_p(o) for o in outs),
            )
            arrays = [memory.get(o, n, np.float32) for o in outs]
            return code, [*arrays, memory.get(state, len(max_abs), np.float32)]

        return self._run(run)

    def reports(self) -> Reports:
        """New reports of bad input."""
        return Reports(self.library)

    def _group(self, memory: _Memory, call: Any, batch: Csr, input_dim: int) -> tuple[Any, int]:
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
            ctypes.byref(_batch(memory, batch)),
            ctypes.c_int64(input_dim),
            ctypes.byref(groups),
        )
        return groups, code

    def _run(self, body: Any) -> Result:
        memory = _Memory(self.library)
        allocate = _ALLOCATE(lambda _, size: memory.allocate(size))
        errors = memory.put(np.array(NO_ERRORS, np.uint64))
        call = Call(None, ctypes.cast(allocate, ctypes.c_void_p), None, errors)
        try:
            code, arrays = body(memory, ctypes.byref(call))
            found = memory.get(errors, len(NO_ERRORS), np.uint64)
            memory.check_fences()
            return Result(code, arrays, tuple(int(e) for e in found))
        finally:
            memory.free()


class _Errors(ctypes.Structure):
    _fields_ = [(f"e{i}", ctypes.c_uint64) for i in range(len(NO_ERRORS))]


class Reports:
    """The reports of bad input of a device, and the host's copy of them.

    Args:
        library: The loaded library.
    """

    def __init__(self, library: Any) -> None:
        self.library = library
        for name in ("new", "device", "fetch", "reset", "seen"):
            getattr(library, f"twml_cuda_reports_{name}").argtypes = [ctypes.c_void_p] * (
                2 if name in ("fetch", "reset") else 1
            )
        library.twml_cuda_reports_new.restype = ctypes.c_void_p
        library.twml_cuda_reports_device.restype = ctypes.c_void_p
        library.twml_cuda_reports_seen.restype = _Errors
        self.pointer = library.twml_cuda_reports_new(None)
        self.synchronize()

    def report_bad_ids(self, number: int) -> None:
        """Does on the device what kernels do that find bad ids."""
        device = self.library.twml_cuda_reports_device(self.pointer)
        value = np.array([number], np.uint64)
        assert self.library.twml_cuda_copy(device, value.ctypes.data, value.nbytes) == 0

    def fetch(self) -> None:
        """Queues a copy to the host."""
        assert self.library.twml_cuda_reports_fetch(self.pointer, None) == 0

    def reset(self) -> None:
        """Clears the reports and the copy."""
        assert self.library.twml_cuda_reports_reset(self.pointer, None) == 0

    def seen(self) -> tuple[int, ...]:
        """The copy of the host."""
        errors = self.library.twml_cuda_reports_seen(self.pointer)
        return tuple(getattr(errors, name) for name, _ in _Errors._fields_)

    def synchronize(self) -> None:
        """Waits for what is queued."""
        assert self.library.twml_cuda_synchronize(None) == 0


def _batch(memory: _Memory, batch: Csr) -> Any:
    return Batch(
        memory.put(batch.ids),
        batch.ids.dtype == np.int64,
        memory.put(batch.values),
        memory.put(batch.row_splits),
        len(batch.ids),
        batch.num_rows,
    )


def _table(pointer: int | None, table: Array) -> Any:
    return Table(pointer, table.dtype == np.uint16, *table.shape)


class Reference:
    """The same results of the CPU's kernels.

    Args:
        path: The library of reference.cc.
    """

    def __init__(self, path: Path) -> None:
        self.library = ctypes.CDLL(str(path))
        self.library.reference_simd_level.restype = ctypes.c_char_p

    @property
    def level(self) -> str:
        """The SIMD level of the kernels."""
        return str(self.library.reference_simd_level().decode())

    def sparse_linear(self, batch: Csr, table: Array) -> Array:
        out = np.empty((batch.num_rows, table.shape[1]), np.float32)
        self._call("sparse_linear", *_csr(batch), *_matrix(table), _p(out))
        return out

    def values_grad(self, batch: Csr, table: Array, grad: Array) -> Array:
        out = np.empty(len(batch.ids), np.float32)
        csr = _csr(batch)
        self._call("values_grad", *csr[:2], *csr[3:], *_matrix(table), _p(grad), _p(out))
        return out

    def weights_grad(self, batch: Csr, input_dim: int, grad: Array) -> tuple[Array, Array]:
        n, dim = len(batch.ids), grad.shape[1]
        ids, out = np.empty_like(batch.ids), np.empty((n, dim), np.float32)
        number = ctypes.c_int64()
        sizes = ctypes.c_int64(input_dim), ctypes.c_int64(dim)
        arrays = _p(grad), _p(ids), _p(out), ctypes.byref(number)
        self._call("weights_grad", *_csr(batch), *sizes, *arrays)
        return ids[: number.value], out[: number.value]

    def update(
        self,
        batch: Csr,
        grad: Array,
        table: Array,
        slots: list[Array],
        rule: str,
        seed: int = 7,
        hyper: Any = None,
    ) -> list[Array]:
        table, slots = table.copy(), [s.copy() for s in slots]
        number, _, default = RULES[rule]
        padded = [_p(s) for s in slots] + [None] * (2 - len(slots))
        self._call(
            "update",
            *_csr(batch),
            *_matrix(table),
            _p(grad),
            number,
            (ctypes.c_float * 8)(*(default if hyper is None else hyper)),
            ctypes.c_uint64(seed),
            *padded,
        )
        return [table, *slots]

    def _call(self, name: str, *arguments: Any) -> None:
        assert getattr(self.library, f"reference_{name}")(*arguments) == 0


def _p(array: Array | None) -> Any:
    return None if array is None else ctypes.c_void_p(array.ctypes.data)


def _csr(batch: Csr) -> list[Any]:
    return [
        _p(batch.ids),
        int(batch.ids.dtype == np.int64),
        _p(batch.values),
        _p(batch.row_splits),
        ctypes.c_int64(len(batch.ids)),
        ctypes.c_int64(batch.num_rows),
    ]


def _matrix(table: Array) -> list[Any]:
    rows, dim = table.shape
    return [_p(table), int(table.dtype == np.uint16), ctypes.c_int64(rows), ctypes.c_int64(dim)]
