"""SOURCE strings."""

import dataclasses
import json

import pytest

from twml_ops.data import DataError, Schema, open_source


@pytest.mark.parametrize(
    "source", ["", "criteo2:x", "CRITEO:x", "data.txt", "a\nb", "json:x", ":x", "[1:2]"]
)
def test_an_unknown_scheme_lists_those_there_are(source):
    with pytest.raises(DataError, match=r"unknown source .*flights, criteo:PATH, libsvm:PATH"):
        open_source(source)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("criteo", "expected `criteo:` followed by a path"),
        ("criteo:", "unknown source"),
        ("libsvm?dim=3", "expected `libsvm:` followed by a path"),
        ("libsvm:x?dim=0", "dim must be at least 1"),
        ("criteo:x?dim=3", "takes no dim"),
        ("flights:x", "takes no path"),
    ],
)
def test_a_malformed_source_says_what_is_wrong(source, message):
    with pytest.raises(DataError, match=message):
        open_source(source)


def test_suffixes_say_the_kind_of_a_path(text_file, tmp_path):
    body = "label,x\n1,0.5\n0,1.5\n"
    path = text_file(body, "a.CSV")
    for source in (path, f"{path}[1:]", f"{tmp_path}/*.CSV", str(tmp_path), f"csv:{path}"):
        assert open_source(source).schema.continuous == ("x",)
    text_file("1 1:1\n", "b.libsvm")
    with pytest.raises(DataError, match=r"files of one kind are expected, got .*a\.CSV"):
        open_source(str(tmp_path))
    with pytest.raises(DataError, match="unknown source .*ends in .csv, .tsv, .parquet"):
        open_source(text_file(body, "a.txt"))
    with pytest.raises(FileNotFoundError, match="none.csv: no such file"):
        open_source(f"{tmp_path}/none.csv")
    with pytest.raises(DataError, match="of other machines only s3:// and gs:// are read"):
        open_source("hdfs://name/clicks.parquet")


def test_a_range_and_a_dim_go_together_and_paths_may_look_odd(text_file):
    path = text_file("1 1:1\n0 2:1\n1 3:1\n", "a[1]?b [2:x].libsvm")
    assert open_source(f"libsvm:{path}").num_examples() == 3
    part = open_source(f"libsvm:{path}[1:]?dim=9")
    assert part.num_examples() == 2
    assert part.schema.sparse_dim == 9
    assert part.name == f"libsvm:{path}[1:]"


@pytest.mark.parametrize("version", [None, 1, 3])
def test_a_schema_with_other_ids_of_categories_is_refused(version, criteo_file, criteo_row):
    schema = open_source(f"criteo:{criteo_file([criteo_row()])}").schema
    saved = json.loads(json.dumps(dataclasses.asdict(schema)))
    assert saved.pop("hash_version") == 2
    if version is not None:
        saved["hash_version"] = version
    with pytest.raises(ValueError, match=f"hash_version must be 2, got {version or 1}: .* anew"):
        Schema.from_dict(saved)


def test_a_schema_comes_back_from_a_run(criteo_file, criteo_row):
    schema = open_source(f"criteo:{criteo_file([criteo_row()])}").schema
    assert Schema.from_dict(json.loads(json.dumps(dataclasses.asdict(schema)))) == schema


def test_what_a_schema_lists_is_made_once(criteo_file, criteo_row):
    """Readers use these lists once for each column, so each list must be made only once."""
    schema = open_source(f"criteo:{criteo_file([criteo_row()])}").schema
    assert schema.columns is schema.columns
    assert schema.fields is schema.fields
    assert schema.categorical_columns is schema.categorical_columns


def test_other_features_than_the_training_data_are_an_error(text_file, criteo_file, criteo_row):
    schema = open_source(f"criteo:{criteo_file([criteo_row()])}").schema
    libsvm = f"libsvm:{text_file('1 1:1')}"
    with pytest.raises(DataError, match="lacks continuous features of the training data: I1, I10"):
        open_source(libsvm, like=schema)
    with pytest.raises(DataError, match="adds continuous features to the features of"):
        open_source(f"criteo:{criteo_file([criteo_row()])}", like=Schema((), (), 3, "x"))
