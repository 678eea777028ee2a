"""The CPU's kernels on NumPy arrays, as the reference of the CUDA library."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import numpy as np

from tests.cuda.interface import RULES, Array, Csr


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

    def max_norm(
        self,
        ids: Array,
        values: Array,
        max_abs: Array,
        bias: Array | None,
        training: bool,
        epsilon: float,
        decay: float,
    ) -> list[Array]:
        """The values, their scales and the new state; what is not finite counts as 0."""
        ids, state = ids.astype(np.int64), max_abs.copy()
        out, scale = np.empty_like(values), np.empty_like(values)
        n, rows = ctypes.c_int64(len(ids)), ctypes.c_int64(len(state))
        numbers = int(training), ctypes.c_float(epsilon), ctypes.c_float(decay)
        arrays = _p(ids), _p(values), n, _p(state), rows, _p(bias)
        self._call("max_norm", *arrays, *numbers, _p(out), _p(scale))
        return [out, scale, state]

    def discretize(
        self, batch: Csr, features: Array, boundaries: Array, splits: Array, **o: int
    ) -> list[Array]:
        """Discretizes with the options of `CudaLibrary.discretize`."""
        n, ids = len(batch.ids), batch.ids.astype(np.int64)
        ids_out, values_out = np.empty(2 * n, np.int64), np.empty(2 * n, np.float32)
        splits_out, number = np.empty_like(batch.row_splits), ctypes.c_int64()
        names = ("side", "missing", "unknown", "keep_inputs", "hashing", "bits")
        self._call(
            "discretize",
            *(_p(ids), _p(batch.values), _p(batch.row_splits)),
            *(ctypes.c_int64(n), ctypes.c_int64(batch.num_rows)),
            *(_p(features), ctypes.c_int64(len(features))),
            *(_p(boundaries), ctypes.c_int64(len(boundaries)), _p(splits)),
            *(int(o[name]) for name in names[:-1]),
            ctypes.c_int64(o["bits"]),
            *(_p(ids_out), _p(values_out), _p(splits_out), ctypes.byref(number)),
        )
        # Where the number of entries does not change, the CPU writes no values: all are 1.
        return [ids_out[: number.value], values_out[: number.value], splits_out]

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
