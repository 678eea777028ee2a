"""The CUDA kernels give the results of the CPU's kernels."""

import itertools

import numpy as np
import pytest

from tests.cuda.battery import check_bad_input
from tests.cuda.cases import (
    DIMS,
    FACTORS,
    TABLE_ROWS,
    Case,
    Checker,
    batch_of,
    pairwise,
    slots_of,
    to_bfloat16,
)
from tests.cuda.interface import NO_ERRORS, RULES, Csr
from twml_ops import core

PAIRS = [Case(**c) for c in pairwise(FACTORS)]
GRID = [Case(*c) for c in itertools.product(*FACTORS.values())]
OUT_OF_MEMORY = -1
UNKNOWN_ERROR = 999


def test_every_pair_of_values_occurs_in_a_case():
    for a, b in itertools.combinations(FACTORS, 2):
        found = {(getattr(c, a), getattr(c, b)) for c in PAIRS}
        assert found == set(itertools.product(FACTORS[a], FACTORS[b]))


@pytest.mark.parametrize("dim", DIMS)
def test_kernels_give_the_bits_of_the_cpu(checker, dim):
    for case in PAIRS:
        if case.dim == dim:
            checker.check(case)


@pytest.mark.slow
@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("rule", RULES)
def test_kernels_give_the_bits_of_the_cpu_in_all_combinations(checker, dim, rule):
    for case in GRID:
        if (case.dim, case.rule) == (dim, rule):
            checker.check(case, long=5000)


@pytest.mark.slow
@pytest.mark.parametrize("dim", [1, 16, 50])
def test_rows_and_groups_of_a_million_entries(checker, dim):
    random = np.random.default_rng(dim)
    n = 1_000_000
    ids = random.integers(0, TABLE_ROWS, n)
    ids[::2] = 3
    batch = Csr(ids, random.normal(size=n).astype(np.float32), np.array([0, 5, n - 7, n]))
    table = random.normal(size=(TABLE_ROWS, dim)).astype(np.float32)
    grad = random.normal(size=(3, dim)).astype(np.float32)
    checker.check_products(batch, table, grad)
    checker.check_update(batch, table, grad, "adagrad", random)


@pytest.mark.parametrize(
    ("rule", "hyper"),
    [
        ("sgd", (0.1, 0)),
        ("momentum", (0.1, 0.01, 0.9, 0)),
        ("adagrad", (0, 0.1, 1e-7)),
        ("rowwise_adagrad", (0.1, 0.1, 1e-7)),
        ("lazy_adam", (0.1, 0.1, 0.5, 0.9, 1e-3)),
        ("ftrl", (0.1, 0.1, -0.5, 0, 0, 0)),
        ("ftrl", (0, 0.1, -0.5, 0.1, 0.1, 0.1)),
        ("ftrl", (0.1, 0, -0.3, 0.1, 0.1, 0.1)),
    ],
)
@pytest.mark.parametrize("bfloat16", [False, True])
def test_updates_give_the_bits_of_the_cpu_with_other_hyperparameters(
    checker, rule, hyper, bfloat16
):
    case = Case(19, rule, "short", True, True, bfloat16, 1)
    random = np.random.default_rng(2)
    batch = batch_of(case)
    table = random.normal(size=(TABLE_ROWS, 19)).astype(np.float32)
    grad = random.normal(size=(batch.num_rows, 19)).astype(np.float32)
    table = to_bfloat16(table) if bfloat16 else table
    checker.check_update(batch, table, grad, rule, random, hyper)


@pytest.mark.parametrize("dim", [1, 4, 40])
def test_results_do_not_depend_on_the_order_of_blocks_and_threads(cuda, dim):
    case = Case(dim, "adagrad", "long", True, True, False, 1)
    random = np.random.default_rng(0)
    batch = batch_of(case)
    table = random.normal(size=(TABLE_ROWS, dim)).astype(np.float32)
    grad = random.normal(size=(batch.num_rows, dim)).astype(np.float32)
    slots = slots_of("adagrad", TABLE_ROWS, dim, random)
    results = []
    for seed in (1, 2, 3):
        cuda.seed(seed)
        products = cuda.sparse_linear([batch], [table]).arrays
        results.append(
            [*products, *cuda.update([batch], [grad], [table], [slots], ["adagrad"]).arrays]
        )
    for other in results[1:]:
        for a, b in zip(results[0], other, strict=True):
            np.testing.assert_array_equal(a, b)


