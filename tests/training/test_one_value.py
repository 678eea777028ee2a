"""Labels and features with one value in the training data are named."""

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from twml_ops.data import Schema, open_source, split_for_validation
from twml_ops.training.errors import UserError
from twml_ops.training.one_value import warnings_of_one_value

pytestmark = pytest.mark.one_tf


@pytest.mark.parametrize(
    ("labels", "weights", "message"),
    [
        ([0, 1, 0], [1, 0, 1], "The label y is 0 in all examples"),
        ([1, 1, 1], [1, 1, 1], "The label y is 1 in all examples"),
        ([0, 1, 0], [0, 0, 0], "all sample weights of the training data are 0"),
        ([0, 0, 1], [1, 1, 1], None),
    ],
)
def test_training_data_without_positives_or_negatives_that_count_are_named(
    tmp_path, labels, weights, message
):
    rows = [f"{i},{w},{y}" for i, (w, y) in enumerate(zip(weights, labels, strict=True))]
    (tmp_path / "d.csv").write_text("\n".join(["x,w,y", *rows]) + "\n")
    schema = Schema(("x",), (), 0, "y", labels=("y",), weight="w")
    source = open_source(f"csv:{tmp_path / 'd.csv'}", schema=schema)
    if any(weights):
        found = warnings_of_one_value(source)
        assert len(found) == (message is not None)
        assert all(message in text for text in found)
        return
    with pytest.raises(UserError, match=message):
        warnings_of_one_value(source)


VARIES = np.arange(300) % 7
COLUMNS = {
    "label": VARIES % 2,
    "number": VARIES / 4,
    "late": (np.arange(300) == 299) * 1.5,
    "same": np.full(300, 2.5),
    "zeros": np.where(VARIES % 2, 0.0, -0.0),
    "or_missing": np.where(VARIES == 3, np.nan, 1.5),
    "no_numbers": np.full(300, np.nan),
    "text": np.char.mod("a%d", VARIES),
    "one_text": ["a"] * 300,
    "no_text": pa.nulls(300, pa.string()),
    "bag": [["a"]] * 300,
    "no_bag": pa.array([[]] * 300, pa.list_(pa.string())),
}
NUMBERS = ("number", "late", "same", "zeros", "or_missing", "no_numbers")
TEXTS = ("text", "one_text", "no_text", "bag", "no_bag")


@pytest.mark.parametrize("groups", [1, 20])
def test_features_with_one_value_or_none_are_named_once(tmp_path, groups):
    table = pa.table(COLUMNS)
    parquet.write_table(table, tmp_path / "d.parquet", row_group_size=300 // groups)
    schema = Schema(NUMBERS, TEXTS, 0, "", bags=("bag", "no_bag"))
    source = open_source(f"parquet:{tmp_path / 'd.parquet'}", schema=schema)
    same, missing = warnings_of_one_value(source)
    assert same.endswith("nothing from them: same (2.5), zeros (0), one_text.")
    assert missing.endswith("nothing from them: no_numbers, no_text, no_bag.")
    assert source.name in same
    assert source.name in missing
    varying = Schema(("number", "late"), ("text",), 0, "")
    assert not warnings_of_one_value(open_source(source.name, schema=varying))


def test_of_many_features_with_one_value_the_first_are_named(tmp_path):
    names = [f"c{i}" for i in range(500)]
    rows = [f"{i % 2}," + ",".join("1" * len(names)) for i in range(4)]
    (tmp_path / "d.csv").write_text("\n".join([",".join(["label", *names]), *rows]))
    source = open_source(f"csv:{tmp_path / 'd.csv'}", schema=Schema(tuple(names), (), 0, ""))
    (same,) = warnings_of_one_value(source)
    assert same.endswith(", c9 (1) and 490 more.")


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([0, 0, 1, 0, 1, 1], "The label y is 1 in all examples of the validation data"),
        ([0, 0, 0, 0, 1, 0], "The label y is 0 in all examples of the training data without"),
        ([0, 1, 0, 1, 0, 1], None),
    ],
)
def test_parts_of_the_data_without_positives_or_negatives_are_named(tmp_path, labels, message):
    rows = [f"{i},{y}" for i, y in enumerate(labels)]
    (tmp_path / "d.csv").write_text("\n".join(["x,y", *rows]) + "\n")
    source = open_source(
        f"csv:{tmp_path / 'd.csv'}", schema=Schema(("x",), (), 0, "y", labels=("y",))
    )
    found = warnings_of_one_value(source, split_for_validation(source, "order", 0.34))
    assert len(found) == (message is not None)
    assert all(text.startswith(message) for text in found)


@pytest.mark.parametrize(("unit", "named"), [(1.0, False), (1e-4, True), (1e4, False)])
def test_tiny_sample_weights_are_named_by_their_mean(tmp_path, unit, named):
    rows = [f"{i},{w * unit},{i % 2}" for i, w in enumerate([0.5, 0, 1.5, 1])]
    (tmp_path / "d.csv").write_text("\n".join(["x,w,y", *rows]) + "\n")
    schema = Schema(("x",), (), 0, "y", labels=("y",), weight="w")
    found = warnings_of_one_value(open_source(f"csv:{tmp_path / 'd.csv'}", schema=schema))
    assert len(found) == named
    assert all("that are not 0 have a mean of 0.0001 in all examples" in text for text in found)


def test_the_mean_is_of_more_than_the_first_sample_weights(tmp_path):
    """Such as small weights of old examples, in data in the order of time."""
    for name, weight in (("a", 1e-6), ("b", 1.0)):
        rows = [f"{i},{weight},{i % 2}" for i in range(4)]
        (tmp_path / f"{name}.csv").write_text("\n".join(["x,w,y", *rows]) + "\n")
    schema = Schema(("x",), (), 0, "y", labels=("y",), weight="w")
    source = open_source(f"csv:{tmp_path}/*.csv", schema=schema)
    assert len([*source.blocks()]) == 2
    assert warnings_of_one_value(source) == []
