"""Calls every function of `_core` with arguments of every kind.

Each call must give the right result or raise an exception.
"""

import inspect
import itertools

import numpy as np
import pytest

from twml_ops import _core as core

IDS = np.array([4, 1, 4, 0])
VALUES = np.float32([0.5, -2, 1, 3])
SPLITS = np.array([0, 1, 4])
WEIGHTS = np.arange(10, dtype=np.float32).reshape(5, 2)
GRAD = np.float32([[1, 2], [3, 4]])
BATCH = {"ids": IDS, "values": VALUES, "row_splits": SPLITS}
BUCKETS = {
    "feature_ids": np.array([0, 4]),
    "boundaries": np.float32([0, 1, 2]),
    "boundary_splits": np.array([0, 1, 3]),
}


def sketch(**options):
    made = core.QuantileSketch(0.1, 4, **options)
    made.update(IDS, VALUES)
    return made


def sketch_with_runs():
    """A sketch whose state has sorted runs."""
    made = sketch()
    made.update(np.repeat(IDS, 50), np.arange(200, dtype=np.float32))
    return made


def of_sketch(name, **options):
    """A method of a new sketch as a function. That of `update` returns the new state."""

    def call(**arguments):
        made = sketch(**options)
        result = getattr(made, name)(**arguments)
        return made.state() if name == "update" else result

    return call


def reuse_distances(**arguments):
    made = core.ReuseDistances(64)
    made.add(**arguments)
    return made.hits(np.array([1, 4]))


def of_reuse_distances(name):
    made = core.ReuseDistances(64)
    made.add(IDS)
    return getattr(made, name)


def of_buckets(name):
    return lambda **arguments: getattr(core.Buckets(**BUCKETS), name)(**arguments)


def from_state(**state):
    return core.QuantileSketch.from_state(state).state()


