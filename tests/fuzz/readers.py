"""Reads files that are valid but for a few changed bytes, with every reader and loader of Python.

`python -m tests.fuzz.readers --seconds 60` prints each exception that is no clear error, with the
command that repeats it. Each read has a budget of time and memory by the bytes of the file.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import dataclasses
import json
import random
import sys
import tempfile
import time
import tracemalloc
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from twml_ops.data import DataError, open_source
from twml_ops.data.schema_file import read_schema

TOKENS = [
    *(b",", b"\t", b"\n", b"\r\n", b"\r", b'"', b'""', b"'", b";", b"|", b":", b"#", b" ", b"\0"),
    *(b"\xef\xbb\xbf", b"\xff", b"\xc3", b"\xe2\x82\xac", b"0x10", b"1e400", b"1e-400", b"-0",
      b"+1"),
    *(b"nan", b"inf", b"-Infinity", b"NA", b"null", b"true", b"None", b".", b"-", b"1_000", b"1,5"),
    *(b"9223372036854775807", b"9223372036854775808", b"18446744073709551616", b"007", b"16777217"),
    *(b"2024-02-30", b"[", b"]", b"{", b"}", b"[]", b"{}", b"-1", b"0", b"1", b"2", b"&a ", b"*a"),
    *(b"a" * 300, b"[" * 3000, b"9" * 5000, b"label", b"columns", b"features"),
]  # fmt: skip
SECONDS_OF_BYTE, SECONDS = 2e-4, 2.0
MEMORY_OF_BYTE, MEMORY = 2000, 1 << 26


def mutated(rng: random.Random, text: bytes) -> bytes:
    """The text with one to three places changed: bytes, tokens, parts that are cut or repeated."""
    for _ in range(rng.choice([1, 1, 2, 3])):
        at = rng.randrange(len(text) + 1)
        end = min(len(text), at + rng.choice([0, 0, 1, 1, 2, 5, 20]))
        kind = rng.random()
        if kind < 0.55:
            new = rng.choice(TOKENS)
        elif kind < 0.7:
            new = bytes([rng.randrange(256)])
        elif kind < 0.8:
            new = b""
        elif kind < 0.95:
            new = text[at:end] * 2
        else:
            text, new = text[:at], b""
        text = text[:at] + new + text[end:]
    return text


class Reader(NamedTuple):
    """One reader: valid contents of its file, and how it reads it."""

    seeds: Callable[[], list[bytes]]
    name: str  # of the file
    read: Callable[[Path], Any]
    errors: tuple[type[BaseException], ...] = (DataError, FileNotFoundError)


def _rows(scheme: str, options: str = "", **keywords: Any) -> Callable[[Path], Any]:
    def read(path: Path) -> int:
        source = open_source(f"{scheme}:{path}{options}", **keywords)
        return sum(len(block) for block in source.blocks())

    return read


_CSV = (
    b'label,age,city,note,time\n1,7,a,"x, ""y""\nz",2024-02-29 10:00\n0,,b,NA,2024-03-01\n'
    b'0,2.5,True,"",\n1,-3e2,007,q,2023-12-31T23:59:59Z\n'
)
_CRITEO = b"".join(
    b"\t".join([b"%d" % (i % 2), *(b"%d" % (i * j) for j in range(13)), *[b"%08x" % i] * 26])
    + b"\n"
    for i in range(4)
)
_SCHEMA = b"""features:
  - {name: age, kind: continuous}
  - {name: city, kind: categorical}
  - {name: tags, kind: bag, separator: "|"}
