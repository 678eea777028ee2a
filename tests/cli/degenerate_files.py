"""Files of examples that are odd or damaged, and what a reader has to make of each."""

from __future__ import annotations

import decimal
import gzip
import io
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from pyarrow import parquet

ROWS, ROW = 12, 5  # examples of a file, and the one of which a cell is changed
SAME, OTHER_ROWS, REFUSED = "same", "other rows", "refused"


class Case(NamedTuple):
    """A file.

    Attributes:
        name: its name.
        content: its bytes.
        expected: SAME: the examples are as in the whole file; OTHER_ROWS: all but `ROW` are, or
            it is refused; REFUSED: it is an error.
    """

    name: str
    content: bytes
    expected: str


def columns(rows: int = ROWS, seed: int = 1) -> dict[str, list[str]]:
    """Columns of numbers, categories, integers, bags and times as text, and labels."""
    rng = np.random.default_rng(seed)
    codes = rng.integers(9, size=rows)
    return {
        "label": [str(int(x)) for x in rng.random(rows) < 0.2 + codes / 15],
        "site": [f"s{i}" for i in codes],
        "code": [str(i) for i in rng.integers(7, size=rows)],
        "price": [f"{x:.3f}" for x in rng.gamma(2.0, size=rows)],
        "tags": ["|".join(f"t{t}" for t in range(i % 4)) for i in rng.integers(9, size=rows)],
        "at": [f"2024-03-{1 + i % 28:02d}T{i % 24:02d}:30:00" for i in range(rows)],
    }


def csv_text(
    table: dict[str, list[str]], delimiter: str = ",", end: str = "\n", quote: str = ""
) -> str:
    """A CSV file with a header."""
    rows = [[*table], *zip(*table.values(), strict=True)]
    return "".join(delimiter.join(quote + x + quote for x in row) + end for row in rows)


def arrow_columns(table: dict[str, list[str]]) -> dict[str, pa.Array]:
    """The columns with the types that they have in Parquet files."""
    return {
        "label": pa.array(map(int, table["label"])),
        "site": pa.array(table["site"]),
        "code": pa.array(map(int, table["code"])),
        "price": pa.array(map(float, table["price"])),
        "tags": pa.array([text.split("|") if text else [] for text in table["tags"]]),
        "at": pa.array(table["at"]).cast(pa.timestamp("us")),
    }


def parquet_bytes(table: dict[str, pa.Array]) -> bytes:
    """A Parquet file."""
    stream = io.BytesIO()
    parquet.write_table(pa.table(table), stream)
    return stream.getvalue()


def cases() -> list[Case]:
    """All files; the first one is whole."""
    return [*_csv_cases(), *_gz_cases(), *_parquet_cases()]


def _csv_cases() -> list[Case]:
    table = columns()
    whole = csv_text(table).encode()

    def cell(name: str, value: str) -> bytes:
        changed = [value if i == ROW else x for i, x in enumerate(table[name])]
        return csv_text({**table, name: changed}).encode("utf-8", "surrogateescape")

    same = {
        "whole": whole,
        "bom": b"\xef\xbb\xbf" + whole,
        "crlf": csv_text(table, end="\r\n").encode(),
        "some_crlf": whole.replace(b"\n", b"\r\n", 5),
        "no_last_line_end": whole[:-1],
        "blank_lines": b"\n" + whole.replace(b"\n", b"\n\n", 3) + b"\n\n",
        "quotes": csv_text(table, quote='"').encode(),
        "semicolons": csv_text(table, ";").encode(),
        "reversed": csv_text(dict(reversed(table.items()))).encode(),
        "more_columns": csv_text({**table, "": ["1e400"] * ROWS, "more": ["\0"] * ROWS}).encode(),
        "a_long_unused_cell": csv_text({**table, "more": ["x" * (1 << 20)] * ROWS}).encode(),
        "no_labels": csv_text({k: v for k, v in table.items() if k != "label"}).encode(),
    }
    refused = {
        "empty": b"",
        "only_a_bom": b"\xef\xbb\xbf",
        "only_zero_bytes": bytes(100_000),
        "carriage_returns": csv_text(table, end="\r").encode(),
        "utf_16": whole.decode().encode("utf-16"),
        "a_gzip": gzip.compress(whole),
        "a_parquet": parquet_bytes(arrow_columns(table)),
        "a_name_twice": csv_text({**table, "x": table["site"]}).replace(",x", ",site").encode(),
        "header_not_utf_8": whole.replace(b"site", b"s\xffite"),
        "a_short_row": whole.replace(b"\n", b"\n1,2\n", 3),
        "a_line_of_a_zero_byte": whole + b"\0\n",
        "wide_without_a_column": csv_text(
            {f"{i}_{'x' * 500}": ["1"] * ROWS for i in range(3000)} | {"site": table["site"]}
        ).encode(),
        **{
            f"no_{name}": csv_text({k: v for k, v in table.items() if k != name}).encode()
            for name in ("site", "code", "price", "tags", "at")
        },
        **{
            f"price_{i}": cell("price", text)
            for i, text in enumerate(
                [
                    *("inf", "-Infinity", "1e39", "-1e400", "9" * 5000, "0x10", "a", "1_0", "1e"),
                    *("--1", "1.5\0", "\u0661", "\udcff", '"1'),
                ]
            )
        },
        **{f"at_{i}": cell("at", text) for i, text in enumerate(["1e400", "99999-01-01", "now"])},
        "site_not_utf_8": cell("site", "\udcff"),
        "site_open_quote": cell("site", '"abc'),
        "site_after_a_quote": cell("site", '"a"b'),
    }
    others = {
        **{
            f"price_other_{i}": cell("price", text)
            for i, text in enumerate(["", "nan", "NA", "1e-400", "0." + "3" * 5000, " 1.5 "])
        },
        **{
            f"site_{i}": cell("site", text)
            for i, text in enumerate(["", "new", "a\0b", 'a"b', "x" * (1 << 20)])
        },
        "many_tags": cell("tags", "|".join(["t1"] * (1 << 16))),
        "code_text": cell("code", "abc"),
        "at_other_zone": cell("at", "2024-01-01T00:00:00+05:00"),
    }
    return [
        Case(f"{name}.csv", content, expected)
        for group, expected in ((same, SAME), (refused, REFUSED), (others, OTHER_ROWS))
        for name, content in group.items()
    ] + [Case("tabs.tsv", csv_text(table, "\t").encode(), SAME)]


