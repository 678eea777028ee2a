"""Laws of calls that fail, run out of memory, report bad input, or share the device with others."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

from tests.cuda.cases import TABLE_ROWS, Case, batch_of
from tests.cuda.interface import NO_ERRORS, Csr
from tests.cuda.law import Lab, law, same
from tests.cuda.library import CudaLibrary, OnStream

OUT_OF_MEMORY = -1
UNKNOWN_ERROR = 999


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
