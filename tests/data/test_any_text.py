"""Files that other programs read as well, and files with changed bytes."""

import csv
import io
import itertools

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_svmlight_file

from tests.fuzz import readers
from twml_ops.data import DataError, Schema, open_source, text
from twml_ops.data.category_ids import hash_column

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


def test_any_changed_file_is_read_or_refused_with_a_clear_error():
    counts, findings = readers.run(list(readers.readers()), iter(range(12)), 600)
    assert not findings
    assert all(of_reader["refused"] for of_reader in counts.values())
