"""Defects of the kernels do not go unnoticed, and sanitizers find none."""

import os
import shlex
import subprocess
import sys

import pytest

import native_build
from tests.cuda import build

# The first ones stand for all in the quick tests; each takes a compilation.
QUICK = 4
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
        "if (row < 0) continue;",
        "if (row < -1) continue;",
    ),
    build.Edit(
        "missing_tail_of_dot_products",
        "sparse_linear.cu",
        "for (int i = 0; whole + i < dim; ++i)",
        "for (int i = 0; whole + i + 1 < dim; ++i)",
    ),
    build.Edit(
        "pieces_are_added_before_they_are_summed",
        "segment_sum.h",
        """    TWML_LAUNCH((SumPieces<W, Id, Consume>), grid, kThreads, stream, launch);
    TWML_LAUNCH((AddPieces<W, Id, Consume>), grid, kThreads, stream, launch);
""",
        """    TWML_LAUNCH((AddPieces<W, Id, Consume>), grid, kThreads, stream, launch);
    TWML_LAUNCH((SumPieces<W, Id, Consume>), grid, kThreads, stream, launch);
""",
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
        "for (int64_t d = whole_; d < dim_; ++d)",
        "for (int64_t d = whole_; d + 1 < dim_; ++d)",
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
        "groups_without_their_last_entry",
        "group_by_id.cu",
        "groups.splits[group + 1] = n;",
        "groups.splits[group + 1] = n - 1;",
    ),
]


def run_battery(library, reference_path, **env):
    return subprocess.run(
        [sys.executable, "-m", "tests.cuda.battery", str(library), str(reference_path)],
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
    done = run_battery(build.emulated_library(edit=edit), reference_path)
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