def test_several_tables_in_one_call_equal_one_at_a_time(cuda):
    random = np.random.default_rng(3)
    rules = list(itertools.islice(itertools.cycle(RULES), 20))
    batches, tables, grads, slots = [], [], [], []
    for i, rule in enumerate(rules):
        case = Case(
            1 + 5 * i, rule, ("short", "long", "one_id")[i % 3], i % 2 == 0, i % 3 == 0, 0, 1
        )
        batches.append(batch_of(case))
        table = random.normal(size=(TABLE_ROWS, case.dim)).astype(np.float32)
        tables.append(to_bfloat16(table) if i % 4 == 1 else table)
        grads.append(random.normal(size=(batches[i].num_rows, case.dim)).astype(np.float32))
        slots.append(slots_of(rule, TABLE_ROWS, case.dim, random))
    together = cuda.sparse_linear(batches, tables)
    updated = cuda.update(batches, grads, tables, slots, rules)
    assert (together.code, updated.code) == (0, 0)
    at = 0
    for i, rule in enumerate(rules):
        alone = cuda.sparse_linear([batches[i]], [tables[i]]).arrays[0]
        np.testing.assert_array_equal(together.arrays[i], alone)
        alone = cuda.update([batches[i]], [grads[i]], [tables[i]], [slots[i]], [rule]).arrays
        for array in alone:
            np.testing.assert_array_equal(updated.arrays[at], array)
            at += 1


def test_bad_input_is_skipped_and_reported(cuda):
    check_bad_input(cuda)


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_batches_without_rows_entries_or_columns(cuda, dtype):
    table = np.ones((3, 4), np.float32)
    for splits in ([0], [0, 0, 0]):
        batch = Csr(np.array([], dtype), None, np.array(splits))
        grad = np.ones((batch.num_rows, 4), np.float32)
        out = cuda.sparse_linear([batch], [table])
        assert (out.code, out.errors) == (0, NO_ERRORS)
        np.testing.assert_array_equal(out.arrays[0], np.zeros((batch.num_rows, 4)))
        assert len(cuda.weights_grad(batch, 3, grad).arrays[0]) == 0
        assert len(cuda.values_grad(batch, table, grad).arrays[0]) == 0
        updated = cuda.update([batch], [grad], [table], [[]], ["sgd"])
        assert updated.code == 0
        np.testing.assert_array_equal(updated.arrays[0], table)
    batch = Csr(np.array([1, 2], dtype), None, np.array([0, 2]))
    assert cuda.sparse_linear([batch], [table[:, :0]]).code == 0


def test_without_splits_each_entry_is_a_row(cuda, checker):
    random = np.random.default_rng(4)
    ids = random.integers(0, TABLE_ROWS, 90)
    rows = random.normal(size=(90, 6)).astype(np.float32)
    result = cuda.weights_grad(Csr(ids, None, None), TABLE_ROWS, rows)
    explicit = Csr(ids, None, np.arange(91))
    for got, want in zip(
        result.arrays, checker.core.weights_grad(explicit, TABLE_ROWS, rows), strict=True
    ):
        np.testing.assert_array_equal(got, want)


def test_an_update_that_runs_out_of_memory_changes_nothing(cuda):
    case = Case(8, "adagrad", "long", True, False, False, 1)
    batch = batch_of(case, long=9000)
    table = np.ones((TABLE_ROWS, 8), np.float32)
    slots = [np.ones_like(table)]
    grad = np.ones((batch.num_rows, 8), np.float32)
    result = cuda.update([batch], [grad], [table], [slots], ["adagrad"], budget=100)
    assert result.code == OUT_OF_MEMORY
    for array in result.arrays:
        np.testing.assert_array_equal(array, np.ones_like(table))


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("decay", [1.0, 0.9])
@pytest.mark.parametrize("bias", [False, True])
def test_max_norm_gives_the_bits_of_the_cpu(cuda, training, decay, bias):
    random = np.random.default_rng(5)
    n, rows = 700, 50
    ids = random.integers(0, rows, n)
    values = (random.normal(size=n) * 10.0 ** random.integers(-8, 3, n)).astype(np.float32)
    values[::50] = np.inf, np.nan, -np.inf, 0, *[np.nan] * 10
    state = random.uniform(0, 1, rows).astype(np.float32)
    shift = random.normal(size=rows).astype(np.float32) if bias else None
    options = {"epsilon": 1e-6, "decay": decay}
    result = cuda.max_norm(
        Csr(ids, values, None), state, shift, training=training, nonfinite=1, **options
    )
    want_state = state.copy()
    want = core.max_norm(ids, values, want_state, shift, training, nonfinite="zero", **options)
    assert (result.code, result.errors) == (0, NO_ERRORS)
    np.testing.assert_array_equal(result.arrays[0], want)
    np.testing.assert_array_equal(result.arrays[2], want_state)
    m = np.maximum(want_state[ids], np.float32(1e-6))
    scale = np.where(np.isfinite(values) & (np.abs(values) <= m), np.float32(1) / m, 0)
    np.testing.assert_array_equal(result.arrays[1], scale)