# name → (function, array arguments, other arguments)
CALLS = {
    "sparse_linear": (core.sparse_linear, {**BATCH, "weights": WEIGHTS}, {}),
    "sparse_linear_weights_grad": (
        core.sparse_linear_weights_grad,
        {**BATCH, "grad": GRAD},
        {"input_dim": 5},
    ),
    "sparse_linear_values_grad": (
        core.sparse_linear_values_grad,
        {"ids": IDS, "row_splits": SPLITS, "weights": WEIGHTS, "grad": GRAD},
        {},
    ),
    "sum_duplicates": (core.sum_duplicates, {"ids": IDS, "rows": WEIGHTS[:4]}, {}),
    "row_splits_from_indices": (
        core.row_splits_from_indices,
        {"row_indices": np.array([0, 1, 1, 3])},
        {"num_rows": 4},
    ),
    "max_norm": (
        core.max_norm,
        {"ids": IDS, "values": VALUES, "bias": np.float32([1, 2, 3, 4, 5])},
        {"max_abs": np.ones(5, np.float32)},
    ),
    "online_standardize": (
        core.online_standardize,
        {"ids": IDS, "values": VALUES, "bias": np.float32([1, 2, 3, 4, 5])},
        {"moments": np.ones((5, 3))},
    ),
    "dynamic_lookup": (
        core.dynamic_lookup,
        {"ids": IDS},
        {
            "keys": np.arange(5),
            "last_used": np.ones(5, np.int64),
            "counts": np.ones(5, np.int64),
            "index": np.array([4, 3, 2, 1] * 4, np.int32),
            "sketch": np.zeros((4, 8), np.uint8),
            "header": np.array([1, 4, 0, 0]),
        },
    ),
    "hash_ids": (core.hash_ids, {"ids": IDS}, {"bits": 12}),
    "time_parts": (
        core.time_parts,
        {
            "data": np.frombuffer(b"2024-02-2910", np.uint8),
            "offsets": np.array([0, 0, 10, 12]),
        },
        {"part": "weekday", "unit": "seconds"},
    ),
    "hash_strings": (
        core.hash_strings,
        {"data": np.arange(9, dtype=np.uint8), "offsets": np.array([0, 0, 4, 9])},
        {"key": (1, 2)},
    ),
    "parse_delimited": (
        core.parse_delimited,
        {"text": np.frombuffer(b"1\ta\n2\t\n", np.uint8), "line_ends": np.array([4, 7])},
        {"delimiter": "\t", "kinds": "ic", "keys": [(1, 2)]},
    ),
    "csv_rows": (
        core.csv_rows,
        {"text": np.frombuffer(b'1,"a\n"\n2,\n', np.uint8)},
        {"delimiter": ","},
    ),
    "pack_ids": (core.pack_ids, {"ids": IDS}, {"input_dim": 5}),
    "unpack_ids": (core.unpack_ids, {"packed": core.pack_ids(IDS, input_dim=5)}, {}),
    "quantize_rows": (core.quantize_rows, {"rows": WEIGHTS}, {"bits": 4}),
    "quantize_scorer_rows": (core.quantize_scorer_rows, {"rows": WEIGHTS}, {"bits": 4}),
    "dequantize_rows": (
        core.dequantize_rows,
        {"quantized": core.quantize_rows(WEIGHTS, bits=4)},
        {},
    ),
    "find_keys": (core.find_keys, {"known": np.arange(5), "keys": np.arange(6)}, {}),
    "gather_dot": (
        core.gather_dot,
        {"table": WEIGHTS, "positions": np.zeros((2, 3), np.int64), "vectors": WEIGHTS[:1]},
        {},
    ),
    "tree_sums": (
        core.tree_sums,
        {
            "x": WEIGHTS,
            "ensembles": np.zeros(len(WEIGHTS), np.int64),
            "features": np.zeros(1, np.int32),
            "thresholds": np.zeros(1, np.float32),
            "missing_left": np.ones(1, np.uint8),
            "children": np.zeros((1, 2), np.int32),
            "values": np.ones(1, np.float32),
            "roots": np.zeros((1, 1), np.int32),
        },
        {"max_depth": 2},
    ),
    "percentile_discretize": (
        core.percentile_discretize,
        {**BATCH, **BUCKETS},
        {"pass_through_bits": 4},
    ),
    "hashing_discretize": (core.hashing_discretize, {**BATCH, **BUCKETS}, {"output_bits": 9}),
    "Buckets.percentile_discretize": (
        of_buckets("percentile_discretize"),
        BATCH,
        {"pass_through_bits": 4},
    ),
    "Buckets.hashing_discretize": (of_buckets("hashing_discretize"), BATCH, {"output_bits": 9}),
    "mdl_boundaries": (
        lambda **arguments: core.mdl_boundaries([sketch(), sketch()], **arguments),
        {"feature_ids": np.array([4, 0])},
        {},
    ),
    "QuantileSketch.update": (
        of_sketch("update", weighted=True),
        {"ids": IDS, "values": VALUES, "weights": np.float32([1, 2, 3, 4])},
        {},
    ),
    "QuantileSketch.quantiles": (
        of_sketch("quantiles"),
        {"feature_ids": np.array([4, 0]), "probabilities": np.array([0.0, 0.5])},
        {},
    ),
    "QuantileSketch.ranks": (of_sketch("ranks"), {"ids": IDS, "values": VALUES}, {}),
    "QuantileSketch.describe": (of_sketch("describe"), {"feature_ids": IDS}, {}),
    "QuantileSketch.boundaries": (
        of_sketch("boundaries"),
        {"feature_ids": np.array([4, 0]), "num_bins": np.array([2, 3])},
        {},
    ),
    "ReuseDistances.add": (reuse_distances, {"ids": IDS}, {}),
    "ReuseDistances.hits": (of_reuse_distances("hits"), {"sizes": np.array([1, 4])}, {}),
    "QuantileSketch.from_state": (from_state, sketch_with_runs().state(), {}),
}
# These have no array arguments, or are tested separately below.
OTHERS = {
    *("simd_level", "update_rules", "Buckets", "QuantileSketch"),
    *("ReuseDistances", "ReuseDistances.quantile"),
    *("QuantileSketch.merge", "QuantileSketch.values", "QuantileSketch.state"),
    # tests/core/test_scorer.py
    *("NativeScorer", "NativeScorer.predict", "NativeScorer.rank", "NativeScorer.reload"),
    *("NativeScorer.describe", "NativeScorer.statistics"),
    "QuantileSketch.from_states",
}
ARGUMENTS = [(name, argument) for name, (_, arrays, _) in CALLS.items() for argument in arrays]
OPTIONAL = {"bias", "weights"} | {"values", "line_ends"}  # for which None is valid


class RaisesRuntimeError:
    def __array__(self, dtype=None, copy=None):
        raise RuntimeError("no array")


class RaisesMemoryError:
    def __array__(self, dtype=None, copy=None):
        raise MemoryError("no memory")


def misaligned(array):
    raw = np.zeros(array.nbytes + 1, np.uint8)
    view = raw[1:].view(array.dtype).reshape(array.shape)
    view[...] = array
    return view


def strided(array):
    """Every other item of a larger array, along each dimension."""
    large = np.zeros([2 * size for size in array.shape], array.dtype)
    view = large[tuple(slice(None, None, 2) for _ in array.shape)]
    view[...] = array
    return view


def reversed_view(array):
    axes = tuple(range(array.ndim))
    return np.flip(np.flip(array, axes).copy(), axes)


def read_only(array):
    array = array.copy()
    array.flags.writeable = False
    return array


