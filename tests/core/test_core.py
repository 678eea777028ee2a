"""Compares the NumPy bindings of the kernels with a simple reference in float64."""

import os
import subprocess
import sys
import textwrap

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twml_ops import core

LANES = (4, 8, 16)
DIMS = sorted({1, 2, 400, *(lane + d for lane in LANES for d in (-1, 0, 1)), 127, 128, 129, 257})


def random_batch(rng, row_lengths, num_ids, binary=False):
    splits = np.concatenate([[0], np.cumsum(row_lengths)]).astype(np.int64)
    ids = rng.integers(0, num_ids, splits[-1])
    values = None if binary else rng.normal(size=splits[-1]).astype(np.float32)
    return ids, values, splits


def rows_of(splits):
    return np.repeat(np.arange(len(splits) - 1), np.diff(splits))


def forward(ids, values, splits, weights):
    out = np.zeros((len(splits) - 1, weights.shape[1]))
    scale = 1.0 if values is None else values.astype(np.float64)[:, None]
    np.add.at(out, rows_of(splits), scale * weights.astype(np.float64)[ids])
    return out


def weights_grad(ids, values, splits, grad):
    scale = 1.0 if values is None else values.astype(np.float64)[:, None]
    unique, inverse = np.unique(ids, return_inverse=True)
    out = np.zeros((len(unique), grad.shape[1]))
    np.add.at(out, inverse, scale * grad.astype(np.float64)[rows_of(splits)])
    return unique, out


def values_grad(ids, splits, weights, grad):
    rows = grad.astype(np.float64)[rows_of(splits)]
    return np.sum(weights.astype(np.float64)[ids] * rows, axis=1)


def assert_all_agree(ids, values, splits, weights, grad, tolerance=1e-5, **threads):
    """The three products of one batch."""
    assert_close(
        core.sparse_linear(ids, values, splits, weights, **threads),
        forward(ids, values, splits, weights),
        tolerance,
    )
    got_ids, got = core.sparse_linear_weights_grad(
        ids, values, splits, grad, len(weights), **threads
    )
    want_ids, want = weights_grad(ids, values, splits, grad)
    np.testing.assert_array_equal(got_ids, want_ids)
    assert_close(got, want, tolerance)
    assert_close(
        core.sparse_linear_values_grad(ids, splits, weights, grad, **threads),
        values_grad(ids, splits, weights, grad),
        tolerance,
    )


def assert_close(got, want, tolerance):
    assert got.dtype == np.float32
    assert got.shape == want.shape
    scale = max(1.0, float(np.abs(want).max(initial=0)))
    np.testing.assert_allclose(got, want, rtol=0, atol=tolerance * scale)


@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize("dim", DIMS)
def test_products_equal_the_reference_for_every_width(dim, binary):
    rng = np.random.default_rng(dim)
    ids, values, splits = random_batch(rng, [0, 1, 3, 0, 17, 40, 0], 29, binary)
    weights = rng.normal(size=(29, dim)).astype(np.float32)
    grad = rng.normal(size=(7, dim)).astype(np.float32)
    assert_all_agree(ids, values, splits, weights, grad)


BATCHES = {
    "no rows": [],
    "one empty row": [0],
    "only empty rows": [0, 0, 0],
    "one entry": [1],
    "a row of one piece": [2048],
    "a row just over a piece": [2049],
    "a row of many pieces": [3 * 2048 + 5],
    "long rows among short ones": [1, 2048 * 4, 0, 2, 2048 + 1, 0],
}


@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize("dim", [1, 5, 33])
@pytest.mark.parametrize("lengths", BATCHES.values(), ids=BATCHES)
def test_products_equal_the_reference_for_every_shape_of_batch(lengths, dim, binary):
    rng = np.random.default_rng(len(lengths))
    ids, values, splits = random_batch(rng, lengths, 11, binary)
    weights = rng.normal(size=(11, dim)).astype(np.float32)
    grad = rng.normal(size=(len(lengths), dim)).astype(np.float32)
    assert_all_agree(ids, values, splits, weights, grad, 3e-5)


