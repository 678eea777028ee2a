"""Scoring with a table of 10 times the memory, from files, under a limit of memory.

`python -m benchmarks.scoring_from_files --folder FOLDER`: processes score Zipf-distributed requests
with the same model, one process for each way to keep its table. The memory of a process, its
share of the page cache included, is limited to a tenth of the float32 table (cgroup v1, for which
root is needed). The random reads per second of the device are measured between the turns, with
blocks of the size that the scorer reads, as many at the same time, and the same injected delay. A
scorer can be as fast as

    reads/s of the device / rows that a request misses.

Latencies are measured with requests that arrive at 0.7 of this rate, or of the throughput if it is
less. An injected latency is a lower limit of the time of each read, for media that are slower than
this one. The table in memory, without a limit, is beside them: it has no device to wait for.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from benchmarks import machine, tables
from benchmarks.json_process import JsonProcess
from twml_ops._scorer import FORMAT, PROGRAM_FILE

ROOT = Path(__file__).resolve().parent.parent
UNITS_OF_OUTPUT = 16
LOAD = 0.7  # of the bound, at which latencies are measured
PART_ROWS = 1 << 16
WARM_TURNS = 3
# Name, storage, format of rows, injected microseconds, share of the memory for rows, lists of ids.
SETTINGS: tuple[tuple[str, str, str, int, float, int], ...] = (
    ("in memory, without a limit", "memory", "float32", 0, 0.0, 0),
    ("O_DIRECT", "direct", "float32", 0, 0.75, 0),
    ("page cache", "file", "float32", 0, 0.5, 0),
    ("mapped", "mapped", "float32", 0, 0.0, 0),
    ("O_DIRECT, +10 µs", "direct", "float32", 10, 0.75, 0),
    ("O_DIRECT, +100 µs", "direct", "float32", 100, 0.75, 0),
    ("O_DIRECT, bfloat16", "direct", "bfloat16", 0, 0.75, 0),
    ("O_DIRECT, int8", "direct", "int8", 0, 0.75, 0),
    ("O_DIRECT, int4", "direct", "int4", 0, 0.75, 0),
    ("O_DIRECT, repeated lists", "direct", "float32", 0, 0.75, 1 << 16),
    ("the same, a third for sums", "sums", "float32", 0, 0.5, 1 << 16),
)


def main(
    folder: Annotated[Path, typer.Option(help="On the device that is measured.")] = Path("."),
    rows: Annotated[int, typer.Option(min=1024, help="Of the table.")] = 2**22,
    units: Annotated[int, typer.Option(min=4, help="Columns of the table.")] = 32,
    candidates: Annotated[int, typer.Option(min=1, help="Rows of a request.")] = 10,
    row_length: Annotated[int, typer.Option(min=1, help="Mean ids of a row.")] = 40,
    skew: Annotated[float, typer.Option(help="Zipf exponent of the ids.")] = 1.05,
    callers: Annotated[int, typer.Option(min=1, help="Requests at the same time.")] = 6,
    depth: Annotated[int, typer.Option(min=1, help="Reads of a request at the same time.")] = 64,
    seconds: Annotated[float, typer.Option(help="Of each measurement.")] = 3.0,
    warm: Annotated[float, typer.Option(help="Seconds, up to 3 times, to fill caches.")] = 6.0,
    rounds: Annotated[int, typer.Option(min=1, help="Measurements of the throughput.")] = 2,
    only: Annotated[str, typer.Option(help="Text in the names of the settings.")] = "",
    limit: Annotated[bool, typer.Option(help="Limits memory; needs root.")] = True,
    json_file: Annotated[Path | None, typer.Option("--json", help="Where to write them.")] = None,
    page: Annotated[Path | None, typer.Option(help="Markdown file to put the table into.")] = None,
) -> None:
    """Compares ways to keep a table that is larger than memory."""
    sizes = {
        "rows": rows,
        "units": units,
        "candidates": candidates,
        "row_length": row_length,
        "skew": skew,
        "callers": callers,
        "depth": depth,
        "limit": limit,
    }
    chosen = [setting for setting in SETTINGS if only in setting[0]]
    command = machine.command_line("benchmarks.scoring_from_files")
    described = machine.describe(command, packages=("numpy",))
    found = measure(folder, sizes, chosen, seconds, warm, rounds)
    result = {"machine": described, "sizes": sizes, "results": found}
    text = f"{table(result)}\n\n{tables.machine(described)}"
    tables.record(result, json_file, page, {"files": text}, "benchmarks/scoring_from_files.py")


def measure(
    folder: Path,
    sizes: dict[str, Any],
    chosen: Sequence[tuple[str, str, str, int, float, int]],
    seconds: float,
    warm: float,
    rounds: int,
) -> list[dict[str, Any]]:
    """Measures settings one after the other.

    Args:
        folder: on the device that is measured.
        sizes: the sizes of the table and the requests.
        chosen: items of `SETTINGS`.
        seconds: the seconds of each measurement.
        warm: seconds of a turn that fills the cache; there are up to 3 of them.
        rounds: measurements of the throughput.

    Returns:
        A dict for each setting.
    """
    results = []
    with (
        tempfile.TemporaryDirectory(dir=folder) as scratch,
        tempfile.TemporaryDirectory() as build,
    ):
        program = compile_probe(Path(build))
        for setting in chosen:
            model = Path(scratch) / setting[2]
            if not model.exists():
                write_model(model, sizes, setting[2])
            results.append(_measure_one(program, model, sizes, setting, seconds, warm, rounds))
            print_result(results[-1])
    return results


def _measure_one(
    program: Path,
    model: Path,
    sizes: dict[str, Any],
    setting: tuple[str, str, str, int, float, int],
    seconds: float,
    warm: float,
    rounds: int,
) -> dict[str, Any]:
    name, storage, form, delay, share, lists = setting
    budget = sizes["rows"] * sizes["units"] * 4 // 10
    options: dict[str, Any] = {"storage": storage, "least_bytes": 0}
    if storage not in ("mapped", "memory"):
        options |= {
            "storage": "file",
            "direct": storage != "file",
            "cache_bytes": int(budget * share),
            "sums_cache_bytes": budget // 4 if storage == "sums" else 0,
            "queue_depth": sizes["depth"],
            "delay_nanoseconds": 1000 * delay,
        }
    given = sizes | {
        "folder": str(model),
        "options": options,
        "lists": lists,
        "budget": budget if sizes["limit"] and storage != "memory" else 0,
    }
    callers = sizes["callers"]
    drop_pages(model / "table.npy")
    with Process(given) as process:
        direct = process.statistics["direct"]
        filled = 0
        for _ in range(WARM_TURNS):
            filled += process.turn(callers=callers, seconds=warm)["misses"]
            if filled >= options.get("cache_bytes", 0) // _row_bytes(model):
                break
        block = 4096
        if direct:
            probe = process.turn(callers=1, seconds=0.2)
            block = min(4096, max(512, probe["bytes_read"] // max(1, probe["reads"]) // 512 * 512))
        reads: list[float] = []
        turns: list[dict[str, Any]] = []
        for _ in range(rounds):
            file = str(model / "table.npy")
            reads.append(
                probe_device(program, file, block, callers * sizes["depth"], seconds / 2, delay)
            )
            turns.append(process.turn(callers=callers, seconds=seconds))
        reads.append(
            probe_device(program, file, block, callers * sizes["depth"], seconds / 2, delay)
        )
        total = {k: sum(turn[k] for turn in turns) for k in turns[0]}
        throughput = statistics.median(turn["requests"] / turn["seconds"] for turn in turns)
        device = statistics.median(reads)
        made = total["requests"]
        # A mapped table does not know its misses: they are the pages that were read.
        read = total["misses"] or total["device_bytes"] / 4096
        bound = None if storage == "memory" else device * made / max(read, 1)
        rate = LOAD * (throughput if bound is None else min(bound, throughput))
        latency = process.turn(callers=4 * callers, seconds=1.5 * seconds, rate=max(rate, 1.0))
    return {
        "name": name,
        "format": form,
        "delay_microseconds": delay,
        "table_bytes": (model / "table.npy").stat().st_size,
        "budget": budget,
        "cache_bytes": options.get("cache_bytes", 0),
        "sums_cache_bytes": options.get("sums_cache_bytes", 0),
        "direct": direct,
        "block": block,
        "reads_per_second": device,
        "requests_per_second": throughput,
        "bound": bound,
        "of_bound": bound and throughput / bound,
        "distinct_rows": total["rows"] / made,
        "misses": read / made,
        "reads": total["reads"] / made,
        "hit_rate": total["hits"] / total["rows"] if total["rows"] else None,
        "sum_hit_rate": _share(total["sum_hits"], total["sum_misses"]),
        "read_amplification": _ratio(total["bytes_read"], total["bytes_needed"]),
        "device_amplification": _ratio(total["device_bytes"], total["bytes_needed"]),
        "cpu_seconds": total["cpu"] / made,
        "rate": rate,
        "p50": latency["p50"],
        "p99": latency["p99"],
        "late": latency["late"],
    }


def _row_bytes(model: Path) -> int:
    table = np.load(model / "table.npy", mmap_mode="r")
    return int(table.nbytes // len(table))


def _share(hits: int, misses: int) -> float | None:
    return hits / (hits + misses) if hits + misses else None


def _ratio(a: float, b: float) -> float | None:
    return a / b if b else None


class Process(JsonProcess):
    """A process of benchmarks/scoring_from_files_process.py.

    Args:
        setting: for the process.

    Attributes:
        statistics: the statistics of its scorer before the first turn.
    """

    def __init__(self, setting: dict[str, Any]) -> None:
        # Requests are made by the threads of all callers, and glibc would keep what they free for
        # each of them.
        environment = {"OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1"}
        super().__init__("benchmarks.scoring_from_files_process", setting, environment)
        self.statistics = self._receive()

    def turn(self, **turn: float) -> dict[str, Any]:
        """Sends requests; see `Scoring`.

        Args:
            turn: the arguments of `closed_loop`, or with a rate the arguments of `open_loop`.

        Returns:
            What was measured and counted.
        """
        return self._ask(turn)


def write_model(folder: Path, sizes: dict[str, Any], form: str) -> None:
    """Writes a scorer with one large table and one dense layer.

    Args:
        folder: where to write; it is created.
        sizes: the sizes of the table.
        form: the format of its rows.
    """
    from twml_ops.export.array_files import save_parts
    from twml_ops.export.tables import store_rows

    folder.mkdir()
    rows, units = sizes["rows"], sizes["units"]

    def parts() -> Iterator[Any]:
        for begin in range(0, rows, PART_ROWS):
            rng = np.random.default_rng(begin)
            part = rng.standard_normal((min(PART_ROWS, rows - begin), units), dtype=np.float32)
            yield store_rows(part, form)  # type: ignore[arg-type]

    first = next(parts())
    path = folder / "table.npy"
    stored = (part.rows for part in parts())
    save_parts(path, (rows, first.rows.shape[1]), first.rows.dtype, stored)
    rng = np.random.default_rng(1)
    np.save(folder / "kernel.npy", rng.standard_normal((units, UNITS_OF_OUTPUT), np.float32))
    steps = [
        {
            "op": "sparse_linear",
            "in": ["x_ids", "x_values", "x_row_splits"],
            "out": ["#0"],
            "arrays": {"table": path.name},
            "attributes": first.attributes,
        },
        {
            "op": "dense",
            "in": ["#0"],
            "out": ["#1"],
            "arrays": {"kernel": "kernel.npy"},
            "attributes": {},
        },
    ]
    inputs = {"x_ids": "ids", "x_values": "values", "x_row_splits": "row_splits"}
    program = {"format": FORMAT, "inputs": inputs, "steps": steps, "output": "#1"}
    (folder / PROGRAM_FILE).write_text(json.dumps(program))


def drop_pages(path: Path) -> None:
    """Removes a file from the page cache: pages there may belong to processes without a limit."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def compile_probe(folder: Path) -> Path:
    """Compiles benchmarks/device_reads.cc.

    Args:
        folder: for the program.

    Returns:
        The program.
    """
    program = folder / "device_reads"
    compiler = os.environ.get("CXX", "g++").split()
    sources = [ROOT / "benchmarks/device_reads.cc", ROOT / "cc/core/io_ring.cc"]
    command = [*compiler, "-std=c++17", "-O2", f"-I{ROOT}", *map(str, sources), "-pthread"]
    subprocess.run([*command, "-o", str(program)], check=True)
    return program


