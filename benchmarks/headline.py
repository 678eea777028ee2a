"""What the README says of speed: the fastest peers beside ours, and samples a second."""

from __future__ import annotations

from typing import Any

from benchmarks import tables
from benchmarks.contender import OURS


def section(kernels: dict[str, Any], model: dict[str, Any]) -> str:
    """Two tables, of steps and of `model.fit`, from the raw results of those parts."""
    w, m = kernels["workload"], kernels["machine"]
    tensorflow = next(v for name, v in m["versions"].items() if name.startswith("tensorflow"))
    head = (
        f"A table of {w['input_dim']:,} rows of {w['units']} float32, {w['batch_size']:,} examples "
        f"a batch with about {w['row_length']} features each; a step is forward, backward and "
        f"update ({m['cpu']}, {m['cores']} cores with {m['simd']}, TensorFlow {tensorflow}). "
        f"{tables.measured(kernels)} The fastest is bold:"
    )
    fit = (
        f"The same layer between a discretizer, max-normalization and an MLP, through `model.fit`: "
        f"samples/s, and × the model on `sparse_dense_matmul` (Zipf {w['skew']}; medians of "
        f"{model['rounds']} interleaved fits):"
    )
    return "\n\n".join([head, _steps(kernels), tables.NO_OTHER, fit, _fits(model)])


def _steps(kernels: dict[str, Any]) -> str:
    header = ["ms", "ids", OURS, "TF's best", "torch's best", "FBGEMM"]
    rows = []
    for task, times in kernels["times"].items():
        for d in kernels["unique"]:
            ours = tables.median(times, OURS, d)
            peers = tables.best_peers(kernels, task, d)
            figures = [[tables.milliseconds(ours)]]
            figures += [[_beside(tables.milliseconds(p), p, ours)] for p in peers]
            tables.mark_best(figures, 0)
            rows.append([tables.TASK_TITLES[task], d, *(cell for (cell,) in figures)])
    return tables.markdown(header, rows)


def _fits(model: dict[str, Any]) -> str:
    sizes = list(next(iter(model["times"].values())))
    rows = []
    for rule, by_size in model["times"].items():
        row = [tables.MODEL_TITLES[rule].split(";")[0]]
        for b in sizes:
            ours, stock = (by_size[b][n]["median"] for n in (OURS, "sparse_dense_matmul"))
            row.append(_beside(f"{int(b) / ours:,.0f}", stock, ours))
        rows.append(row)
    return tables.markdown(["optimizer", *(f"B = {b}" for b in sizes)], rows)


def _beside(figure: str, a: float | None, b: float | None) -> str:
    ratio = tables.ratio(a, b)
    return figure if ratio == "–" else f"{figure} ({ratio})"