def test_one_id_in_every_row():
    rng = np.random.default_rng(0)
    splits = np.arange(0, 2 * 5000 + 1, 2)
    ids = np.where(np.arange(10000) % 2 == 0, 7, rng.integers(0, 3000, 10000))
    values = rng.normal(size=10000).astype(np.float32)
    weights = rng.normal(size=(3000, 9)).astype(np.float32)
    assert_all_agree(ids, values, splits, weights, rng.normal(size=(5000, 9)).astype(np.float32))


@pytest.mark.parametrize("num_ids", [1, 2, 2**11, 2**11 + 1, 2**22 + 1, 2**33 + 1, 2**62])
def test_ids_are_sorted_for_every_size_of_the_id_space(num_ids):
    rng = np.random.default_rng(3)
    ids = np.concatenate([rng.integers(0, num_ids, 60), [0, num_ids - 1], [num_ids // 2] * 9])
    rows = rng.normal(size=(len(ids), 3)).astype(np.float32)
    got_ids, got = core.sum_duplicates(ids, rows)
    want_ids, want = weights_grad(ids, None, np.arange(len(ids) + 1), rows)
    np.testing.assert_array_equal(got_ids, want_ids)
    assert_close(got, want, 1e-5)


def test_sums_of_equal_ids_are_added_in_the_order_given():
    ids = np.zeros(4, np.int64)
    rows = np.float32([[1e8], [1], [-1e8], [1]])
    # ((1e8 + 1) - 1e8) + 1 loses the first 1 in float32.
    assert core.sum_duplicates(ids, rows)[1].tolist() == [[1.0]]


@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(st.integers(0, 12), max_size=9),
    num_ids=st.integers(1, 40),
    dim=st.integers(0, 20),
    binary=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
def test_any_batch_equals_the_reference(lengths, num_ids, dim, binary, seed):
    rng = np.random.default_rng(seed)
    ids, values, splits = random_batch(rng, lengths, num_ids, binary)
    weights = rng.normal(size=(num_ids, dim)).astype(np.float32)
    grad = rng.normal(size=(len(lengths), dim)).astype(np.float32)
    assert_all_agree(ids, values, splits, weights, grad)
    got = core.row_splits_from_indices(rows_of(splits), len(lengths))
    np.testing.assert_array_equal(got, splits)


@pytest.mark.parametrize("dim", [1, 3, 64])
def test_results_are_bit_identical_for_any_number_of_threads(dim):
    rng = np.random.default_rng(1)
    lengths = [*rng.integers(0, 90, 3000), 50_000, *rng.integers(0, 90, 300)]
    ids, values, splits = random_batch(rng, lengths, 5000)
    ids[rng.random(len(ids)) < 0.2] = 4  # one id with more entries than a piece of a segment
    weights = rng.normal(size=(5000, dim)).astype(np.float32)
    grad = rng.normal(size=(len(lengths), dim)).astype(np.float32)

    def everything(num_threads):
        threads = {"num_threads": num_threads}
        yield core.sparse_linear(ids, values, splits, weights, **threads)
        yield core.sparse_linear(ids, None, splits, weights, **threads)
        yield from core.sparse_linear_weights_grad(ids, values, splits, grad, 5000, **threads)
        yield from core.sparse_linear_weights_grad(ids, None, splits, grad, 5000, **threads)
        yield core.sparse_linear_values_grad(ids, splits, weights, grad, **threads)
        yield from core.sum_duplicates(ids[:20000], np.repeat(grad, 7, axis=0)[:20000], **threads)
        yield core.row_splits_from_indices(rows_of(splits), len(lengths), **threads)

    one = [a.tobytes() for a in everything(1)]
    for num_threads in (2, 3, 4, 0):
        assert [a.tobytes() for a in everything(num_threads)] == one


def python(code, **environment):
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
    ).stdout


def test_simd_levels_agree():
    code = """
        import sys
        import numpy as np
        from twml_ops import core
        rng = np.random.default_rng(5)
        outputs = []
        for dim in (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 64, 100, 129, 256, 257, 400):
            splits = np.cumsum(np.concatenate([[0], rng.integers(0, 30, 20), [2049]]))
            ids = rng.integers(0, 50, splits[-1])
            values = rng.normal(size=splits[-1]).astype(np.float32)
            weights = rng.normal(size=(50, dim)).astype(np.float32)
            grad = rng.normal(size=(21, dim)).astype(np.float32)
            outputs += [core.sparse_linear(ids, values, splits, weights)]
            outputs += [core.sparse_linear(ids, None, splits, weights)]
            outputs += [core.sparse_linear_weights_grad(ids, values, splits, grad, 50)[1]]
            outputs += [core.sparse_linear_values_grad(ids, splits, weights, grad)]
        print(core.simd_level())
        print(np.concatenate([o.ravel() for o in outputs]).astype(np.float64).tobytes().hex())
    """
    outputs = {}
    for asked in ("baseline", "avx2", "avx512"):
        level, data = python(code, TWML_OPS_SIMD=asked).split()
        outputs[level] = np.frombuffer(bytes.fromhex(data))
    assert "baseline" in outputs
    for values in outputs.values():
        np.testing.assert_allclose(values, outputs["baseline"], rtol=1e-4, atol=2e-4)


@pytest.mark.parametrize("asked", ["axv2", "AVX2", "sse", " "])
def test_an_unknown_simd_level_causes_a_warning(asked):
    code = """
        import warnings
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            from twml_ops import core
        [warning] = [w for w in caught if "TWML_OPS_SIMD" in str(w.message)]
        assert warning.category is RuntimeWarning
        print(core.simd_level())
        print(warning.message)
    """
    level, message = python(code, TWML_OPS_SIMD=asked).splitlines()
    best = python("from twml_ops import core; print(core.simd_level())", TWML_OPS_SIMD="").strip()
    assert level == best
    assert message == (
        f"TWML_OPS_SIMD='{asked}' is not one of the levels 'baseline', 'avx2', 'avx512': "
        f"the kernels run at '{best}'"
    )


@pytest.mark.parametrize("asked", ["", "baseline", "avx2", "avx512"])
def test_an_unsupported_simd_level_causes_a_warning(asked):
    code = """
        import warnings
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            from twml_ops import core
        print(core.simd_level())
        print([str(w.message) for w in caught if "TWML_OPS_SIMD" in str(w.message)])
    """
    level, warned = python(code, TWML_OPS_SIMD=asked).splitlines()
    assert level in ("baseline", "avx2", "avx512")
    if asked in ("", level):
        assert warned == "[]"
    else:
        assert "this CPU does not have: the kernels run at" in warned


def test_work_is_done_if_the_system_cannot_create_threads():
    code = """
        import resource
        import numpy as np
        from twml_ops import core
        sketch = core.QuantileSketch()
        ids = np.arange(2000)
        sketch.update(ids, ids.astype(np.float32))
        used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
        hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        resource.setrlimit(resource.RLIMIT_AS, (used + (6 << 20), hard))  # less than a stack
        print((sketch.quantiles(ids, [0.5], num_threads=64)[:, 0] == ids).all())
    """
    assert python(code).strip() == "True"


def test_core_works_without_tensorflow():
    code = """
        import sys

        class Blocker:
            def find_spec(self, name, path=None, target=None):
                if name.split(".")[0] in ("tensorflow", "keras", "tf_keras"):
                    raise ModuleNotFoundError(name)

        sys.meta_path.insert(0, Blocker())
        import twml_ops.core as core
        print(core.sparse_linear([1, 0], [2.0, 1.0], [0, 2], [[1.0], [10.0]]).tolist())
    """
    assert python(code).strip() == "[[21.0]]"


# Invalid input ----------------------------------------------------------------------------------

GOOD = {
    "ids": np.array([0, 3, 1]),
    "values": np.float32([1, 2, 3]),
    "row_splits": np.array([0, 1, 3]),
    "weights": np.ones((4, 5), np.float32),
    "grad": np.ones((2, 5), np.float32),
}

BAD = {
    "splits start late": ({"row_splits": [1, 1, 3]}, "row_splits[0] must be 0, got 1"),
    "splits start early": ({"row_splits": [-1, 1, 3]}, "row_splits[0] must be 0, got -1"),
    "splits fall": ({"row_splits": [0, 4, 3]}, "row_splits[2] = 3 after 4"),
    "splits fall far": ({"row_splits": [0, 2**63 - 1, -(2**63)]}, "row_splits[2] = -9"),
    "splits end early": ({"row_splits": [0, 1, 2]}, "row_splits[2] must be the number of"),
    "splits end late": ({"row_splits": [0, 1, 4]}, "got 4"),
    "splits are huge": ({"row_splits": [0, 2**62, 2**63 - 1]}, "got 9223372036854775807"),
    "splits are empty": ({"row_splits": []}, "row_splits must not be empty"),
    "splits are a matrix": ({"row_splits": [[0, 1, 3]]}, "row_splits must have 1 dim"),
    "splits are a scalar": ({"row_splits": 3}, "row_splits must have 1 dimensions, got 0"),
    "negative id": ({"ids": [0, -1, 1]}, "ids[1] = -1 is out of range [0, 4)"),
    "id N": ({"ids": [0, 3, 4]}, "ids[2] = 4 is out of range [0, 4)"),
    "the first invalid id is reported": ({"ids": [7, 8, 9]}, "ids[0] = 7"),
    "least id": ({"ids": [0, -(2**63), 1]}, "ids[1] = -9223372036854775808"),
    "huge id": ({"ids": [2**63 - 1, 0, 1]}, "ids[0] = 9223372036854775807"),
    "id beyond int64": (
        {"ids": np.uint64([2**64 - 1, 0, 1])},
        "ids[0] = 18446744073709551615 does",
    ),
    "more ids than the splits say": ({"ids": [0, 1, 2, 3]}, "must "),
    "ids are a matrix": ({"ids": [[0, 1, 2]]}, "ids must have 1 dimensions, got 2"),
    "fractional ids": ({"ids": [0.0, 1.5, 2.0]}, "ids must be an array of integers, got f"),
    "fractional splits": ({"row_splits": [0.0, 1.0, 3.0]}, "row_splits must be an array of"),
    "ids are words": ({"ids": ["a", "b", "c"]}, "ids must be an array of integers"),
    "ids are objects": ({"ids": [None, object(), 1]}, "ids must be an array of integers"),
}
BAD_VALUES = {
    "too few values": ({"values": np.float32([1, 2])}, "values must have 3 items, one for each id"),
    "too many values": ({"values": np.ones(4, np.float32)}, "got 4"),
    "values are a column": ({"values": np.ones((3, 1), np.float32)}, "values must have 1 dim"),
    "complex values": ({"values": np.ones(3, complex)}, "values must be an array of real numbers"),
}
BAD_WEIGHTS = {
    "weights are a vector": ({"weights": np.ones(4, np.float32)}, "weights must have 2 dimensions"),
    "weights are ragged": ({"weights": [[1.0], [1.0, 2.0]]}, "weights must be an array of real"),
    "weights have no rows": ({"weights": np.ones((0, 5), np.float32)}, "is out of range [0, 0)"),
}
BAD_GRAD = {
    "grad of another batch": ({"grad": np.ones((3, 5), np.float32)}, "grad must have one row for"),
    "grad is a vector": ({"grad": np.ones(5, np.float32)}, "grad must have 2 dimensions"),
}


def call(name, arguments):
    a = arguments
    if name == "forward":
        return core.sparse_linear(a["ids"], a["values"], a["row_splits"], a["weights"])
    if name == "values_grad":
        return core.sparse_linear_values_grad(a["ids"], a["row_splits"], a["weights"], a["grad"])
    return core.sparse_linear_weights_grad(a["ids"], a["values"], a["row_splits"], a["grad"], 4)


@pytest.mark.parametrize(
    ("name", "bad"),
    [
        *(("forward", b) for b in {**BAD, **BAD_VALUES, **BAD_WEIGHTS}.items()),
        *(("values_grad", b) for b in {**BAD, **BAD_WEIGHTS, **BAD_GRAD}.items()),
        *(("weights_grad", b) for b in {**BAD, **BAD_VALUES, **BAD_GRAD}.items()),
    ],
    ids=lambda x: x if isinstance(x, str) else x[0],
)
def test_invalid_input_raises_an_error_that_names_the_position(name, bad):
    changes, message = bad[1]
    with pytest.raises(ValueError) as error:  # noqa: PT011  (the message is compared below)
        call(name, {**GOOD, **changes})
    assert message in str(error.value)


def test_the_gradient_must_be_as_wide_as_the_table():
    with pytest.raises(ValueError, match="as wide as the table's, 5, got 6"):
        call("values_grad", {**GOOD, "grad": np.ones((2, 6), np.float32)})


@pytest.mark.parametrize("input_dim", [0, -1, -(2**63)])
def test_an_empty_id_space_accepts_no_ids(input_dim):
    with pytest.raises(ValueError, match=r"ids\[0\] = 0 is out of range"):
        core.sparse_linear_weights_grad([0], [1.0], [0, 1], [[1.0]], input_dim)
    ids, rows = core.sparse_linear_weights_grad([], [], [0, 0], [[1.0]], input_dim)
    assert (ids.shape, rows.shape) == ((0,), (0, 1))


@pytest.mark.parametrize(
    ("row_indices", "num_rows", "message"),
    [
        ([0, 2, 1], 3, r"row_indices\[2\] = 1 after 2"),
        ([0, 3], 3, r"row_indices\[1\] = 3 is out of range \[0, 3\)"),
        ([-1], 3, r"row_indices\[0\] = -1"),
        ([0], 0, r"row_indices\[0\] = 0 is out of range"),
        ([], -1, "num_rows must be in"),
        ([], 2**63 - 1, "num_rows must be in"),
        ([[0]], 3, "row_indices must have 1 dimensions"),
        ([0.5], 3, "row_indices must be an array of integers"),
    ],
)
def test_row_indices_are_checked(row_indices, num_rows, message):
    with pytest.raises(ValueError, match=message):
        core.row_splits_from_indices(row_indices, num_rows)


@pytest.mark.parametrize(
    ("ids", "rows", "message"),
    [
        ([0, -2], np.ones((2, 1)), r"ids\[1\] = -2"),
        ([0, 2**63 - 1], np.ones((2, 1)), r"ids\[1\] = 9223372036854775807"),
        ([0], np.ones((2, 1)), "rows must have one row for each of the 1 ids, got 2"),
        ([0], np.ones(1), "rows must have 2 dimensions"),
    ],
)
def test_duplicates_are_checked(ids, rows, message):
    with pytest.raises(ValueError, match=message):
        core.sum_duplicates(ids, rows)


def test_arrays_of_any_layout_and_number_type_are_accepted():
    rng = np.random.default_rng(8)
    ids, values, splits = random_batch(rng, [4, 0, 9], 6)
    weights = rng.normal(size=(6, 10)).astype(np.float32)
    want = core.sparse_linear(ids, values, splits, weights).tobytes()
    spaced = np.zeros((len(ids), 2), np.int32)
    spaced[:, 1] = ids
    layouts = [
        (spaced[:, 1], values[::-1].copy()[::-1], splits.astype(np.uint8), weights.T.copy().T),
        (ids.astype(">i8"), values.astype(np.float64), list(splits), weights.astype(">f4")),
        (list(ids), values.tolist(), splits, weights.tolist()),
    ]
    for layout in layouts:
        assert core.sparse_linear(*layout).tobytes() == want


def test_inputs_are_not_modified():
    before = {name: a.copy() for name, a in GOOD.items()}
    for name in ("forward", "values_grad", "weights_grad"):
        call(name, GOOD)
    for name, array in GOOD.items():
        np.testing.assert_array_equal(array, before[name])
