"""Laws of the kernels that multiply with tables, group ids and update tables."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from tests.cuda.cases import (
    DIMS,
    FACTORS,
    TABLE_ROWS,
    Case,
    batch_of,
    pairwise,
    slots_of,
    to_bfloat16,
)
from tests.cuda.interface import NO_ERRORS, RULES, Csr
from tests.cuda.law import ALL, BATTERY, Lab, law, same

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
    # Of all functions, only powf may give other bits on a GPU than on the CPU.
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
