"""The tables of docs/serving.md, from what benchmarks/serving.py has measured."""

from __future__ import annotations

from typing import Any

from benchmarks import tables


def sections(found: dict[str, Any]) -> dict[str, str]:
    """The sections of docs/serving.md, by name.

    Args:
        found: what `main` has measured.
    """
    return {
        "latency": latency(found),
        "server": server_table(found),
    }


def latency(found: dict[str, Any]) -> str:
    """The table of the scorer and its peers, and the throughput of several callers."""
    names = list(dict.fromkeys(n for each in found["python"] for n in each["calls"]))
    single = {(c["rows"], c["callers"], c["threads"]): c for c in found["c"]}
    rows = []
    for title, cell in [("C", lambda rows: single[rows, 1, 1])] + [
        (
            name,
            lambda rows, n=name: next(
                (e["calls"].get(n) for e in found["python"] if e["rows"] == rows), None
            ),
        )
        for name in names
    ]:
        cells = [cell(each["rows"]) for each in found["python"]]
        rows.append([title, *(f"{c['p50']:,.1f} / {c['p99']:,.1f}" if c else "" for c in cells)])
    header = ["p50 / p99, µs", *(size_text(each["rows"]) for each in found["python"])]
    lines = [tables.markdown(header, rows), ""]
    for (size, callers, threads), c in single.items():
        if callers > 1 or threads > 1:
            who = f"{callers} callers" if callers > 1 else f"{threads} threads for a request"
            lines.append(
                f"- {size_text(size)}, {who}: p50 {c['p50']:,.1f} µs, p99 "
                f"{c['p99']:,.1f} µs, {c['rate']:,.0f} requests/s, {c['cpu']:.2f} µs of CPU each."
            )
    q = found["LightGBM"]
    lines += [
        "",
        f"LightGBM has {q['trees']} trees, with a log loss of {q['log loss']:.4f} and an AUC of "
        f"{q['AUC']:.4f} on other examples; our model has {q['our log loss']:.4f} and "
        f"{q['our AUC']:.4f}.",
        "",
        tables.machine(found["machine"]),
    ]
    return "\n".join(lines)


def size_text(rows: int) -> str:
    """The size of a request, as a text."""
    return "1 row" if rows == 1 else f"{rows:,} rows"


def server_table(found: dict[str, Any]) -> str:
    """The table of the server."""
    pairs: dict[tuple[int, str], dict[int, dict[str, Any]]] = {}
    for each in found["server"]:
        pairs.setdefault((each["rows"], each["api"]), {})[each["callers"]] = each
    header = [
        *("request", "bytes", "p50, one caller, µs", "p99, µs", "requests/s, 8 callers"),
        "CPU of the server for a request, µs",
    ]
    rows = [
        [
            *(f"{size_text(rows)}, {api}", f"{one['bytes']:,}"),
            *(f"{one['p50']:,.0f}", f"{one['p99']:,.0f}", f"{eight['rate']:,.0f}"),
            f"{one['cpu']:,.0f} to {eight['cpu']:,.0f}"
            if one["cpu"] < eight["cpu"]
            else f"{eight['cpu']:,.0f} to {one['cpu']:,.0f}",
        ]
        for (rows, api), by_callers in pairs.items()
        for one, eight in [(by_callers[1], by_callers[8])]
    ]
    return tables.markdown(header, rows) + "\n\n" + tables.machine(found["machine"])
