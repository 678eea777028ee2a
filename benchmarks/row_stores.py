"""Which store serves the rows of tables that are larger than memory: RocksDB, blocks or segments.

`python -m benchmarks.row_stores`: a table of 256 MiB. Steps read random rows and write as many. The
device's own random reads are measured between the stores. RocksDB needs librocksdb-dev
(`apt-get install librocksdb-dev`); it is left out where it is missing. Memory is not limited, so
figures through the page cache hold for files that fit into memory.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks import machine, tables

NAMES = {
    "segments": "segments (`RowStore`)",
    "blocks": "a place for each row",
    "rocksdb": "RocksDB",
}
ROOT = Path(__file__).resolve().parent.parent
CORE = ("aligned_buffer", "block_io", "io_ring", "row_file", "row_store")


def main(
    folder: Annotated[Path, typer.Option(help="On the device that is measured.")] = Path("."),
    rows: Annotated[int, typer.Option(min=1, help="Of the table.")] = 2**18,
    row_bytes: Annotated[int, typer.Option(min=1, help="Of a row with its slots.")] = 1024,
    seconds: Annotated[float, typer.Option(min=0.1, help="Of each measurement.")] = 4.0,
    rounds: Annotated[int, typer.Option(min=1, help="Measurements of each store.")] = 3,
    json_file: Annotated[Path | None, typer.Option("--json", help="Where to write them.")] = None,
    page: Annotated[Path | None, typer.Option(help="Markdown file to put the table into.")] = None,
) -> None:
    """Compares stores of rows."""
    found = measure(folder, rows, row_bytes, seconds, rounds)
    print(
        f"{'store':<10} {'page cache':<11} rows/s  of reads/s  read x  written x  CPU s/10^6 rows"
    )
    for each in found["stores"]:
        cached = "no" if each["direct"] else "yes"
        print(
            f"{each['store']:<10} {cached:<11} {each['rows_per_second']:6.0f} "
            f"{each['of_device']:10.2f} {each['read_amplification']:7.2f} "
            f"{each['write_amplification']:10.2f} {each['cpu_seconds_per_million']:10.1f}"
        )
    print(f"random reads of the device: {found['reads_per_second']:.0f} a second")
    sections = {"stores": table(found)}
    tables.record(found, json_file, page, sections, "benchmarks/row_stores.py")


def table(found: dict[str, Any]) -> str:
    """The results as Markdown.

    Args:
        found: of `measure`.

    Returns:
        A table and the description of the machine.
    """
    lines = [
        "| store | page cache | rows/s | of the device's reads/s | bytes read | bytes written "
        "| CPU s for a million rows |",
        "|---|---|---|---|---|---|---|",
    ]
    for each in found["stores"]:
        lines.append(
            f"| {NAMES[each['store']]} | {'no' if each['direct'] else 'yes'} "
            f"| {each['rows_per_second']:,.0f} | {each['of_device']:.2f} "
            f"| {each['read_amplification']:.1f} × | {each['write_amplification']:.1f} × "
            f"| {each['cpu_seconds_per_million']:.1f} |"
        )
    text = (
        f"{found['rows']:,} rows of {found['row_bytes']:,} bytes. The device did "
        f"{found['reads_per_second']:,.0f} random reads of that size a second (64 at a time, "
        "O_DIRECT), the median of measurements between the measurements of the stores."
    )
    return "\n".join([text, "", *lines, "", tables.machine(found["machine"])])


def measure(folder: Path, rows: int, row_bytes: int, seconds: float, rounds: int) -> dict[str, Any]:
    """The medians of all stores, with the reads per second of the device beside them.

    Args:
        folder: on the device that is measured.
        rows: the number of rows of the table.
        row_bytes: the bytes of a row.
        seconds: the seconds of each measurement.
        rounds: measurements of each store.

    Returns:
        The machine, the reads per second, and one dict for each store and mode.
    """
    with tempfile.TemporaryDirectory(dir=folder) as scratch, tempfile.TemporaryDirectory() as build:
        program, stores = compile_program(Path(build))
        arguments = [scratch, str(rows), str(row_bytes), str(seconds)]
        results: dict[tuple[str, bool], list[dict[str, float]]] = {}
        reads: list[float] = []
        for _ in range(rounds):
            for direct in (True, False):
                for store in stores:
                    reads.append(run(program, "probe", arguments, True)["reads_per_second"])
                    found = run(program, store, arguments, direct)
                    found["of_device"] = found["rows_per_second"] / reads[-1]
                    results.setdefault((store, direct), []).append(found)
    medians = [
        {"store": store, "direct": direct}
        | {name: statistics.median(each[name] for each in found) for name in found[0]}
        for (store, direct), found in results.items()
    ]
    return {
        "machine": machine.describe(machine.command_line("benchmarks.row_stores"), packages=()),
        "rows": rows,
        "row_bytes": row_bytes,
        "reads_per_second": statistics.median(reads),
        "stores": medians,
    }


def compile_program(folder: Path) -> tuple[Path, list[str]]:
    """Compiles benchmarks/row_stores.cc with the core's files, with $CXX or g++.

    Args:
        folder: for the program.

    Returns:
        The program and the names of its stores.
    """
    program = folder / "row_stores"
    compiler = os.environ.get("CXX", "g++").split()
    sources = [Path(__file__).with_suffix(".cc"), *(ROOT / f"cc/core/{name}.cc" for name in CORE)]
    command = [*compiler, "-std=c++17", "-O2", f"-I{ROOT}", *map(str, sources), "-o", str(program)]
    with_rocksdb = [*command, "-DTWML_ROCKSDB", "-lrocksdb", "-pthread"]
    if subprocess.run(with_rocksdb, capture_output=True, check=False).returncode == 0:
        return program, ["segments", "blocks", "rocksdb"]
    subprocess.run([*command, "-pthread"], check=True)
    return program, ["segments", "blocks"]


def run(program: Path, kind: str, arguments: list[str], direct: bool) -> dict[str, float]:
    """Runs one measurement.

    Args:
        program: of `compile_program`.
        kind: "probe" for the device alone, or the name of a store.
        arguments: folder, rows, bytes of a row and seconds.
        direct: whether to go past the page cache.

    Returns:
        What the program has printed.
    """
    command = [str(program), kind, *arguments, str(int(direct))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr}")
    found: dict[str, float] = json.loads(done.stdout)
    return found


if __name__ == "__main__":
    typer.run(main)
