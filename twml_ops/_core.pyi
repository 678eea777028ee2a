"""The kernels of twml_ops on NumPy arrays. Written by tools/stubs.py: `make stubs`."""

import collections.abc
from typing import Any

import numpy
import numpy.typing

class Buckets:
    """The boundaries of features, checked and indexed once, for many batches."""

    def __init__(self, feature_ids: numpy.typing.ArrayLike, boundaries: numpy.typing.ArrayLike, boundary_splits: numpy.typing.ArrayLike, *, num_threads: int = 0) -> None:
        """"""

    def hashing_discretize(self, ids: numpy.typing.ArrayLike, values: numpy.typing.ArrayLike | None, row_splits: numpy.typing.ArrayLike, *, output_bits: int, side: str = 'left', missing: str = 'bucket', unknown: str = 'pass', keep_inputs: bool = False, num_threads: int = 0) -> tuple[Any, ...]:
        """As the function of this name."""

    def percentile_discretize(self, ids: numpy.typing.ArrayLike, values: numpy.typing.ArrayLike | None, row_splits: numpy.typing.ArrayLike, *, pass_through_bits: int, side: str = 'left', missing: str = 'bucket', unknown: str = 'pass', keep_inputs: bool = False, num_threads: int = 0) -> tuple[Any, ...]:
        """As the function of this name."""

class QuantileSketch:
    """Quantiles of many streams at once, one mergeable sketch a feature (KLL; see cc/core/quantile_sketch.h). A rank is wrong by more than epsilon times the feature's total weight with probability at most 1 %; a feature of at most exact_values distinct values is kept exactly."""

    def __init__(self, epsilon: float = 0.001, exact_values: int = 256, weighted: bool = False) -> None:
        """"""

    def boundaries(self, feature_ids: numpy.typing.ArrayLike, num_bins: numpy.typing.ArrayLike, side: str = 'left', *, num_threads: int = 0) -> tuple[Any, ...]:
        """-> (boundaries float32, splits int64 [features + 1]) that cut each feature into at most num_bins[f] bins of equal weight; into one a value where there are no more values."""

    def describe(self, feature_ids: numpy.typing.ArrayLike) -> dict[str, Any]:
        """-> dict of float64 [features]: weight (of values), missing (weight of NaNs), rank_error (proven bound, in weight) and held (numbers in memory)."""

    @property
    def epsilon(self) -> float:
        ...

    @property
    def exact_values(self) -> int:
        ...

    @property
    def feature_ids(self) -> numpy.typing.NDArray[numpy.int64]:
        """The features seen, ascending."""

    @staticmethod
    def from_state(state: dict[str, Any]) -> QuantileSketch:
        """The sketch whose state() it is."""

    @staticmethod
    def from_states(states: collections.abc.Iterable[Any]) -> QuantileSketch:
        """The sketch whose states these are, each of other features; read one by one."""

    def merge(self, other: QuantileSketch, *, num_threads: int = 0) -> None:
        """Takes in all that another sketch of the same options has seen."""

    @property
    def nbytes(self) -> int:
        """Memory held."""

    def quantiles(self, feature_ids: numpy.typing.ArrayLike, probabilities: numpy.typing.ArrayLike, *, num_threads: int = 0) -> numpy.typing.NDArray[numpy.float32]:
        """-> float32 [features, probabilities]: the least value whose rank is that share of the weight; NaN for a feature without values."""

    def ranks(self, ids: numpy.typing.ArrayLike, values: numpy.typing.ArrayLike, *, num_threads: int = 0) -> numpy.typing.NDArray[numpy.float64]:
        """-> float64: the weight of the values <= values[k] of feature ids[k]."""

    def state(self, first: int = 0, last: int | None = None) -> dict[str, Any]:
        """-> dict of plain arrays, equal sketches giving equal ones: of all features, or of feature_ids[first:last] (neither negative)."""

    def update(self, ids: numpy.typing.ArrayLike, values: numpy.typing.ArrayLike, weights: numpy.typing.ArrayLike | None = None, *, num_threads: int = 0) -> None:
        """Takes in values[k] of feature ids[k], with weights[k] or 1. A NaN counts as missing."""

    def values(self, feature_id: int) -> tuple[Any, ...]:
        """-> (values float32 ascending, weights float64) held for one feature."""

    @property
    def weighted(self) -> bool:
        ...

def hash_ids(ids: numpy.typing.ArrayLike, bits: int, salt: int = 0, *, num_threads: int = 0) -> numpy.typing.NDArray[numpy.int64]:
    """A 64-bit mix of (salt, id), reduced to [0, 2^bits). -> the shape of ids"""

