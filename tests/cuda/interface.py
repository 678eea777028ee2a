"""The structs of cc/cuda/twml_cuda.h, and what they are made of in the tests."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

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
ALLOCATE = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)


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