SAME = {
    "lists": lambda a: a.tolist(),
    "big-endian": lambda a: a.astype(a.dtype.newbyteorder(">")),
    "misaligned": misaligned,
    "not contiguous": strided,
    "negative strides": reversed_view,
    "Fortran order": np.asfortranarray,
    "read-only": read_only,
    "wider": lambda a: a.astype(np.float64 if a.dtype.kind == "f" else np.int64),
    "narrower": lambda a: a if a.dtype.kind == "f" or a.dtype.itemsize == 1 else a.astype(np.int8),
}
BAD = {
    "None": lambda a: None,
    "a word": lambda a: "three",
    "words": lambda a: a.astype(str),
    "bytes": lambda a: a.astype(bytes),
    "objects": lambda a: a.astype(object),
    "nested lists of unlike lengths": lambda a: [[1], [1, 2]],
    "a dict": lambda a: {"a": 1},
    "a function": lambda a: misaligned,
    "no array": lambda a: RaisesRuntimeError(),
    "no memory": lambda a: RaisesMemoryError(),
    "a scalar": lambda a: a.dtype.type(1),
    "one dimension more": lambda a: a[np.newaxis],
    "many dimensions": lambda a: a.reshape([1] * 20 + [-1]),
    "complex": lambda a: a.astype(complex),
    "dates": lambda a: np.zeros(a.shape, "M8[s]"),
    "records": lambda a: np.zeros(a.shape, [("x", "i8"), ("y", "f4")]),
    "larger than memory": lambda a: np.broadcast_to(a.dtype.type(0), (2**46, *a.shape[1:])),
    "as long as can be": lambda a: np.broadcast_to(a.dtype.type(0), (2**57, *a.shape[1:])),
    "no items but many columns": lambda a: np.empty((0, 2**40), a.dtype),
}
BAD_IDS = {
    "fractions": lambda a: a + 0.5,
    "whole floats": lambda a: a.astype(np.float64),
    "NaNs": lambda a: np.full(a.shape, np.nan),
    "beyond int64": lambda a: np.full(a.shape, 2**64 - 1, np.uint64),
    "booleans": lambda a: a.astype(bool),
}


def call(name, **changes):
    function, arrays, others = CALLS[name]
    return function(**{**arrays, **others, **changes})


def assert_same(got, want):
    if isinstance(want, dict):
        got, want = list(got.values()), list(want.values())
    if isinstance(want, tuple | list):
        for g, w in zip(got, want, strict=True):
            assert_same(g, w)
    else:
        np.testing.assert_array_equal(got, want)


def test_every_function_is_covered():
    found = set()
    for name, member in vars(core).items():
        if inspect.isclass(member):
            found |= {
                f"{name}.{m}"
                for m, method in vars(member).items()
                if not m.startswith("_") and not isinstance(method, property)
            } | {name}
        elif callable(member) and not name.startswith("_"):
            found.add(name)
    assert found == set(CALLS) | OTHERS


@pytest.mark.parametrize("kind", SAME)
@pytest.mark.parametrize(("name", "argument"), ARGUMENTS)
def test_any_layout_of_the_same_numbers_gives_the_same_result(name, argument, kind):
    given = SAME[kind](CALLS[name][1][argument])
    assert_same(call(name, **{argument: given}), call(name))


@pytest.mark.parametrize("kind", BAD)
@pytest.mark.parametrize(("name", "argument"), ARGUMENTS)
def test_invalid_arrays_raise_an_error(name, argument, kind):
    array = CALLS[name][1][argument]
    if kind == "None" and argument in OPTIONAL:
        return
    bad = BAD[kind](array)
    try:
        got = call(name, **{argument: bad})
    except (ValueError, TypeError, MemoryError, RuntimeError):
        return
    if name == "gather_dot" and kind == "no items but many columns":
        assert got.shape == bad.shape  # positions of no examples
        return
    # Arguments that are only ids may have any shape.
    assert name in ("hash_ids", "find_keys", "QuantileSketch.describe", "mdl_boundaries")
    assert kind in (
        "a scalar",
        "one dimension more",
        "many dimensions",
        "no items but many columns",
    )
    want = call(name, **{argument: np.ravel(bad)})
    whole = name in ("hash_ids", "find_keys")
    first = got["weight"] if isinstance(got, dict) else got if whole else got[0]
    other = want["weight"] if isinstance(want, dict) else want if whole else want[0]
    np.testing.assert_array_equal(np.ravel(first), other)


@pytest.mark.parametrize("kind", BAD_IDS)
@pytest.mark.parametrize(
    ("name", "argument"),
    [(n, a) for n, a in ARGUMENTS if CALLS[n][1][a].dtype.kind == "i"],
)
def test_ids_must_be_integers(name, argument, kind):
    bad = BAD_IDS[kind](CALLS[name][1][argument])
    with pytest.raises(ValueError, match="must be an array of integers|does not fit into int"):
        call(name, **{argument: bad})


