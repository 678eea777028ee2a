"""The results as a table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def render(results: Mapping[str, Any]) -> str:
    """The results as Markdown.

    Args:
        results: What __main__.py writes as JSON.
    """
    lines = [f"# {results['device']['name']}: {results['verdict']}", ""]
    lines += [f"{results['started']}, {results['seconds']:.0f} s, `{results['command']}`", ""]
    for name, build in results["builds"].items():
        lines.append(f"- {name}: {build['result']} ({build['seconds']:.0f} s)")
    lines += [f"- {compiler}" for compiler in results["compilers"]]
    checked = results["laws"]["checked"]
    broken = [w for w in checked if w["why"] is not None]
    end = "all" if results["laws"]["complete"] else "not all: no time was left for the others"
    lines.append(f"- laws: {len(checked)} checked ({end}), {len(broken)} broken")
    lines += [f"    - {w['done']}: {_last_line(w['why'])}" for w in broken]
    lines += [f"- compute-sanitizer {n}: {why}" for n, why in results["sanitizer"].items()]
    bandwidth = results["bandwidth"]
    if bandwidth:
        peak = results["device"]["peak_bytes_per_second"]
        of_peak = f", {bandwidth / peak:.0%} of the peak of {peak / 1e9:.0f} GB/s" if peak else ""
        lines.append(f"- a copy in the memory of the device: {bandwidth / 1e9:.0f} GB/s{of_peak}")
    cells = results["cells"]
    end = "all" if results["all_cells"] else "not all"
    lines += [f"- measurements: {len(cells)} ({end})", ""]
    if results["device"]["name"] == "emulation":
        lines += ["The sizes on the emulation are tiny, and its times mean nothing.", ""]
    if cells:
        lines += _table(results)
    return "\n".join(lines) + "\n"


def _table(results: Mapping[str, Any]) -> list[str]:
    peak, copy = results["device"]["peak_bytes_per_second"], results["bandwidth"]
    lines = [
        "Shares are of the least bytes that must be moved. A peer's time is for the forward pass",
        "or for a whole training step, and is compared with the same of twml_ops.",
        "",
        "| measurement | µs | of the peak | of a copy | with forward, µs | peers: µs (ratio) |",
        "|---|---|---|---|---|---|",
    ]
    for cell in results["cells"]:
        found, name = cell.get("found") or {}, cell["done"]
        if "ours" not in found:
            why = found.get("left_out") or _last_line(cell["why"] or "")
            lines.append(f"| {name} | – | – | – | – | {why} |")
            continue
        seconds = found["ours"]["median"]
        whole = found.get("forward_and_step", found["ours"])["median"]
        # The host queues work more slowly than the GPU does it.
        late = " (host)" if found["ours"]["queued"] > 0.9 * seconds else ""
        shares = [f"{found['bytes'] / seconds / b:.1%}" if b else "–" for b in (peak, copy)]
        peers = [
            f"{peer}: {1e6 * t['median']:.0f} ({t['median'] / whole:.2f})"
            for peer, t in found["peers"].items()
        ] + [f"{peer}: {why}" for peer, why in found["skipped"].items()]
        both = f"{1e6 * whole:.0f}" if "forward_and_step" in found else "–"
        text = "; ".join(peers).replace("|", "/").replace("\n", " ") or "–"
        lines.append(
            f"| {name} | {1e6 * seconds:.0f}{late} | {' | '.join(shares)} | {both} | {text} |"
        )
    return lines


def _last_line(text: str) -> str:
    lines = [line for line in text.strip().splitlines() if line.strip()]
    # NumPy ends its errors with the first numbers of the arrays.
    lines = [line for line in lines if line.startswith("Mismatched elements")] or lines
    return lines[-1].strip()[:200] if lines else ""
