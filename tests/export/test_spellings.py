"""A category has one id however it is written: in files, in requests, and in exports."""

import dataclasses
import json

import numpy as np
import pyarrow as pa
import pytest
import tensorflow as tf
from pyarrow import parquet

from tests.export.conftest import scorer_of
from twml_ops._category_hash import MISSING, NULLS, column_key
from twml_ops._raw_columns import strings_of
from twml_ops.core import hash_strings
from twml_ops.data import Schema, open_source
from twml_ops.export.raw_columns import RawColumns

NAME = "c"
# What a column of integers or bools may have -> its text in training.
SAME = {
    "3": "3",
    "3.0": "3",
    "3.00": "3",
    "3.": "3",
    "+3": "3",
    "-4.0": "-4",
    "0": "0",
    "-0": "0",
    "-0.0": "0",
    " 3": "3",
    "\t+3.0 ": "3",
    " -0 ": "0",
    "10": "10",
    "10.0": "10",
    "9007199254740993": "9007199254740993",
    "9007199254740993.0": "9007199254740993",
    "123456789012345678901234567890.0": "123456789012345678901234567890",
    "True": "true",
    "TRUE": "true",
    "true": "true",
    " true": "true",
    "False ": "false",
    "False": "false",
    "FALSE": "false",
    **dict.fromkeys(NULLS, ""),
    "": "",
    " ": "",
    " NA ": "",
}
# Text that is a category of its own in such a column as well.
OWN = [
    "007",
    "07",
    "7",
    "007.0",
    "3.5",
    "3.05",
    "1e3",
    "3.0a",
    " 007",
    "3 4",
    "0x3",
    "tRUE",
    "naN",
    "3..0",
    "é",
    "+",
    "+-3",
    "--3",
]


def ids_of(source, schema):
    (block,) = open_source(source, schema=schema).blocks()
    return block.groups["categorical"].table[:, 0].tolist()


def typed(*names):
    return Schema((), (NAME,), 0, "x", typed=names)


def write_csv(path, texts, quoted):
    cells = [f'"{t}"' if quoted else t for t in texts]
    path.write_text(f"label,{NAME}\n" + "".join(f"0,{c}\n" for c in cells), encoding="utf-8")
    return f"csv:{path}"


def write_parquet(path, column):
    parquet.write_table(pa.table({"label": [0] * len(column), NAME: column}), path)
    return f"parquet:{path}"


def hashed(texts, is_typed):
    data, offsets = strings_of(NAME, np.array(texts, object))
    return hash_strings(data, offsets, column_key(NAME), typed=is_typed)


@pytest.fixture(scope="module")
def scorer(tmp_path_factory):
    """A scorer that takes a typed column `c` and returns an embedding of its id."""
    return scorer_of(tmp_path_factory.mktemp("spellings"), typed(NAME))


@pytest.mark.parametrize("quoted", [False, True])
def test_spellings_of_integers_and_bools_have_the_id_of_training(quoted, scorer, tmp_path):
    texts, meant = [*SAME, *OWN], [*SAME.values(), *OWN]
    want = [
        MISSING if m == "" else int(h) for m, h in zip(meant, hashed(meant, False), strict=True)
    ]
    assert len(set(want)) == len(set(meant))
    schema = typed(NAME)
    assert ids_of(write_csv(tmp_path / "a.csv", texts, quoted), schema) == want
    assert ids_of(write_parquet(tmp_path / "a.parquet", pa.array(texts)), schema) == want
    encoded = pa.array(texts).dictionary_encode()
    assert ids_of(write_parquet(tmp_path / "b.parquet", encoded), schema) == want
    served = RawColumns(schema, "fields").features({NAME: tf.constant(texts)})
    assert served["categorical"].numpy()[:, 0].tolist() == want
    np.testing.assert_array_equal(scorer.predict({NAME: texts}), scorer.predict({NAME: meant}))


@pytest.mark.parametrize("quoted", [False, True])
def test_text_is_never_spelled_in_another_way(quoted, tmp_path):
    texts = [t for t in (*SAME, *OWN) if t]
    want = hashed(texts, False).tolist()
    assert len(set(want)) == len(texts)
    assert ids_of(write_csv(tmp_path / "a.csv", texts, quoted), typed()) == want
    assert ids_of(write_parquet(tmp_path / "a.parquet", pa.array(texts)), typed()) == want
    served = RawColumns(typed(), "fields").features({NAME: tf.constant(texts)})
    assert served["categorical"].numpy()[:, 0].tolist() == want


NUMBERS = [3, -4, 0, 2**24 + 1, 2**53 - 1]


@pytest.mark.parametrize(
    ("column", "texts"),
    [
        (pa.array(NUMBERS), [f"{x}" for x in NUMBERS]),
        (pa.array(NUMBERS), [f"{x}.0" for x in NUMBERS]),
        (pa.array(NUMBERS, pa.float64()), [f"{x}.0" for x in NUMBERS]),
        (pa.array(NUMBERS).dictionary_encode(), [f"{x}" for x in NUMBERS]),
        (pa.array([7, None, 255], pa.uint8()), ["7", "", "255.0"]),
        (pa.array([7, None, 9], pa.float32()), ["7.0", "NA", "9"]),
        (pa.array([2**64 - 1, 2**63], pa.uint64()), [str(2**64 - 1), f"{2**63}.0"]),
        (pa.array([True, None, False]), ["True", "", "False"]),
        (pa.array([True, None, False]), ["TRUE", "NA", "FALSE"]),
    ],
)
def test_a_column_has_the_same_ids_in_every_file_whatever_was_the_training_data(
    column, texts, scorer, tmp_path
):
    files = [
        write_parquet(tmp_path / "a.parquet", column),
        write_csv(tmp_path / "a.csv", texts, False),
        write_csv(tmp_path / "q.csv", texts, True),
    ]
    unknown = Schema((), (NAME,), 0, "x")
    found = []
    for file in files:
        training = open_source(file, schema=unknown)
        assert training.schema.typed == (NAME,)
        saved = Schema.from_dict(json.loads(json.dumps(dataclasses.asdict(training.schema))))
        found += [ids_of(file, unknown), *(ids_of(other, saved) for other in files)]
    assert found == [found[0]] * len(found)
    values = np.array([x if x is None else int(x) for x in column.to_pylist()], object)
    if pa.types.is_boolean(column.type):
        values = np.array(column.to_pylist(), object)
    np.testing.assert_array_equal(scorer.predict({NAME: values}), scorer.predict({NAME: texts}))


def test_floats_that_are_no_integers_are_no_categories(tmp_path):
    for bad in (3.5, 2.0**54, float("inf")):
        file = write_parquet(tmp_path / "a.parquet", pa.array([1.0, bad]))
        with pytest.raises(ValueError, match=r"row 1: column c has type double, expected .*got"):
            ids_of(file, Schema((), (NAME,), 0, "x"))


def test_runs_without_typed_categories_keep_their_ids(tmp_path):
    saved = {"continuous": [], "categorical": [NAME], "sparse_dim": 0, "label": "x"}
    schema = Schema.from_dict({**saved, "hash_version": 2})
    assert (
        ids_of(write_csv(tmp_path / "a.csv", ["3.0", "True"], False), schema)
        == hashed(["3.0", "True"], False).tolist()
    )
