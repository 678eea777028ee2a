"""The section of the README about speed: twml_ops and its fastest peers, samples per second."""

from __future__ import annotations

from typing import Any

from benchmarks import tables
from benchmarks.contender import TWML_OPS


def section(kernels: dict[str, Any], model: dict[str, Any]) -> str:
    """Two tables, of single steps and of `model.fit`.

    Args:
        kernels: raw results of `benchmarks.kernels`.
        model: raw results of `benchmarks.model`.
    """
    w, m = kernels["workload"], kernels["machine"]
    tensorflow = next(v for name, v in m["versions"].items() if name.startswith("tensorflow"))
    head = (
        f"The table has {w['input_dim']:,} rows of {w['units']} float32. A batch has "
        f"{w['batch_size']:,} examples with about {w['row_length']} features each. A step is "
        f"forward pass, backward pass and update ({m['cpu']}, {m['cores']} cores with {m['simd']}, "
        f"TensorFlow {tensorflow}). {tables.measured(kernels)} The fastest is bold:"
    )
    fit = (
        "The same layer in a model with a discretizer, max-normalization and an MLP, through "
        "`model.fit`: samples/s, and in brackets the speed relative to the model with "
        f"`sparse_dense_matmul` (Zipf {w['skew']}; medians of {model['rounds']} interleaved fits):"
    )
    return "\n\n".join([head, _steps(kernels), tables.SUBSTITUTES, fit, _fits(model)])


def _steps(kernels: dict[str, Any]) -> str:
    header = ["ms", "ids", TWML_OPS, "TF's best", "torch's best", "FBGEMM"]
    rows = []
    for task, times in kernels["times"].items():
        for d in kernels["unique"]:
            seconds = tables.median(times, TWML_OPS, d)
            peers = tables.best_peers(kernels, task, d)
            figures = [[tables.milliseconds(seconds)]]
            figures += [[_with_ratio(tables.milliseconds(p), p, seconds)] for p in peers]
            tables.mark_best(figures, 0)
            rows.append([tables.TASK_TITLES[task], d, *(cell for (cell,) in figures)])
    return tables.markdown(header, rows)


def _fits(model: dict[str, Any]) -> str:
    sizes = list(next(iter(model["times"].values())))
    rows = []
    for rule, by_size in model["times"].items():
        row = [tables.MODEL_TITLES[rule].split(";")[0]]
        for b in sizes:
            seconds, stock = (by_size[b][n]["median"] for n in (TWML_OPS, "sparse_dense_matmul"))
            row.append(_with_ratio(f"{int(b) / seconds:,.0f}", stock, seconds))
        rows.append(row)
    return tables.markdown(["optimizer", *(f"B = {b}" for b in sizes)], rows)


def _with_ratio(figure: str, a: float | None, b: float | None) -> str:
    ratio = tables.ratio(a, b)
    return figure if ratio == "–" else f"{figure} ({ratio})"