def test_a_failed_allocation_is_a_memory_error():
    huge = np.broadcast_to(np.int64(0), (2**46,))
    with pytest.raises(MemoryError):
        core.sparse_linear(huge, None, SPLITS, WEIGHTS)
    with pytest.raises(MemoryError):
        core.hash_ids(RaisesMemoryError(), 5)


@pytest.mark.parametrize(
    "bad", [1.5, np.float32(3.0), "3", None, np.array([1, 2]), 2**64, [1]], ids=repr
)
@pytest.mark.parametrize(
    ("name", "argument"),
    [(n, a) for n, (_, _, o) in CALLS.items() for a, v in o.items() if isinstance(v, int)]
    + [("sparse_linear", "num_threads"), ("QuantileSketch.update", "num_threads")],
)
def test_numbers_must_be_integers(name, argument, bad):
    with pytest.raises(TypeError):
        call(name, **{argument: bad})


@pytest.mark.parametrize("shapes", [((2, 3), (3, 2)), ((6,), (2, 3)), ((), (1,)), ((2,), (3,))])
def test_arrays_of_different_shapes_are_rejected(shapes):
    ids, values = np.zeros(shapes[0], np.int64), np.zeros(shapes[1], np.float32)
    made = core.QuantileSketch(weighted=True)
    for method in (made.update, made.ranks):
        with pytest.raises(ValueError, match="values must have the shape of ids"):
            method(ids, values)
    with pytest.raises(ValueError, match="weights must have the shape of ids"):
        made.update(values.astype(np.int64), values, ids.astype(np.float32))
    assert made.feature_ids.size == 0


STATES = {
    "max_norm": ("max_abs", np.float32, (5,)),
    "online_standardize": ("moments", float, (5, 3)),
}


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("name", STATES)
def test_a_state_is_used_in_place_or_rejected(name, training):
    argument, dtype, shape = STATES[name]
    good = np.ones(shape, dtype)
    rejected = [misaligned(good), strided(good), good.astype(good.dtype.newbyteorder(">"))]
    rejected += [
        good.astype(int),
        good.tolist(),
        None,
        "text",
        good[np.newaxis],
        RaisesMemoryError(),
    ]
    rejected += [np.broadcast_to(dtype(0), (2**46, *shape[1:]))]
    if training:
        rejected.append(read_only(good))
    for bad in rejected:
        with pytest.raises((ValueError, TypeError)):
            call(name, **{argument: bad, "training": training})
    assert call(name, **{argument: good, "training": training}).shape == (4,)
    if not training:
        assert_same(call(name, **{argument: read_only(good)}), call(name, **{argument: good}))


def test_objects_that_are_not_sketches_are_rejected():
    made = sketch()
    for bad in ([None], [made, None], [1], [{}], None, 3, "sketches", []):
        with pytest.raises((TypeError, ValueError)):
            core.mdl_boundaries(bad, [1])
        with pytest.raises((TypeError, ValueError, KeyError)):
            core.QuantileSketch.from_states(bad)
        with pytest.raises(TypeError):
            made.merge(bad)
    for method, bad in itertools.product((made.values, made.state), (1.5, "1", None, [1], 2**70)):
        with pytest.raises(TypeError):
            method(bad)
    for state in ({}, {"config": [1.0]}, {**made.state(), "items": None}):
        with pytest.raises((ValueError, KeyError)):
            core.QuantileSketch.from_state(state)
        with pytest.raises((ValueError, KeyError)):
            core.QuantileSketch.from_states([made.state(), state])


def test_sketches_may_come_from_a_generator():
    want = core.mdl_boundaries([sketch(), sketch()], [4, 0])
    assert_same(core.mdl_boundaries((sketch() for _ in range(2)), [4, 0]), want)


@pytest.mark.parametrize("field", sketch_with_runs().state())
def test_a_state_of_another_shape_is_rejected(field):
    state = sketch_with_runs().state()
    for change in (np.transpose, np.ravel, lambda a: a[np.newaxis], lambda a: a[..., :-1]):
        bad = change(state[field])
        if bad.shape == state[field].shape:
            continue
        with pytest.raises(ValueError, match="must"):
            from_state(**{**state, field: bad})


@pytest.mark.parametrize("kind", [np.int8, np.int16, np.int64, np.uint16, np.uint64])
def test_bytes_of_another_integer_type_are_as_they_are_or_refused(kind):
    text = np.frombuffer(b"1\n", np.uint8).astype(kind)
    assert core.csv_rows(text, ",")[0].tolist() == [2]
    for bad in (-1, 256):
        if np.iinfo(kind).min <= bad <= np.iinfo(kind).max:
            with pytest.raises(ValueError, match=rf"text\[0\] = {bad} does not fit into uint8"):
                core.csv_rows(np.array([bad, 10], kind), ",")