def probe_device(
    program: Path, file: str, block: int, depth: int, seconds: float, delay: int
) -> float:
    """The random reads per second of a device.

    Args:
        program: of `compile_probe`.
        file: a file on the device.
        block: bytes of a read.
        depth: reads that run at the same time.
        seconds: how long.
        delay: microseconds that a read takes at least.
    """
    numbers = [block, depth, 2, seconds, 1000 * delay]
    command = [str(program), file, *map(str, numbers)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr}")
    return float(json.loads(done.stdout)["reads_per_second"])


def print_result(r: dict[str, Any]) -> None:
    """Prints a result of `measure` as a line."""
    of_bound = "" if r["bound"] is None else f"{r['of_bound']:.2f} of {r['bound']:.0f} "
    print(
        f"{r['name']:<27} {r['requests_per_second']:7.0f} requests/s, {of_bound}(device "
        f"{r['reads_per_second']:.0f} reads/s of {r['block']} bytes, {r['misses']:.1f} misses and "
        f"{r['reads']:.1f} reads of {r['distinct_rows']:.0f} rows a request); at {r['rate']:.0f}/s "
        f"p50 {1e3 * r['p50']:.2f} ms, p99 {1e3 * r['p99']:.2f} ms; CPU "
        f"{1e6 * r['cpu_seconds']:.0f} µs; hit rate {_percent(r['hit_rate'])}, of sums "
        f"{_percent(r['sum_hit_rate'])}; bytes read {_times(r['read_amplification'])}, of the "
        f"device {_times(r['device_amplification'])}",
        flush=True,
    )


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.1f} %"


