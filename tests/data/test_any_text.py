"""Files that other programs read as well, and files with changed bytes."""

import csv
import io
import itertools
import random
import re

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_svmlight_file

from tests.fuzz import readers
from twml_ops import core
from twml_ops.data import DataError, Schema, open_source, text
from twml_ops.data.category_ids import hash_column
from twml_ops.data.text_values import NUMBER, numbers_of_texts, times_of_texts

SCHEMA = Schema(("n", "m"), ("c", "d"), 0, "the label is 1", labels=("label",), typed=())
NUMBERS = ["0", "-0", "007", "1.5", "-2.", ".5", "+3", "1e3", "-1E-2", "16777217", "1e-320",
           "9" * 30,
           "", "NA", "NaN", "null", "None", "N/A"]  # fmt: skip
NULLS = ["NA", "NaN", "null", "None", "N/A", ""]
TEXTS = st.one_of(
    st.sampled_from(["", "NA", "None", "3.0", "True", '"', '""', "a,b", "a\nb", "\n", " x ",
                    "x" * 5000]),
    st.text(st.characters(codec="utf-8", exclude_characters="\r"), max_size=12),
)  # fmt: skip
ROW = st.tuples(
    st.sampled_from(["0", "1"]), st.sampled_from(NUMBERS), TEXTS, st.sampled_from(NUMBERS), TEXTS
)


def written(rows, line_end, quoting, bom):
    out = io.StringIO(newline="")
    writer = csv.writer(out, lineterminator=line_end, quoting=quoting)
    writer.writerows([("label", "n", "c", "m", "d"), *rows])
    return b"\xef\xbb\xbf" * bom + out.getvalue().encode()


@settings(deadline=None, max_examples=40, suppress_health_check=list(HealthCheck), derandomize=True)
@given(
    st.lists(ROW, min_size=1, max_size=8),
    st.sampled_from(["\n", "\r\n"]),
    st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]),
    st.booleans(),
    st.sampled_from([20, 1 << 20]),
)
def test_csv_files_have_the_fields_that_pandas_reads(
    text_file, rows_of, rows, end, quoting, bom, chunk_bytes
):
    path = text_file(written(rows, end, quoting, bom), "x.csv")
    frame = pd.read_csv(
        path, dtype=str, keep_default_na=False, encoding="utf-8-sig", skip_blank_lines=False
    )
    numbers = frame[["n", "m"]].apply(lambda column: pd.to_numeric(column.replace(NULLS, None)))
    numbers = numbers.to_numpy(np.float64).astype(np.float32)
    ids = np.stack([hash_column(n, pa.array(frame[n], pa.string())) for n in ("c", "d")], axis=1)
    want = [
        (
            float(label),
            {
                "continuous": [(i, x) for i, x in enumerate(row.tolist()) if x == x],
                "categorical": [i for i in of_row.tolist() if i >= 0],
            },
        )
        for label, row, of_row in zip(frame["label"], numbers, ids, strict=True)
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text, "CHUNK_BYTES", chunk_bytes)
        assert rows_of(open_source(f"csv:{path}", schema=SCHEMA).blocks()) == want


TIMES = ["2024-02-29T23:59:59.999+05:30", "12/31/1999 11:59 PM", "1.2.2003", "2001-9-9 1:46 UTC",
         "31.1.2024 7:05:01", "1/31/2024, 10:00", "2024-01-31T24:00Z", "9999-12-31"]  # fmt: skip
LIBSVM = b"1 1:0.5 7:2\n-1 3:1e-3 # c\n\n+1 2:-.5 30:+7\r\n0\n1 9:1\n"


@settings(deadline=None, max_examples=150, suppress_health_check=list(HealthCheck))
@given(st.randoms(use_true_random=False))
def test_any_libsvm_file_is_read_as_by_scikit_learn_or_refused(text_file, rng):
    raw = readers.mutated(rng, LIBSVM)
    path = text_file(raw)
    try:
        blocks = list(open_source(f"libsvm:{path}").blocks())
    except DataError:
        return
    # scikit-learn refuses indices that do not ascend, and ids of more than 32 bits.
    entries = [block.groups["sparse"] for block in blocks]
    ids = np.concatenate([rows.ids for rows in entries])
    lengths = np.concatenate([np.diff(rows.row_splits) for rows in entries])
    splits = np.concatenate([[0], np.cumsum(lengths)])
    ascend = all((np.diff(ids[a:b]) > 0).all() for a, b in itertools.pairwise(splits))
    if not ascend or ids.max(initial=0) >= 2**31 - 1 or b"\0" in raw:
        return
    matrix, labels = load_svmlight_file(path, zero_based=False, dtype=np.float64)
    np.testing.assert_array_equal(np.concatenate([b.labels for b in blocks]), labels > 0)
    np.testing.assert_array_equal(matrix.indptr, splits)
    np.testing.assert_array_equal(matrix.indices, ids)
    values = np.concatenate([rows.values for rows in entries])
    np.testing.assert_allclose(values, matrix.data, rtol=1e-6, atol=1e-45)


def test_a_number_has_one_sign():
    texts = ["".join(t) for n in range(6) for t in itertools.product("+-$1 ", repeat=n)]
    numbers, good = numbers_of_texts(pa.array(texts))
    stripped = [t.replace(" ", "").replace("$", "") for t in texts]
    assert all(
        float(t) == x for t, x, g in zip(stripped, numbers, good, strict=True) if g and x == x
    )
    assert not any(g for t, g in zip(stripped, good, strict=True) if len(t.replace("1", "")) > 1)


def test_times_of_any_text_are_the_same_in_files_and_in_the_scorer():
    rng, texts = random.Random(7), []
    for _ in range(4000):
        text = list(rng.choice(TIMES))
        for _ in range(rng.randrange(4)):
            at = rng.randrange(len(text))
            text[at : at + rng.choice([0, 1, 1])] = rng.choice([*"0123456789-/.: TZ+,APM", ""])
        texts.append("".join(text) or "x")
    times, good = times_of_texts(pa.array(texts))
    data = np.frombuffer("".join(texts).encode(), np.uint8)
    offsets = np.cumsum([0, *map(len, texts)])
    hours = core.time_parts(data, offsets, "hour", "")
    # Neither numbers nor years of two digits, which are times only if all of a file are.
    other = re.compile(rf"\s*({NUMBER[1:-1]}\s*$|[0-9]+/[0-9]+/[0-9]{{2}}($|[ ,]))")
    same = [not other.match(text) for text in texts]
    there = good & ~np.isnan(times)
    np.testing.assert_array_equal(there[same], (hours >= 0)[same])
    kept = there & same
    assert kept.sum() > 1000
    np.testing.assert_array_equal(np.floor(times[kept]) % 86400 // 3600, hours[kept])


def test_any_changed_file_is_read_or_refused_with_a_clear_error():
    counts, findings = readers.run(list(readers.readers()), iter(range(12)), 600)
    assert not findings
    assert all(of_reader["refused"] for of_reader in counts.values())
