"""tools/gpu_proof runs from its own files, ends in time, and reports what is wrong or left."""

import ast
import ctypes
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from tests.cuda import build
from tools.gpu_proof import pack, report, stage
from tools.gpu_proof.cells import CELLS, FORWARD, STEPS, Cell

NVCC = os.environ.get("TWML_NVCC") or shutil.which("nvcc")
STANDARD = {*sys.stdlib_module_names, "numpy"}
OPTIONAL = {"torch", "cupy", "cupyx", "fbgemm_gpu", "ninja", "pybind11"}  # found out at run time
needs_compiler = pytest.mark.skipif(not build.has_compiler(), reason="needs a C++ compiler")


def run_proof(folder, *options, python=sys.executable, **env):
    command = [python, "-m", "tools.gpu_proof", "--emulated", "--out", folder / "out", *options]
    return subprocess.run(command, capture_output=True, text=True, check=False, **env)


def results_of(folder):
    return json.loads((folder / "out" / "results.json").read_text())


def test_the_pack_is_small_and_imports_nothing_but_numpy_and_itself():
    files = pack.files()
    assert sum((pack.ROOT / f).stat().st_size for f in files) < 40 * 2**20
    modules = {".".join(f.with_suffix("").parts): f for f in files if f.suffix == ".py"}
    known = STANDARD | OPTIONAL | {"native_build"}
    for name, path in modules.items():
        for node in ast.walk(ast.parse((pack.ROOT / path).read_text())):
            imported = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                imported = [f"{node.module}.{a.name}" for a in node.names]
            for i in imported:
                packed = i in modules or i.rpartition(".")[0] in modules
                assert packed or i.partition(".")[0] in known, f"{name} imports {i}"


def test_the_measurements_are_sixty_with_those_that_are_judged_first():
    assert len({c.name for c in CELLS}) == len(CELLS) == 60
    assert all(c.judged for c in CELLS[:30])
    assert {(c.task, c.bfloat16) for c in CELLS[:30]} == {
        (task, b) for task in (FORWARD, *STEPS) for b in (False, True)
    }


def test_the_least_bytes_count_a_row_once_and_slots_twice():
    cell, ids = Cell("adagrad", 16, 2, 3), np.array([4, 4, 9, 9, 9, 2])
    entries = 6 * 8 + 6 * 4 + 3 * 8
    assert cell.bytes(ids) == entries + 2 * 16 * 4 + 3 * 2 * (16 * 4 + 16 * 4)
    assert Cell(FORWARD, 16, 2, 3, bfloat16=True).bytes(ids) == entries + 2 * 64 + 3 * 32
    assert Cell("rowwise_adagrad", 16, 2, 3).bytes(ids) == entries + 2 * 64 + 3 * 2 * (64 + 4)


def test_a_batch_of_popular_ids_is_in_range_and_repeats_them():
    ids, _, splits = Cell(FORWARD, 8, 50, 40, skew=1.05).batch(10**6, 1)
    assert (ids.min() >= 0) & (ids.max() < 10**6) & (splits[-1] == len(ids))
    assert len(np.unique(ids)) < 0.9 * len(ids)


@needs_compiler
def test_a_run_on_the_emulation_checks_measures_and_writes_both_files(tmp_path):
    done = run_proof(tmp_path, "--laws", "battery", "--no-peers", cwd=build.ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    results = results_of(tmp_path)
    assert results["laws"]["complete"]
    assert [w["why"] for w in results["laws"]["checked"]] == [None] * 9
    assert results["all_cells"]
    assert [c["done"] for c in results["cells"]] == [c.name for c in CELLS]
    assert all(c["why"] is None and c["found"]["ours"]["median"] > 0 for c in results["cells"])
    assert (tmp_path / "out" / "results.md").read_text() == report.render(results)
    assert "its times mean nothing" in done.stdout


@needs_compiler
def test_without_time_a_run_ends_with_what_it_has(tmp_path):
    done = run_proof(tmp_path, "--seconds", "0.001", cwd=build.ROOT)
    assert done.returncode == 1, done.stdout
    results = results_of(tmp_path)
    assert not results["laws"]["complete"]
    assert not results["all_cells"]
    assert not done.stderr


CHILD = """
import json, os, signal, sys
skip = int(sys.argv[-1])
for i in range(skip, 4):
    print(json.dumps({"start": f"item {i}"}), flush=True)
    if i == 1: os.kill(os.getpid(), signal.SIGABRT)
    if i == 3 and "hang" in sys.argv: signal.pause()
    print(json.dumps({"done": f"item {i}", "why": None}), flush=True)
"""


def run_child(tmp_path, *options, limit=1000.0, deadline=1000.0):
    lines = []
    command = [sys.executable, "-S", "-c", CHILD, *options]
    done = stage.run(command, tmp_path, time.monotonic() + deadline, limit, lines.append)
    return done, {line["done"]: line["why"] for line in lines}


def test_an_item_that_crashes_is_reported_and_the_others_are_done(tmp_path):
    done, found = run_child(tmp_path)
    assert done
    assert "the process ended with -6" in found.pop("item 1")
    assert found == {f"item {i}": None for i in (0, 2, 3)}


@pytest.mark.slow
def test_an_item_that_hangs_is_reported(tmp_path):
    _, found = run_child(tmp_path, "hang", limit=15.0)
    assert found["item 3"] == "did not end within 15 s"
    assert found["item 2"] is None


def test_a_child_that_cannot_start_is_reported(tmp_path):
    lines = []
    command = [sys.executable, "-c", "import no_such_module"]
    assert not stage.run(command, tmp_path, time.monotonic() + 1000, 1000, lines.append)
    assert "no_such_module" in lines[0]["why"]


@pytest.mark.slow
@needs_compiler
def test_the_pack_runs_alone_where_there_is_neither_ninja_nor_the_package(tmp_path):
    folder = tmp_path / "bare"
    pack.write(folder, None)
    # -I leaves out PYTHONPATH; the packages of this environment are hidden, except NumPy.
    site = tmp_path / "site"
    site.mkdir()
    numpy = Path(np.__file__).parent
    for path in numpy.parent.glob("numpy*"):
        (site / path.name).symlink_to(path)
    python = Path(getattr(sys, "_base_executable", sys.executable))
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(site)}
    done = run_proof(folder, "--laws", "battery", python=python, cwd=folder, env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    assert results_of(folder)["laws"]["complete"]


@pytest.mark.slow
@pytest.mark.skipif(NVCC is None, reason="needs nvcc: run `make test-nvcc`")
def test_nvcc_compiles_the_kernels_with_the_rounding_of_the_cpu(tmp_path):
    library = tmp_path / "libtwml_cuda.so"
    program = build.ROOT / "tools" / "cuda_library.py"
    command = [sys.executable, program, library, "--nvcc", NVCC, "--arch", "sm_90"]
    subprocess.run(command, check=True)
    loaded = ctypes.CDLL(str(library))
    assert loaded.twml_cuda_abi() == 2
    assert loaded.twml_cuda_num_devices() >= 0  # without a driver: 0
