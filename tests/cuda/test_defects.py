"""Defects of the kernels do not go unnoticed, and sanitizers find none."""

import os
import shlex
import subprocess
import sys

import pytest

import native_build
from tests.cuda import build

# The first ones stand for all in the quick tests; each takes a compilation.
QUICK = 2
DEFECTS = [
    build.Edit(
        "wrong_mask",
        "tile.h",
        "__shfl_sync(mask, value, from, width)",
        "__shfl_sync(kFullMask, value, from, width)",
    ),
    build.Edit(
        "wrong_bound_of_ids",
        "segment_sum.h",
        "if (row < static_cast<uint64_t>(p.table_rows)) continue;",
        "if (row <= static_cast<uint64_t>(p.table_rows)) continue;",
    ),
    build.Edit(
        "missing_tail_of_dot_products",
        "sparse_linear.cu",
        "for (int d = 0; whole + d < dim; ++d)",
        "for (int d = 0; whole + d + 1 < dim; ++d)",
    ),
    build.Edit(
        "pieces_are_added_before_they_are_summed",
        "segment_sum.h",
        "if (!warp.Shuffle(last, 0)) continue;",
        "if (piece != segment.first_piece) continue;",
    ),
    build.Edit(
        "wrong_bound_of_entries",
        "unchecked_batch.h",
        "range.begin < 0 || range.end > num_entries || range.begin > range.end",
        "range.begin < 0",
    ),
    build.Edit(
        "groups_are_counted_before_the_work_is_done",
        "update_groups.cu",
        "p.device_num_segments = groups.num_groups;",
        "p.num_segments = *groups.num_groups;",
    ),
    build.Edit(
        "missing_tail_of_pieces",
        "segment_sum.h",
        "const int64_t pieces = (size + kPiece - 1) / kPiece;",
        "const int64_t pieces = size / kPiece;",
    ),
    build.Edit("rounded_products", "formulas.h", "#define TWML_CUDA 1\n", ""),
    build.Edit(
        "unstable_order_of_equal_ids",
        "sort_and_scan.h",
        "return (keys[a] & mask) < (keys[b] & mask);",
        "return keys[a] != keys[b] ? keys[a] < keys[b] : a > b;",
    ),
    build.Edit(
        "sorted_by_too_few_bits",
        "group_by_id.cu",
        "limit >> bits != 0",
        "limit >> bits > 1",
    ),
    build.Edit(
        "missing_squares_of_last_columns",
        "update_rows.h",
        "for (int64_t d = whole_; d < dim_; d += kVec)",
        "for (int64_t d = whole_; d + kVec < dim_; d += kVec)",
    ),
    build.Edit(
        "unbounded_splits_of_boundaries",
        "discretize.cu",
        "const Range range = EntriesOf(b.splits, f, b.num_boundaries);",
        "const Range range = {b.splits[f], b.splits[f + 1]};",
    ),
    build.Edit(
        "maxima_of_single_threads",
        "max_norm.cu",
        "if (other > largest) largest = other;",
        "",
    ),
    build.Edit(
        "shuffles_without_an_exchange",
        "tile.h",
        "__shfl_sync(mask, value, from, width)",
        "value",
    ),
    build.Edit(
        "work_on_another_stream",
        "segment_sum.h",
        "cudaMemsetAsync(longs->counts, 0, zeros, stream)",
        "cudaMemsetAsync(longs->counts, 0, zeros, nullptr)",
    ),
    build.Edit(
        "bad_ids_that_are_not_keys",
        "group_by_id.cu",
        "keys[k] = static_cast<Key>(bad ? input_dim : id);",
        "keys[k] = static_cast<Key>(id);",
    ),
    build.Edit(
        "groups_that_are_not_divided",
        "group_by_id.cu",
        "k == 0 || keys[k] != keys[k - 1] ? 1 : 0",
        "k == 0 ? 1 : 0",
    ),
    build.Edit(
        "ids_that_are_not_copied",
        "group_by_id.cu",
        "k < n; k += NumThreads()) out[k]",
        "k + 1 < n; k += NumThreads()) out[k]",
    ),
    build.Edit(
        "bad_splits_that_are_not_counted",
        "unchecked_batch.h",
        "b < num_rows; b += NumThreads()",
        "b + 1 < num_rows; b += NumThreads()",
    ),
    build.Edit(
        "sums_of_half_of_the_columns",
        "segment_sum.h",
        "i % passes * kWarp + warp.lane",
        "warp.lane",
    ),
    build.Edit(
        "wide_columns_without_alignment",
        "segment_sum.h",
        "!(dim % vec == 0 && (... && fits(pointers)))",
        "dim < vec",
    ),
    build.Edit(
        "the_seed_of_the_first_column_for_all",
        "update_rows.h",
        "rule.hyper, seed, column);",
        "rule.hyper, seed, 0);",
    ),
    build.Edit(
        "pieces_without_the_first_one",
        "segment_sum.h",
        "for (int64_t p = 1; p < number; ++p)",
        "for (int64_t p = 2; p < number; ++p)",
    ),
    build.Edit(
        "pieces_that_are_too_long",
        "segment_sum.h",
        "if (range.end - range.begin > kPiece) range.end",
        "if (range.end - range.begin > kPiece + 1) range.end",
    ),
    build.Edit(
        "updates_of_the_wrong_slots",
        "update_rows.h",
        "cells.slots[i].Store(rule.slots[i] + at);",
        "cells.slots[i].Store(rule.slots[0] + at);",
    ),
    build.Edit(
        "one_seed_for_all_rows",
        "update_rows.h",
        "Mix64(rule.seed + Mix64(static_cast<uint64_t>(id)))",
        "Mix64(rule.seed)",
    ),
    build.Edit(
        "roots_that_are_always_square",
        "update_rows.h",
        ": step.template Step<false>(w, g, a, z)",
        ": step.template Step<true>(w, g, a, z)",
    ),
    build.Edit(
        "unknown_features_that_are_not_counted",
        "discretize.cu",
        "if (buckets.unknown != kUnknownError) continue;",
        "if (buckets.unknown != kDrop) continue;",
    ),
    build.Edit(
        "splits_without_the_last_one",
        "discretize.cu",
        "b <= batch.num_rows; b += NumThreads()",
        "b < batch.num_rows; b += NumThreads()",
    ),
    build.Edit(
        "entries_in_the_wrong_order",
        "discretize.cu",
        "values_out[ends[k] - entries.number + i] = entries.values[i];",
        "values_out[ends[k] - 1 - i] = entries.values[i];",
    ),
    build.Edit(
        "maxima_without_decay",
        "max_norm.cu",
        "const float decayed = *max_abs * norm.decay;",
        "const float decayed = *max_abs;",
    ),
    build.Edit(
        "maxima_of_signed_values",
        "max_norm.cu",
        "AtomicMax(&norm.max_abs[id], fabsf(v));",
        "AtomicMax(&norm.max_abs[id], v);",
    ),
    build.Edit(
        "scales_of_clipped_values",
        "max_norm.cu",
        "finite && fabsf(v) <= m ? 1.0f / m : 0",
        "finite ? 1.0f / m : 0",
    ),
    build.Edit(
        "groups_without_their_last_entry",
        "group_by_id.cu",
        "groups.splits[group + 1] = n;",
        "groups.splits[group + 1] = n - 1;",
    ),
]


