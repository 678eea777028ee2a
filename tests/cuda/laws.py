"""What the CUDA library promises, for pytest, the search for defects and tools/gpu_proof.

A law is a function that takes a `Lab` and raises if the library breaks it. NumPy is all it needs.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

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
from tests.cuda.cpu_kernels import Reference
from tests.cuda.interface import NO_ERRORS, RULES, Csr
from tests.cuda.library import CudaLibrary, OnStream

BATTERY, QUICK, ALL = range(3)  # how many laws: seconds, seconds to minutes, minutes to hours
PAIRS = [Case(**c) for c in pairwise(FACTORS)]
GRID = [Case(*c) for c in itertools.product(*FACTORS.values())]
BATTERY_CASES = (
    Case(1, "sgd", "short", True, True, False, 1),
    Case(3, "adagrad", "short", False, True, True, 2),
    Case(17, "rowwise_adagrad", "long", True, False, False, 3),
    Case(50, "lazy_adam", "empty", False, True, False, 4),
    Case(16, "ftrl", "one_id", True, True, True, 5),
    Case(8, "momentum", "short", True, False, False, 1),
)
OUT_OF_MEMORY = -1
UNKNOWN_ERROR = 999


class Lab:
    """A CUDA library and its reference.

    Args:
        cuda: The library to test.
        core: The CPU's kernels.
    """

    def __init__(self, cuda: CudaLibrary, core: Reference) -> None:
        self.cuda, self.core, self.checker = cuda, core, Checker(cuda, core)

    def size(self, emulated: int, real: int) -> int:
        """A size: a GPU does in no time what takes the emulation minutes."""
        return emulated if self.cuda.is_emulated else real


@dataclass(frozen=True)
class Law:
    """A law for some parameters.

    Attributes:
        check: The function.
        level: The smallest set that it is in: BATTERY, QUICK or ALL.
        emulated_only: Whether a real library cannot be asked.
        options: The parameters.
    """

    check: Callable[..., None]
    level: int
    emulated_only: bool
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        options = "-".join(str(v) for v in self.options.values())
        return self.check.__name__ + (f"[{options}]" if options else "")


_LAWS: list[Law] = []


def laws(level: int, emulated: bool) -> list[Law]:
    """The laws of a set, the most important ones first."""
    found = [w for w in _LAWS if w.level <= level and (emulated or not w.emulated_only)]
    return sorted(found, key=lambda w: w.level)


def law(level: int = QUICK, emulated_only: bool = False, **parameters: Any) -> Any:
    """Declares a law, for all combinations of parameters."""

    def declare(check: Callable[..., None]) -> Callable[..., None]:
        for values in itertools.product(*parameters.values()):
            options = dict(zip(parameters, values, strict=True))
            _LAWS.append(Law(check, level, emulated_only, options))
        return check

    return declare


def same(got: Any, want: Any) -> None:
    for a, b in zip(got, want, strict=True):
        np.testing.assert_array_equal(a, b)


@law(BATTERY, case=BATTERY_CASES)
def kernels_give_the_bits_of_the_cpu(lab: Lab, case: Case) -> None:
    lab.checker.check(case)


@law(dim=DIMS)
def kernels_give_the_bits_of_the_cpu_for_all_pairs_of_parameters(lab: Lab, dim: int) -> None:
    for case in PAIRS:
        if case.dim == dim:
            lab.checker.check(case)


@law(ALL, dim=DIMS, rule=RULES)
def kernels_give_the_bits_of_the_cpu_in_all_combinations(lab: Lab, dim: int, rule: str) -> None:
    for case in GRID:
        # A GPU chooses its order of threads itself.
        if (case.dim, case.rule) == (dim, rule) and (lab.cuda.is_emulated or case.seed == 1):
            lab.checker.check(case, long=5000)


@law(ALL, dim=(1, 16, 50))
def rows_and_groups_of_a_million_entries(lab: Lab, dim: int) -> None:
    random = np.random.default_rng(dim)
    n = 1_000_000
    ids = random.integers(0, TABLE_ROWS, n)
    ids[::2] = 3
    batch = Csr(ids, random.normal(size=n).astype(np.float32), np.array([0, 5, n - 7, n]))
    table = random.normal(size=(TABLE_ROWS, dim)).astype(np.float32)
    grad = random.normal(size=(3, dim)).astype(np.float32)
    lab.checker.check_products(batch, table, grad)
    lab.checker.check_update(batch, table, grad, "adagrad", random)


@law(dim=(1, 17))
def rows_and_groups_around_the_size_of_pieces(lab: Lab, dim: int) -> None:
    random = np.random.default_rng(dim)
    lengths = [0, 1, 2047, 2048, 2049, 0, 4096, 4097]
    splits = np.concatenate([[0], np.cumsum(lengths)])
    ids = np.repeat(np.arange(len(lengths)), random.permutation(lengths))
    values = random.normal(size=len(ids)).astype(np.float32)
    batch = Csr(random.permutation(ids), values, splits)
    table = random.normal(size=(len(lengths), dim)).astype(np.float32)
    grad = random.normal(size=(len(lengths), dim)).astype(np.float32)
    lab.checker.check_products(batch, table, grad)
    lab.checker.check_update(batch, table, grad, "rowwise_adagrad", random)


@law(rule=RULES, bfloat16=(False, True))
def denormal_and_large_numbers_are_neither_flushed_nor_clipped(
    lab: Lab, rule: str, bfloat16: bool
) -> None:
    random = np.random.default_rng(8)
    batch = batch_of(Case(17, rule, "short", True, True, bfloat16, 1))
    table, grad = (
        (random.normal(size=(n, 17)) * 10.0 ** random.integers(-44, 15, (n, 17))).astype(np.float32)
        for n in (TABLE_ROWS, batch.num_rows)
    )
    table[:, ::5] = 0, -0.0, 1e-45, 1e37
    table = to_bfloat16(table) if bfloat16 else table
    if not lab.checker.same_rounding:
        return
    same(lab.cuda.sparse_linear([batch], [table]).arrays, [lab.core.sparse_linear(batch, table)])
    slots = slots_of(rule, *table.shape, random)
    result = lab.cuda.update([batch], [grad], [table], [slots], [rule])
    if rule != "rowwise_adagrad" or lab.checker.same_order:
        same(result.arrays, lab.core.update(batch, grad, table, slots, rule))


@law(
    rule_and_hyper=(
        ("sgd", (0.1, 0)),
        ("momentum", (0.1, 0.01, 0.9, 0)),
        ("adagrad", (0, 0.1, 1e-7)),
        ("rowwise_adagrad", (0.1, 0.1, 1e-7)),
        ("lazy_adam", (0.1, 0.1, 0.5, 0.9, 1e-3)),
        ("ftrl", (0.1, 0.1, -0.5, 0, 0, 0)),
        ("ftrl", (0, 0.1, -0.5, 0.1, 0.1, 0.1)),
        ("ftrl", (0.1, 0, -0.3, 0.1, 0.1, 0.1)),
    ),
    bfloat16=(False, True),
)
def updates_give_the_bits_of_the_cpu_with_other_hyperparameters(
    lab: Lab, rule_and_hyper: Any, bfloat16: bool
) -> None:
    rule, hyper = rule_and_hyper
    random = np.random.default_rng(2)
    batch = batch_of(Case(19, rule, "short", True, True, bfloat16, 1))
    table = random.normal(size=(TABLE_ROWS, 19)).astype(np.float32)
    grad = random.normal(size=(batch.num_rows, 19)).astype(np.float32)
    table = to_bfloat16(table) if bfloat16 else table
    # Only powf of a GPU is another function than that of the CPU.
    exact = lab.cuda.is_emulated or rule != "ftrl" or hyper[2] == -0.5
    lab.checker.check_update(batch, table, grad, rule, random, hyper, exact)


@law(dim=(1, 4, 40))
def results_do_not_depend_on_the_order_of_blocks_and_threads(lab: Lab, dim: int) -> None:
    random = np.random.default_rng(0)
    batch = batch_of(Case(dim, "adagrad", "long", True, True, False, 1))
    table = random.normal(size=(TABLE_ROWS, dim)).astype(np.float32)
    grad = random.normal(size=(batch.num_rows, dim)).astype(np.float32)
    slots = slots_of("adagrad", TABLE_ROWS, dim, random)
    results = []
    for seed in range(1, lab.size(3, 30) + 1):
        lab.cuda.seed(seed)
        products = lab.cuda.sparse_linear([batch], [table]).arrays
        updated = lab.cuda.update([batch], [grad], [table], [slots], ["adagrad"]).arrays
        results.append([*products, *updated])
    for other in results[1:]:
        same(results[0], other)


@law()
def several_tables_in_one_call_equal_one_at_a_time(lab: Lab) -> None:
    cuda, random = lab.cuda, np.random.default_rng(3)
    rules = list(itertools.islice(itertools.cycle(RULES), 20))
    batches, tables, grads, slots = [], [], [], []
    for i, rule in enumerate(rules):
        rows = ("short", "long", "one_id")[i % 3]
        case = Case(1 + 5 * i, rule, rows, i % 2 == 0, i % 3 == 0, False, 1)
        batches.append(batch_of(case))
        table = random.normal(size=(TABLE_ROWS, case.dim)).astype(np.float32)
        tables.append(to_bfloat16(table) if i % 4 == 1 else table)
        grads.append(random.normal(size=(batches[i].num_rows, case.dim)).astype(np.float32))
        slots.append(slots_of(rule, TABLE_ROWS, case.dim, random))
    together = cuda.sparse_linear(batches, tables)
    updated = cuda.update(batches, grads, tables, slots, rules)
    assert (together.code, updated.code) == (0, 0)
    alone: list[Any] = []
    for i, rule in enumerate(rules):
        same([together.arrays[i]], cuda.sparse_linear([batches[i]], [tables[i]]).arrays)
        alone += cuda.update([batches[i]], [grads[i]], [tables[i]], [slots[i]], [rule]).arrays
    same(updated.arrays, alone)


@law(BATTERY)
def bad_input_is_skipped_and_reported(lab: Lab) -> None:
    cuda, table = lab.cuda, np.ones((4, 20), np.float32)
    ids = np.array([0, 4, -1, 3, 2**40], np.int64)
    batch = Csr(ids, None, np.array([0, 2, 5]))
    result = cuda.sparse_linear([batch], [table])
    assert result.errors[:3] == (3, 1, 0), result.errors
    np.testing.assert_array_equal(result.arrays[0], np.ones((2, 20)))
    result = cuda.values_grad(batch, table, np.ones((2, 20), np.float32))
    assert result.errors[:3] == (3, 1, 0), result.errors
    np.testing.assert_array_equal(result.arrays[0], [20, 0, 0, 20, 0])
    result = cuda.update([batch], [np.ones((2, 20), np.float32)], [table], [[]], ["sgd"])
    assert result.errors[:3] == (3, 1, 0), result.errors
    assert (result.arrays[0][1:3] == 1).all()
    assert (result.arrays[0][[0, 3]] != 1).all()
    for splits, rows in (([0, 9, 5], [0, 0]), ([0, -3, 5], [0, 0]), ([0, 2, 3000], [2, 0])):
        batch = Csr(np.array([0, 1, 2, 3, 0]), None, np.array(splits))
        result = cuda.sparse_linear([batch], [table])
        assert result.errors[2] > 0, splits
        np.testing.assert_array_equal(result.arrays[0], np.repeat([rows], 20, 0).T)
        grad = np.ones((2, 20), np.float32)
        assert cuda.values_grad(batch, table, grad).errors[2] > 0, splits
        assert cuda.update([batch], [grad], [table], [[]], ["sgd"]).errors[2] > 0, splits


@law(BATTERY)
def groups_are_those_of_a_stable_sort(lab: Lab) -> None:
    check_groups(lab, 300, 40, "int32")
    for wide in (False, True):
        ids = np.array([0, 5, 2**31 - 1])
        want = ids.astype(np.int64 if wide else np.int32)
        same(lab.cuda.copy_ids(ids, wide).arrays, [want])


@law(
    number=(1, 31, 257, 5000),
    input_dim=(1, 2, 255, 256, 257, 65537, 2**31 - 1, 2**31, 2**40, 2**62),
    dtype=("int32", "int64"),
)
def groups_are_those_of_a_stable_sort_for_any_number_of_bits(
    lab: Lab, number: int, input_dim: int, dtype: str
) -> None:
    check_groups(lab, number, input_dim, dtype)


@law(scale=(1, 7, 60), input_dim=(100, 2**21, 2**40))
def groups_are_those_of_a_stable_sort_in_large_batches(
    lab: Lab, scale: int, input_dim: int
) -> None:
    # CUB has other kernels for one tile, for few tiles and for many.
    check_groups(lab, lab.size(30, 100_000) * scale, input_dim, "int64")


def check_groups(lab: Lab, number: int, input_dim: int, dtype: str) -> None:
    random = np.random.default_rng(number)
    limit = min(input_dim, np.iinfo(dtype).max)
    ids = random.integers(0, limit, number).astype(dtype)
    ids[: number // 3] = random.choice(ids, number // 3)  # some ids occur often
    ids[1::17] = -1
    if input_dim < np.iinfo(dtype).max:
        ids[5::17] = input_dim
    bad = (ids < 0) | (ids >= input_dim)
    values = random.normal(size=number).astype(np.float32)
    splits = np.concatenate([[0], np.sort(random.integers(0, number + 1, 20)), [number]])
    result = lab.cuda.group(Csr(ids, values, splits), input_dim)
    first = int(np.argmax(bad)) if bad.any() else 2**64 - 1
    assert (result.code, result.errors) == (0, (int(bad.sum()), first, 0, 0, 0, 0))
    order = np.argsort(np.where(bad, limit, ids), kind="stable")
    unique, starts = np.unique(ids[order][: number - bad.sum()], return_index=True)
    rows = (np.searchsorted(splits, np.arange(number), side="right") - 1)[order]
    same(result.arrays, [unique, [*starts, number - bad.sum()], rows, values[order]])


@law(dtype=("int32", "int64"))
def batches_without_rows_entries_or_columns_are_no_work(lab: Lab, dtype: str) -> None:
    cuda, table = lab.cuda, np.ones((3, 4), np.float32)
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


@law()
def without_splits_each_entry_is_a_row(lab: Lab) -> None:
    random = np.random.default_rng(4)
    ids = random.integers(0, TABLE_ROWS, 90)
    rows = random.normal(size=(90, 6)).astype(np.float32)
    result = lab.cuda.weights_grad(Csr(ids, None, None), TABLE_ROWS, rows)
    same(result.arrays, lab.core.weights_grad(Csr(ids, None, np.arange(91)), TABLE_ROWS, rows))


@law()
def overlapping_long_rows_of_invalid_splits_are_skipped(lab: Lab) -> None:
    n, rows = 1 << 13, 1 << 9
    batch = Csr(np.zeros(n, np.int32), None, np.tile(np.array([0, n]), rows))
    result = lab.cuda.sparse_linear([batch], [np.ones((1, 1), np.float32)])
    assert result.code == 0
    assert result.errors[2] > 0
    np.testing.assert_array_equal(np.unique(result.arrays[0][::2]), [0, n])
    np.testing.assert_array_equal(result.arrays[0][1::2], 0)


@law()
def reports_are_fetched_and_reset(lab: Lab) -> None:
    reports = lab.cuda.reports()
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


def calls_of(cuda: CudaLibrary, long: int = 2060) -> dict[str, Callable[[], Any]]:
    """Calls of all functions that queue work, by name. Each returns a `Result`."""
    random = np.random.default_rng(7)
    batch = batch_of(Case(8, "adagrad", "long", True, True, False, 1), long)
    table = random.normal(size=(TABLE_ROWS, 8)).astype(np.float32)
    grad = random.normal(size=(batch.num_rows, 8)).astype(np.float32)
    norm = Csr(batch.ids, batch.values, None), np.ones(TABLE_ROWS, np.float32), None
    options = {"epsilon": 1e-6, "training": True, "nonfinite": 1}
    features = np.array([2, 5]), np.array([-1, 0, 1], np.float32), np.array([0, 1, 3])
    slots = [np.ones_like(table)]
    return {
        "sparse_linear": lambda: cuda.sparse_linear([batch], [table]),
        "values_grad": lambda: cuda.values_grad(batch, table, grad),
        "group": lambda: cuda.group(batch, TABLE_ROWS),
        "weights_grad": lambda: cuda.weights_grad(batch, TABLE_ROWS, grad),
        "update": lambda: cuda.update([batch], [grad], [table], [slots], ["adagrad"]),
        "max_norm": lambda: cuda.max_norm(*norm, decay=1, **options),
        "decayed_max_norm": lambda: cuda.max_norm(*norm, decay=0.9, **options),
        "discretize": lambda: cuda.discretize(batch, *features, bits=4),
        "copy_ids": lambda: cuda.copy_ids(batch.ids, False),
    }


CALLS = (
    *("sparse_linear", "values_grad", "group", "weights_grad", "update"),
    *("max_norm", "decayed_max_norm", "discretize", "copy_ids"),
)


@law(emulated_only=True, name=CALLS)
def every_failure_of_cuda_is_returned_once(lab: Lab, name: str) -> None:
    cuda, call = lab.cuda, calls_of(lab.cuda)[name]
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
        same(again.arrays, want.arrays)
        failures += 1
    assert code == 0
    assert failures > 0


@law(name=CALLS)
def a_call_that_runs_out_of_memory_changes_nothing(lab: Lab, name: str) -> None:
    cuda = lab.cuda
    call = calls_of(cuda)[name]
    want, unchanged = call(), []
    for allowed in itertools.count():
        sizes: list[int] = []

        def refuse(memory: Any, size: int, sizes: list[int] = sizes, most: int = allowed) -> Any:
            sizes.append(size)
            return memory.allocate(size) if len(sizes) <= most else None

        cuda.workspace = refuse
        try:
            result = call()
        finally:
            cuda.workspace = None
        if len(sizes) <= allowed:
            break
        assert result.code == OUT_OF_MEMORY, (allowed, sizes)
        unchanged = result.arrays if allowed == 0 else unchanged  # no kernel was queued then
        same(result.arrays, unchanged)
    assert result.code == 0
    same(result.arrays, want.arrays)


@law()
def memory_of_the_device_that_is_full_is_an_error_from_which_one_recovers(lab: Lab) -> None:
    cuda, long = lab.cuda, lab.size(9000, 4_000_000)
    assert not cuda.library.twml_cuda_allocate(1 << 50)
    calls = calls_of(cuda, long)
    want = {name: calls[name]() for name in ("sparse_linear", "update")}
    held: list[int] = []

    def fill(memory: Any, size: int) -> Any:
        chunk = 1 << 40
        while chunk >= lab.size(1 << 10, 1 << 20):
            pointer = cuda.library.twml_cuda_allocate(chunk)
            if pointer:
                held.append(pointer)
            else:
                chunk //= 2
        return memory.allocate(size)

    if cuda.is_emulated:
        cuda.library.cuda_on_cpu_capacity(1 << 24)
    try:
        for name in want:
            cuda.workspace = fill
            result = calls[name]()
            for pointer in held:
                assert cuda.library.twml_cuda_free(pointer) == 0
            assert held
            held.clear()
            # A small allocation of `sparse_linear` may fit into what is left.
            assert result.code == OUT_OF_MEMORY or name == "sparse_linear"
            cuda.workspace = None
            same(calls[name]().arrays, want[name].arrays)
    finally:
        cuda.workspace = None
        if cuda.is_emulated:
            cuda.library.cuda_on_cpu_capacity(-1)


@law(seed=(1, 2, 3))
def several_streams_at_once_give_what_each_gives_alone(lab: Lab, seed: int) -> None:
    cuda = lab.cuda
    want = {name: call() for name, call in calls_of(cuda, lab.size(2060, 200_000)).items()}
    cuda.seed(seed)
    queued = []
    for stream in cuda.streams(4):
        calls = calls_of(OnStream(cuda, stream), lab.size(2060, 200_000))
        for name in np.random.default_rng(stream).permutation(CALLS)[: lab.size(3, len(CALLS))]:
            queued.append((name, calls[name]()))
    for name, pending in queued:
        result = pending.result()
        assert (result.code, result.errors) == (want[name].code, want[name].errors)
        same(result.arrays, want[name].arrays)


@law(BATTERY)
def features_are_normalized_and_discretized(lab: Lab) -> None:
    """With bad splits of the boundaries as well."""
    values = np.array([1, -3, 2, 5], np.float32)
    batch = Csr(np.array([0, 0, 2, 0]), values, np.array([0, 2, 4]))
    state = np.array([4, 1, 8], np.float32)
    for decay, want in ((1.0, [5, 1, 8]), (0.5, [5, 1, 4])):
        options = {"epsilon": 1e-6, "decay": decay, "training": True, "nonfinite": 0}
        result = lab.cuda.max_norm(batch, state, None, **options)
        np.testing.assert_array_equal(result.arrays[2], want)
        np.testing.assert_array_equal(result.arrays[0], values / result.arrays[2][batch.ids])
    features, boundaries = np.array([0, 2]), np.array([0, 2, 1], np.float32)
    result = lab.cuda.discretize(batch, features, boundaries, np.array([0, 2, 3]), bits=4)
    same(result.arrays, [[1, 0, 5, 2], np.ones(4), batch.row_splits])
    bad = lab.cuda.discretize(batch, features, boundaries, np.array([0, 2**40, 3]), bits=4)
    assert bad.errors[5] > 0, bad.errors


@law(
    training=(False, True),
    decay=(1.0, 0.9),
    bias=(False, True),
    wide_ids=(False, True),
)
def max_norm_gives_the_bits_of_the_cpu(
    lab: Lab, training: bool, decay: float, bias: bool, wide_ids: bool
) -> None:
    random = np.random.default_rng(5)
    n, rows = lab.size(700, 700_000), 50
    ids = random.integers(0, rows, n).astype(np.int64 if wide_ids else np.int32)
    values = (random.normal(size=n) * 10.0 ** random.integers(-8, 3, n)).astype(np.float32)
    special = [np.inf, np.nan, -np.inf, 0, 1e-45]
    values[::50] = np.resize(special, len(values[::50]))
    state = random.uniform(0, 1, rows).astype(np.float32)
    shift = random.normal(size=rows).astype(np.float32) if bias else None
    options = {"training": training, "epsilon": 1e-6, "decay": decay}
    result = lab.cuda.max_norm(Csr(ids, values, None), state, shift, nonfinite=1, **options)
    assert (result.code, result.errors) == (0, NO_ERRORS)
    same(result.arrays, lab.core.max_norm(ids, values, state, shift, **options))


@law()
def max_norm_reports_bad_ids_and_values(lab: Lab) -> None:
    batch = Csr(np.array([0, 5, -1, 1]), np.array([1, 2, 3, np.nan], np.float32), None)
    options = {"epsilon": 1e-6, "decay": 0.5, "training": True, "nonfinite": 0}
    result = lab.cuda.max_norm(batch, np.array([4, 4], np.float32), None, **options)
    assert result.errors == (2, 1, 0, 1, 0, 0)
    np.testing.assert_array_equal(result.arrays[0], [0.5, 0, 0, 0])
    np.testing.assert_array_equal(result.arrays[2], [2, 4])


DISCRETIZATIONS = {
    "side": (0, 1),
    "missing": (0, 1),
    "unknown": (0, 1),
    "keep_inputs": (False, True),
    "hashing": (False, True),
    "weighted": (True, False),
    "wide_ids": (True, False),
}


def discretizations() -> Iterator[tuple[int, ...]]:
    for options in pairwise(DISCRETIZATIONS):
        yield tuple(int(o) for o in options.values())


@law(options=tuple(discretizations()))
def discretize_gives_the_result_of_the_cpu(lab: Lab, options: tuple[int, ...]) -> None:
    named = dict(zip(DISCRETIZATIONS, options, strict=True))
    random = np.random.default_rng(6)
    features = np.array([2, 3, 7, 11, 400])
    sizes = np.array([0, 1, 15, 40, 3])
    splits = np.concatenate([[0], np.cumsum(sizes)])
    boundaries = np.concatenate([np.sort(random.integers(-9, 9, s)) for s in sizes]).astype("f4")
    lengths = random.integers(0, 40, lab.size(12, 50_000))
    n = int(lengths.sum())
    values = random.integers(-10, 10, n).astype(np.float32)
    values[::9] = np.nan
    values[1::31] = np.inf
    values[2::31] = -np.inf
    weighted, wide_ids = named.pop("weighted"), named.pop("wide_ids")
    ids = random.choice([*features, 1, 5, 999], n).astype(np.int64 if wide_ids else np.int32)
    batch = Csr(ids, values if weighted else None, np.concatenate([[0], np.cumsum(lengths)]))
    result = lab.cuda.discretize(batch, features, boundaries, splits, bits=12, **named)
    assert (result.code, result.errors) == (0, NO_ERRORS)
    want = lab.core.discretize(batch, features, boundaries, splits, bits=12, **named)
    same(result.arrays, want)


@law()
def discretize_reports_unknown_features(lab: Lab) -> None:
    batch = Csr(np.array([1, 2, 3]), np.array([0, 0, 0], np.float32), np.array([0, 3]))
    features, boundaries, splits = np.array([2]), np.array([1], np.float32), np.array([0, 1])
    result = lab.cuda.discretize(batch, features, boundaries, splits, unknown=2, bits=4)
    assert result.errors == (*NO_ERRORS[:4], 2, 0)
    assert len(result.arrays[0]) == 3


@law(
    splits=((0, 9, 3), (0, -2, 3), (2, 1, 3), (0, 2**40, 3), (0, 2, 4)),
    hashing=(False, True),
)
def features_with_bad_splits_have_no_boundaries(lab: Lab, splits: Any, hashing: bool) -> None:
    batch = Csr(np.array([1, 2, 1]), np.array([0, 5, 9], np.float32), np.array([0, 3]))
    boundaries, features = np.array([1, 2, 3], np.float32), np.array([1, 2])
    result = lab.cuda.discretize(
        batch, features, boundaries, np.array(splits), hashing=hashing, bits=4
    )
    assert result.errors[:5] == NO_ERRORS[:5]
    assert result.errors[5] > 0
    assert len(result.arrays[0]) == 3
    assert ((result.arrays[0] >= 0) & (result.arrays[0] < 16)).all()
