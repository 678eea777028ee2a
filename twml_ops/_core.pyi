"""The kernels of twml_ops on NumPy arrays. Written by tools/stubs.py: `make stubs`."""

from typing import Any

import numpy
import numpy.typing

class Buckets:
    """The boundaries of features, checked and indexed once, for many batches."""

    def __init__(self, feature_ids: numpy.typing.ArrayLike, boundaries: numpy.typing.ArrayLike, boundary_splits: numpy.typing.ArrayLike, *, num_threads: int = 0) -> None:
        """"""

    def hashing_discretize(self, ids: numpy.typing.ArrayLike, values: numpy.typing.ArrayLike | None, row_splits: numpy.typing.ArrayLike, *, output_bits: int, side: str = 'left', missing: str = 'bucket', unknown: str = 'pass', num_threads: int = 0) -> tuple[Any, ...]:
        """As the function of this name."""

    def percentile_discretize(self, ids: numpy.typing.ArrayLike, values: numpy.typing.ArrayLike | None, row_splits: numpy.typing.ArrayLike, *, pass_through_bits: int, side: str = 'left', missing: str = 'bucket', unknown: str = 'pass', num_threads: int = 0) -> tuple[Any, ...]:
        """As the function of this name."""

def hash_ids(ids: numpy.typing.ArrayLike, bits: int, salt: int = 0, *, num_threads: int = 0) -> numpy.typing.NDArray[numpy.int64]:
    """A 64-bit mix of (salt, id), reduced to [0, 2^bits). -> the shape of ids"""

def hashing_discretize(ids: numpy.typing.ArrayLike, values: numpy.typing.ArrayLike | None, row_splits: numpy.typing.ArrayLike, feature_ids: numpy.typing.ArrayLike, boundaries: numpy.typing.ArrayLike, boundary_splits: numpy.typing.ArrayLike, *, output_bits: int, side: str = 'left', missing: str = 'bucket', unknown: str = 'pass', num_threads: int = 0) -> tuple[Any, ...]:
    """percentile_discretize with ids hashed from (feature, bucket) into [0, 2^output_bits)."""

def max_norm(ids: numpy.typing.ArrayLike, values: numpy.typing.ArrayLike, max_abs: numpy.typing.NDArray[Any], bias: numpy.typing.ArrayLike | None = None, training: bool = False, *, epsilon: float = 1e-06, nonfinite: str = 'error', num_threads: int = 0) -> numpy.typing.NDArray[numpy.float32]:
    """y[k] = clip(values[k] / max(m, epsilon), -1, 1) + bias[ids[k]] with m = max_abs[ids[k]], which training first raises in place to the batch's largest |values|. -> [K]"""

def percentile_discretize(ids: numpy.typing.ArrayLike, values: numpy.typing.ArrayLike | None, row_splits: numpy.typing.ArrayLike, feature_ids: numpy.typing.ArrayLike, boundaries: numpy.typing.ArrayLike, boundary_splits: numpy.typing.ArrayLike, *, pass_through_bits: int, side: str = 'left', missing: str = 'bucket', unknown: str = 'pass', num_threads: int = 0) -> tuple[Any, ...]:
    """Each (feature, value) to (offset of the feature + bucket, 1): (ids, values, row_splits). boundary_splits[f] .. boundary_splits[f + 1] are the boundaries of feature_ids[f]."""

def row_splits_from_indices(row_indices: object, num_rows: int, *, num_threads: int = 0) -> numpy.typing.NDArray[numpy.int64]:
    """CSR offsets [num_rows + 1] of row-major row indices."""

def simd_level() -> str:
    """The SIMD level the kernels run at: 'avx512', 'avx2' or 'baseline'."""

def sparse_linear(ids: object, values: object, row_splits: object, weights: object, *, num_threads: int = 0) -> numpy.typing.NDArray[numpy.float32]:
    """y[b] = sum of values[k] * weights[ids[k]] over row b. values=None: all 1. -> [B, D]"""

def sparse_linear_values_grad(ids: object, row_splits: object, weights: object, grad: object, *, num_threads: int = 0) -> numpy.typing.NDArray[numpy.float32]:
    """Gradient by the values: [K]."""

def sparse_linear_weights_grad(ids: object, values: object, row_splits: object, grad: object, input_dim: int, *, num_threads: int = 0) -> tuple[Any, ...]:
    """Gradient by the weights: (unique ascending ids [U], summed rows [U, D])."""

def sum_duplicates(ids: object, rows: object, *, num_threads: int = 0) -> tuple[Any, ...]:
    """(unique ascending ids, sums of their rows in the order given)."""