def _times(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.1f} ×"


def table(result: dict[str, Any]) -> str:
    """The results as Markdown.

    Args:
        result: what `main` writes as JSON.

    Returns:
        A sentence and a table.
    """
    sizes, found = result["sizes"], result["results"]
    first = found[0]
    limited = "limited to" if sizes["limit"] else "not limited; the caches are parts of"
    text = (
        f"The table has {sizes['rows']:,} rows of {sizes['units']} numbers, "
        f"{first['table_bytes'] / 2**20:.0f} MiB as float32. The memory of the process for tables, "
        f"caches and pages of files is {limited} {first['budget'] / 2**20:.0f} MiB. A request has "
        f"{sizes['candidates']} rows of {sizes['row_length']} ids on average, with the Zipf "
        f"exponent {sizes['skew']:g}; none is repeated. {sizes['callers']} callers send requests, "
        f"each of which reads up to {sizes['depth']} blocks at the same time."
    )
    header = [
        *("table", "hit rate", "of sums", "misses a request", "device, reads/s", "requests/s"),
        *("device allows", "of that", "p50 at 0.7", "p99 at 0.7", "CPU a request", "bytes read"),
    ]
    rows = []
    for r in found:
        rows.append(
            [
                r["name"],
                _percent(r["hit_rate"]),
                _percent(r["sum_hit_rate"]),
                f"{r['misses']:.0f}",
                f"{r['reads_per_second']:,.0f}",
                f"{r['requests_per_second']:,.0f}",
                "" if r["bound"] is None else f"{r['bound']:,.0f}",
                "" if r["bound"] is None else f"{r['of_bound']:.2f}",
                f"{1e3 * r['p50']:.2f} ms",
                f"{1e3 * r['p99']:.2f} ms",
                f"{1e6 * r['cpu_seconds']:.0f} µs",
                _times(r["device_amplification"]),
            ]
        )
    return f"{text}\n\n{tables.markdown(header, rows)}"


if __name__ == "__main__":
    typer.run(main)