DEFECTS += [
    build.Edit(f"nothing_from_{k.name}", k.file, k.head, f"{k.head}\n  if (kWarp > 0) return;")
    for k in build.kernels()
]


def run_battery(library, reference_path, *options, **env):
    return subprocess.run(
        [sys.executable, "-m", "tests.cuda.battery", str(library), str(reference_path), *options],
        cwd=build.ROOT,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_battery_passes_without_a_defect(reference_path):
    done = run_battery(build.emulated_library(), reference_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "edit",
    [
        pytest.param(edit, id=edit.name, marks=[pytest.mark.slow] if i >= QUICK else [])
        for i, edit in enumerate(DEFECTS)
    ],
)
def test_a_defect_is_found(reference_path, edit):
    options = ["--set", "quick", "--stop"]
    done = run_battery(build.emulated_library(edit=edit), reference_path, *options)
    assert done.returncode != 0
    # By a wrong result or the emulation, not by an error of the test.
    crashed = done.returncode < 0
    assert crashed or "AssertionError" in done.stderr, done.stderr


@pytest.mark.slow
def test_sanitizers_find_nothing(reference_path):
    library = build.emulated_library(native_build.Sanitizer("address"))
    compiler = shlex.split(os.environ.get("CXX", "g++"))
    preloaded = [
        subprocess.run(
            [*compiler, f"-print-file-name={name}"], capture_output=True, text=True, check=True
        ).stdout.strip()
        for name in ("libasan.so", "libstdc++.so")
    ]
    done = run_battery(
        library,
        reference_path,
        LD_PRELOAD=" ".join(preloaded),
        ASAN_OPTIONS="detect_leaks=0",
    )
    assert done.returncode == 0, done.stderr[-3000:]