def _gz_cases() -> list[Case]:
    whole = csv_text(columns()).encode()
    packed = gzip.compress(whole)
    refused = {
        "cut": packed[:-20],
        "half": packed[: len(packed) // 2],
        "more": packed + b"garbage",
        "more_zeros": packed + bytes(100),
        "checksum": packed[:-6] + bytes(6),
        "empty": b"",
        "of_nothing": gzip.compress(b""),
        "not_packed": whole,
    }
    parts = gzip.compress(whole[:100]) + gzip.compress(whole[100:])
    return [
        Case("packed.csv.gz", packed, SAME),
        Case("two_parts.csv.gz", parts, SAME),
        *(Case(f"{name}.csv.gz", content, REFUSED) for name, content in refused.items()),
    ]


def _parquet_cases() -> list[Case]:
    table = columns()
    typed = arrow_columns(table)
    text = {name: pa.array(values) for name, values in table.items()}
    whole = parquet_bytes(typed)
    same = {
        "code_text": {"code": text["code"]},
        "code_int8": {"code": typed["code"].cast(pa.int8())},
        "code_uint64": {"code": typed["code"].cast(pa.uint64())},
        "code_float": {"code": typed["code"].cast(pa.float64())},
        "code_decimal": {"code": pa.array([decimal.Decimal(x) for x in table["code"]])},
        "code_dictionary": {"code": text["code"].dictionary_encode()},
        "site_binary": {"site": text["site"].cast(pa.binary())},
        "site_large": {"site": text["site"].cast(pa.large_string())},
        "site_dictionary": {"site": text["site"].dictionary_encode()},
        "price_decimal": {"price": pa.array([decimal.Decimal(x) for x in table["price"]])},
        "price_dictionary": {"price": typed["price"].dictionary_encode()},
        "tags_text": {"tags": text["tags"]},
        "tags_large": {"tags": typed["tags"].cast(pa.large_list(pa.large_string()))},
        "at_text": {"at": text["at"]},
        "at_zone": {"at": typed["at"].cast(pa.timestamp("us", "America/New_York"))},
        "at_nanoseconds": {"at": typed["at"].cast(pa.timestamp("ns"))},
        "other_columns": {
            "more": pa.array([[{"a": [1]}]] * ROWS),
            "null": pa.nulls(ROWS),
            "time": pa.array([1] * ROWS, pa.duration("s")),
        },
    }
    lists = pa.array([[x] for x in table["price"]])
    refused = {
        "code_fractions": {"code": pa.array([0.5] * ROWS)},
        "code_list": {"code": lists},
        "site_struct": {"site": pa.array([{"a": 1}] * ROWS)},
        "site_time": {"site": typed["at"]},
        "price_text": {"price": text["price"]},
        "price_list": {"price": lists},
        "price_infinite": {"price": pa.array([np.inf] * ROWS)},
        "price_large": {"price": pa.array([1e300] * ROWS)},
        "price_duration": {"price": pa.array([1] * ROWS, pa.duration("s"))},
        "tags_nested": {"tags": pa.array([[["a"]]] * ROWS)},
        "at_integers": {"at": pa.array(range(ROWS))},
        "at_time_of_day": {"at": pa.array([1] * ROWS, pa.time64("us"))},
    }
    several = io.BytesIO()
    parquet.write_table(pa.table([*typed.values(), typed["site"]], [*typed, "site"]), several)
    damaged = {
        "empty": b"",
        "half": whole[: len(whole) // 2],
        "cut": whole[:-50],
        "magic": b"PAR1PAR1",
        "page": whole[:300] + b"\xff" * 30 + whole[330:],
        "a_csv": csv_text(table).encode(),
        "a_name_twice": several.getvalue(),
        "no_price": parquet_bytes({k: v for k, v in typed.items() if k != "price"}),
    }
    return [
        Case("whole.parquet", whole, SAME),
        Case("reversed.parquet", parquet_bytes(dict(reversed(typed.items()))), SAME),
        *(Case(f"{n}.parquet", parquet_bytes({**typed, **c}), SAME) for n, c in same.items()),
        *(Case(f"{n}.parquet", parquet_bytes({**typed, **c}), REFUSED) for n, c in refused.items()),
        *(Case(f"{n}.parquet", content, REFUSED) for n, content in damaged.items()),
    ]