def test_max_norm_reports_bad_ids_and_values(cuda):
    batch = Csr(np.array([0, 5, -1, 1]), np.array([1, 2, 3, np.nan], np.float32), None)
    options = {"epsilon": 1e-6, "decay": 0.5, "training": True, "nonfinite": 0}
    result = cuda.max_norm(batch, np.array([4, 4], np.float32), None, **options)
    assert result.errors == (2, 1, 0, 1, 0, 0)
    np.testing.assert_array_equal(result.arrays[0], [0.5, 0, 0, 0])
    np.testing.assert_array_equal(result.arrays[2], [2, 4])


SIDES, MISSING, UNKNOWN = ("left", "right"), ("bucket", "drop"), ("pass", "drop")
DISCRETIZATIONS = {
    "side": SIDES,
    "missing": MISSING,
    "unknown": UNKNOWN,
    "keep_inputs": (False, True),
    "hashing": (False, True),
    "weighted": (True, False),
    "wide_ids": (True, False),
}


@pytest.mark.parametrize("options", list(pairwise(DISCRETIZATIONS)), ids=str)
def test_discretize_gives_the_result_of_the_cpu(cuda, options):
    options = dict(options)
    random = np.random.default_rng(6)
    features = np.array([2, 3, 7, 11, 400])
    sizes = np.array([0, 1, 15, 40, 3])
    splits = np.concatenate([[0], np.cumsum(sizes)])
    boundaries = np.concatenate([np.sort(random.integers(-9, 9, s)) for s in sizes]).astype("f4")
    lengths = random.integers(0, 40, 12)
    n = int(lengths.sum())
    ids = random.choice([*features, 1, 5, 999], n)
    values = random.integers(-10, 10, n).astype(np.float32)
    values[::9], values[1::31], values[2::31] = np.nan, np.inf, -np.inf
    weighted, hashing = options.pop("weighted"), options.pop("hashing")
    ids = ids.astype(np.int64 if options.pop("wide_ids") else np.int32)
    batch = Csr(ids, values if weighted else None, np.concatenate([[0], np.cumsum(lengths)]))
    result = cuda.discretize(
        batch,
        features,
        boundaries,
        splits,
        side=SIDES.index(options["side"]),
        missing=MISSING.index(options["missing"]),
        unknown=UNKNOWN.index(options["unknown"]),
        keep_inputs=options["keep_inputs"],
        hashing=hashing,
        bits=12,
    )
    function = core.hashing_discretize if hashing else core.percentile_discretize
    bits = {"output_bits" if hashing else "pass_through_bits": 12}
    want = function(
        batch.ids, batch.values, batch.row_splits, features, boundaries, splits, **bits, **options
    )
    assert (result.code, result.errors) == (0, NO_ERRORS)
    np.testing.assert_array_equal(result.arrays[0], want[0])
    np.testing.assert_array_equal(result.arrays[2], want[2])
    ones = np.ones(len(want[0]), np.float32)
    np.testing.assert_array_equal(result.arrays[1], ones if want[1] is None else want[1])


def test_discretize_reports_unknown_features(cuda):
    batch = Csr(np.array([1, 2, 3]), np.array([0, 0, 0], np.float32), np.array([0, 3]))
    features, boundaries, splits = np.array([2]), np.array([1], np.float32), np.array([0, 1])
    result = cuda.discretize(batch, features, boundaries, splits, unknown=2, bits=4)
    assert result.errors == (*NO_ERRORS[:4], 2, 0)
    assert len(result.arrays[0]) == 3