def hashing_discretize(ids: numpy.typing.ArrayLike, values: numpy.typing.ArrayLike | None, row_splits: numpy.typing.ArrayLike, feature_ids: numpy.typing.ArrayLike, boundaries: numpy.typing.ArrayLike, boundary_splits: numpy.typing.ArrayLike, *, output_bits: int, side: str = 'left', missing: str = 'bucket', unknown: str = 'pass', keep_inputs: bool = False, num_threads: int = 0) -> tuple[Any, ...]:
    """percentile_discretize with ids hashed from (feature, bucket) into [0, 2^output_bits)."""

def max_norm(ids: numpy.typing.ArrayLike, values: numpy.typing.ArrayLike, max_abs: numpy.typing.NDArray[Any], bias: numpy.typing.ArrayLike | None = None, training: bool = False, *, epsilon: float = 1e-06, nonfinite: str = 'error', decay: float = 1.0, num_threads: int = 0) -> numpy.typing.NDArray[numpy.float32]:
    """y[k] = clip(values[k] / max(m, epsilon), -1, 1) + bias[ids[k]] with m = max_abs[ids[k]], which training first raises in place to the batch's largest |values|. -> [K]"""

def mdl_boundaries(sketches: collections.abc.Iterable[Any], feature_ids: numpy.typing.ArrayLike, side: str = 'left', *, num_threads: int = 0) -> tuple[Any, ...]:
    """-> (boundaries, splits [features + 1]) by minimum description length (Fayyad & Irani 1993) from a sketch for each class."""

def online_standardize(ids: numpy.typing.ArrayLike, values: numpy.typing.ArrayLike, moments: numpy.typing.NDArray[Any], bias: numpy.typing.ArrayLike | None = None, training: bool = False, *, epsilon: float = 1e-06, clip: float = 10.0, decay: float = 1.0, nonfinite: str = 'error', num_threads: int = 0) -> numpy.typing.NDArray[numpy.float32]:
    """y[k] = clip((values[k] - mean) / max(sd, epsilon), -clip, clip) + bias[ids[k]] with the moments [N, 3] (count, mean, M2), which training first updates in place. -> [K]"""

def percentile_discretize(ids: numpy.typing.ArrayLike, values: numpy.typing.ArrayLike | None, row_splits: numpy.typing.ArrayLike, feature_ids: numpy.typing.ArrayLike, boundaries: numpy.typing.ArrayLike, boundary_splits: numpy.typing.ArrayLike, *, pass_through_bits: int, side: str = 'left', missing: str = 'bucket', unknown: str = 'pass', keep_inputs: bool = False, num_threads: int = 0) -> tuple[Any, ...]:
    """Each (feature, value) to (offset of the feature + bucket, 1): (ids, values, row_splits). boundary_splits[f] .. boundary_splits[f + 1] are the boundaries of feature_ids[f]."""

def row_splits_from_indices(row_indices: numpy.typing.ArrayLike, num_rows: int, *, num_threads: int = 0) -> numpy.typing.NDArray[numpy.int64]:
    """CSR offsets [num_rows + 1] of row-major row indices."""

def simd_level() -> str:
    """The SIMD level the kernels run at: 'avx512', 'avx2' or 'baseline'."""

def sparse_linear(ids: numpy.typing.ArrayLike, values: numpy.typing.ArrayLike | None, row_splits: numpy.typing.ArrayLike, weights: numpy.typing.ArrayLike, *, num_threads: int = 0) -> numpy.typing.NDArray[numpy.float32]:
    """y[b] = sum of values[k] * weights[ids[k]] over row b. values=None: all 1. -> [B, D]"""

def sparse_linear_values_grad(ids: numpy.typing.ArrayLike, row_splits: numpy.typing.ArrayLike, weights: numpy.typing.ArrayLike, grad: numpy.typing.ArrayLike, *, num_threads: int = 0) -> numpy.typing.NDArray[numpy.float32]:
    """Gradient by the values: [K]."""

def sparse_linear_weights_grad(ids: numpy.typing.ArrayLike, values: numpy.typing.ArrayLike | None, row_splits: numpy.typing.ArrayLike, grad: numpy.typing.ArrayLike, input_dim: int, *, num_threads: int = 0) -> tuple[Any, ...]:
    """Gradient by the weights: (unique ascending ids [U], summed rows [U, D])."""

def sum_duplicates(ids: numpy.typing.ArrayLike, rows: numpy.typing.ArrayLike, *, num_threads: int = 0) -> tuple[Any, ...]:
    """(unique ascending ids, sums of their rows in the order given)."""

def update_rules() -> dict[str, Any]:
    """The optimizers' rules by name: (num_slots, rowwise_slots, num_hyper) of each."""