labels: [label]
"""


def _schema_seeds() -> list[bytes]:
    from twml_ops.data import Schema
    from twml_ops.data.schema_file import schema_to_text

    schema = Schema(("age",), ("city", "tags"), 0, "x", ("tags",), {"tags": "w"}, labels=("y",))
    return [schema_to_text(schema, "yaml").encode(), schema_to_text(schema, "json").encode()]


def _npz(make: Callable[[Path], Any]) -> Callable[[], list[bytes]]:
    def seeds() -> list[bytes]:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "file.npz"
            make(path)
            found = [p for p in Path(folder).iterdir() if p.is_file()]
            return [found[0].read_bytes()]

    return seeds


def _write_known(path: Path) -> None:
    np.savez(path, format=1, fields=np.array(["a"]), bits=np.array([3]), ids_0=np.array([1, 5, 9]))


def _read_known(path: Path) -> Any:
    from twml_ops._known_categories import KnownCategories, read_arrays

    return read_arrays(path, KnownCategories._of)


def _costs_seed() -> list[bytes]:
    parts = {"step": 3.5, "message": 1.0, "table": 0.25}
    return [
        json.dumps({"microseconds": {k: parts for k in ("alone", "worker", "server")}}).encode()
    ]


def _read_costs(path: Path) -> Any:
    from twml_ops.cli.plan import read_costs

    return read_costs(path)


def _read_tables(path: Path) -> Any:
    from twml_ops.cli.plan_tables import read_tables

    return read_tables(path)


def _table_plan_seed() -> list[bytes]:
    from twml_ops.planning.sharding_plan import ShardedTable, ShardingPlan

    tables = ShardedTable("table", 1), ShardedTable("row", 0), ShardedTable("column", 1)
    plan = ShardingPlan(tables, (0.5, 0.25), (1e6, 2e6))
    return [json.dumps(plan.to_json(["a/kernel", "b/kernel", "c"])).encode()]


def _read_table_plan(path: Path) -> Any:
    from twml_ops.planning.sharding_plan import read_plan

    return read_plan(path)


def _manifest_seeds() -> list[bytes]:
    from twml_ops.checkpoint.manifest import FORMAT, VERSION, VariableEntry

    entry = VariableEntry("a/b", "b", "float32", (3, 2), "data-0", 0, 24, 77)
    content = {"format": FORMAT, "version": VERSION, "sequence": 3, "step": 5, "base": None}
    values = {"entries": [dataclasses.asdict(entry)], "values": {"position": [1, 2]}}
    return [json.dumps({**content, **values}).encode()]


def _read_manifest(path: Path) -> Any:
    """A manifest whose content is changed, but not its checksum, and one that is no content."""
    from twml_ops.checkpoint import manifest

    text = path.read_bytes()
    with contextlib.suppress(ValueError, RecursionError):
        content = json.loads(text)
        crc = manifest.checksum(manifest._canonical(content))
        text = json.dumps({"checksum": crc, "content": content}).encode()
    (path.parent / manifest.MANIFEST).write_bytes(text)
    made = manifest.Manifest.read(path.parent)
    return made.data_bytes, made.sequence + made.step, dict(made.values)


def _earlier_scorer(path: Path) -> Any:
    from twml_ops.export.scorer_files import EarlierScorer

    return EarlierScorer(path.parent, path.parent.parent / "other")


def _read_body(path: Path) -> Any:
    from twml_ops.serving.version import read_json

    return read_json(path.read_bytes())


def readers() -> dict[str, Reader]:
    """All readers by name."""
    from twml_ops.checkpoint import CheckpointError
    from twml_ops.cli.errors import UserError
    from twml_ops.serving.errors import RequestError

    json_errors = (ValueError, UserError)
    return {
        "csv": Reader(lambda: [_CSV], "x.csv", _rows("csv")),
        "tsv": Reader(lambda: [_CSV.replace(b",", b"\t")], "x.tsv", _rows("csv")),
        "csv_in_parts": Reader(lambda: [_CSV], "x.csv", _rows("csv", "[1:3]")),
        "criteo": Reader(lambda: [_CRITEO], "x.tsv", _rows("criteo")),
        "libsvm": Reader(lambda: [b"1 1:0.5 7:2 # c\n-1 3:1e-3\n\n+1 2:-.5\n"], "x.txt",
                         _rows("libsvm")),
        "schema_yaml": Reader(lambda: [*_schema_seeds()[:1], _SCHEMA], "x.yaml", read_schema),
        "schema_json": Reader(lambda: _schema_seeds()[1:], "x.json", read_schema),
        "known_categories": Reader(_npz(_write_known), "x.npz", _read_known, (ValueError,)),
        "costs": Reader(_costs_seed, "x.json", _read_costs, json_errors),
        "tables": Reader(
            lambda: [b'{"tables": [{"name": "a", "rows": 9, "units": 4, "entries": 2.5}]}'],
            *("x.json", _read_tables, json_errors),
        ),
        "table_plan": Reader(_table_plan_seed, "x.json", _read_table_plan, (ValueError,)),
        "manifest": Reader(_manifest_seeds, "x.json", _read_manifest, (CheckpointError,)),
        "scorer": Reader(
            lambda: [b'{"format": 2, "base": {"folder": "1"}, "fingerprint": "ab"}'],
            *("scorer.json", _earlier_scorer, (ValueError, FileNotFoundError)),
        ),
        "body": Reader(lambda: [b'{"instances": [{"a": [1, 2.5, null, "x"]}]}'], "x", _read_body,
                       (RequestError,)),
    }  # fmt: skip


def run_case(name: str, reader: Reader, number: int, folder: Path) -> tuple[str, str]:
    """Reads one changed file. Returns `read`, `refused` or `finding`, and what was found."""
    rng = random.Random(f"{name} {number}")
    text = mutated(rng, rng.choice(reader.seeds()))
    path = folder / reader.name
    path.write_bytes(text)
    start = time.process_time()
    tracemalloc.reset_peak()
    result, found = "read", ""
    try:
        reader.read(path)
    except reader.errors as e:
        result = "refused"
        if len(str(e)) > 8000:
            found = f"a message of {len(str(e))} characters: {str(e)[:200]!r}"
    except Exception as e:
        found = f"{type(e).__name__}: {e}"[:300]
    seconds = time.process_time() - start
    if seconds > SECONDS + SECONDS_OF_BYTE * len(text):
        found = f"{seconds:.1f} s for {len(text)} bytes"
    if tracemalloc.is_tracing():
        peak = tracemalloc.get_traced_memory()[1]
        if peak > MEMORY + MEMORY_OF_BYTE * len(text):
            found = f"{peak} bytes of memory for {len(text)} bytes"
    return ("finding", found) if found else (result, "")


def run(
    names: list[str], numbers: Iterator[int], seconds: float
) -> tuple[dict[str, Any], list[str]]:
    """Runs cases of all readers in turn. Returns the counts and the findings."""
    known, counts, findings = readers(), collections.defaultdict(collections.Counter), []
    end = time.monotonic() + seconds
    warnings.simplefilter("ignore")  # of what a source has guessed
    with tempfile.TemporaryDirectory() as folder:
        for number in numbers:
            for name in names:
                result, found = run_case(name, known[name], number, Path(folder))
                counts[name][result] += 1
                if found:
                    findings.append(f"{name} {number}: {found}")
            if time.monotonic() > end:
                break
    return counts, findings


def main(arguments: list[str]) -> int:
    """Runs the readers for some time; see the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--count", type=int, default=1 << 30)
    parser.add_argument("readers", nargs="*", default=list(readers()))
    options = parser.parse_args(arguments)
    tracemalloc.start()
    numbers = iter(range(options.first, options.first + options.count))
    counts, findings = run(options.readers, numbers, options.seconds)
    for line in findings:
        print(f"finding {line}")
    for name, of_reader in counts.items():
        print(f"{name:18} {of_reader['read']:7} read {of_reader['refused']:7} refused")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