@pytest.mark.parametrize("splits", [[0, 9, 3], [0, -2, 3], [2, 1, 3], [0, 2**40, 3], [0, 2, 4]])
@pytest.mark.parametrize("hashing", [False, True])
def test_features_with_bad_splits_have_no_boundaries(cuda, splits, hashing):
    batch = Csr(np.array([1, 2, 1]), np.array([0, 5, 9], np.float32), np.array([0, 3]))
    boundaries = np.array([1, 2, 3], np.float32)
    result = cuda.discretize(
        batch, np.array([1, 2]), boundaries, np.array(splits), hashing=hashing, bits=4
    )
    assert result.errors[:5] == NO_ERRORS[:5]
    assert result.errors[5] > 0
    assert len(result.arrays[0]) == 3
    assert ((result.arrays[0] >= 0) & (result.arrays[0] < 16)).all()


def test_the_checker_finds_a_wrong_bit(checker, cuda):
    class OneBitOff(type(cuda)):
        def sparse_linear(self, batches, tables):
            result = cuda.sparse_linear(batches, tables)
            result.arrays[0].view(np.uint32)[0, 0] ^= 64
            return result

    wrong = OneBitOff.__new__(OneBitOff)
    wrong.__dict__.update(vars(cuda))
    with pytest.raises(AssertionError):
        Checker(wrong, checker.core).check(Case(17, "sgd", "short", True, True, False, 1))


CALLS = (
    "sparse_linear",
    "values_grad",
    "weights_grad",
    "update",
    "max_norm",
    "decayed_max_norm",
    "discretize",
)


def calls_of(cuda):
    """Calls of all functions that queue work, by name. Each returns a `Result`."""
    random = np.random.default_rng(7)
    batch = batch_of(Case(8, "adagrad", "long", True, True, False, 1))
    table = random.normal(size=(TABLE_ROWS, 8)).astype(np.float32)
    grad = random.normal(size=(batch.num_rows, 8)).astype(np.float32)
    norm = Csr(batch.ids, batch.values, None), np.ones(TABLE_ROWS, np.float32), None
    options = {"epsilon": 1e-6, "training": True, "nonfinite": 1}
    features = np.array([2, 5]), np.array([-1, 0, 1], np.float32), np.array([0, 1, 3])
    slots = [np.ones_like(table)]
    calls = (
        lambda: cuda.sparse_linear([batch], [table]),
        lambda: cuda.values_grad(batch, table, grad),
        lambda: cuda.weights_grad(batch, TABLE_ROWS, grad),
        lambda: cuda.update([batch], [grad], [table], [slots], ["adagrad"]),
        lambda: cuda.max_norm(*norm, decay=1, **options),
        lambda: cuda.max_norm(*norm, decay=0.9, **options),
        lambda: cuda.discretize(batch, *features, bits=4),
    )
    return dict(zip(CALLS, calls, strict=True))


@pytest.mark.parametrize("name", CALLS)
def test_every_failure_of_cuda_is_returned_once(cuda, name):
    if not cuda.is_emulated:
        pytest.skip("a real library cannot be told to fail")
    call = calls_of(cuda)[name]
    want = call()
    assert want.code == 0
    failures = 0
    while True:
        cuda.fail_after(failures)
        code = call().code
        if cuda.fail_after(-1) >= 0:
            break  # no call was left to fail
        assert code == UNKNOWN_ERROR, failures
        again = call()
        assert again.code == 0, failures
        for got, expected in zip(again.arrays, want.arrays, strict=True):
            np.testing.assert_array_equal(got, expected)
        failures += 1
    assert code == 0
    assert failures > 0


def test_reports_are_fetched_and_reset(cuda):
    reports = cuda.reports()
    assert reports.seen() == NO_ERRORS
    reports.report_bad_ids(3)
    assert reports.seen() == NO_ERRORS  # not fetched yet
    for _ in range(2):  # the second copy comes when the host has seen the first
        reports.fetch()
    reports.synchronize()
    assert reports.seen() == (3, *NO_ERRORS[1:])
    reports.fetch()
    reports.reset()
    reports.synchronize()
    assert reports.seen() == NO_ERRORS


def test_overlapping_long_rows_of_invalid_splits_are_skipped(cuda):
    n, rows = 1 << 13, 1 << 9
    batch = Csr(np.zeros(n, np.int32), None, np.tile(np.array([0, n]), rows))
    result = cuda.sparse_linear([batch], [np.ones((1, 1), np.float32)])
    assert result.code == 0
    assert result.errors[2] > 0
    np.testing.assert_array_equal(np.unique(result.arrays[0][::2]), [0, n])
    np.testing.assert_array_equal(result.arrays[0][1::2], 0)
