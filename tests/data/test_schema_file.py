"""Schema files: what is written is read again, and what is wrong is named."""

import json

import pytest

from twml_ops.data import DataError, Feature, Schema, open_source, read_schema, schema_to_text

SCHEMA = Schema(
    ("age", "yes"),
    ("city", "tags", "more"),
    30,
    "the ad: was clicked",
    bags=("tags", "more"),
    bag_weights={"tags": "tag_weights"},
    labels=("click", "bought"),
    weight="importance",
    time="when",
    group="user",
)


@pytest.mark.parametrize("format", ["yaml", "json"])
@pytest.mark.parametrize("schema", [SCHEMA, Schema(("x",), (), 0, "y")])
def test_what_is_written_is_read_again(format, schema, tmp_path):
    if format == "yaml":
        pytest.importorskip("yaml")
    path = tmp_path / f"features.{format}"
    path.write_text(schema_to_text(schema, format))
    assert read_schema(path) == schema


def test_features_are_listed_with_their_kinds():
    assert SCHEMA.features == (
        Feature("age", "continuous"),
        Feature("yes", "continuous"),
        Feature("city", "categorical"),
        Feature("tags", "bag", "tag_weights"),
        Feature("more", "bag"),
        Feature("ids", "sparse", "values", 30),
    )
    assert SCHEMA.fields == ("city",)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([], "expected a mapping with features"),
        ({}, "`features` must be a list"),
        ({"features": [{"name": "x"}]}, r"features\[0\]: `kind` must be text, got None"),
        ({"features": [{"name": "x", "kind": "odd"}]}, "kind must be one of continuous, cat"),
        ({"features": [{"name": "x", "kind": "bag", "wieghts": "y"}]}, "unknown wieghts"),
        ({"features": [{"name": "x", "kind": "continuous", "weights": "y"}]}, "only a bag has"),
        ({"features": [{"name": "x", "kind": "sparse", "dim": 3}]}, "must be called ids"),
        ({"features": [{"name": "ids", "kind": "sparse"}]}, "a `dim` of at least 1"),
        ({"features": [{"name": "x", "kind": "bag", "dim": 1}]}, "only a sparse feature"),
        ({"features": [{"name": "x", "kind": "bag"}] * 2}, r"\['x'\] twice"),
        ({"features": [{"name": "x", "kind": "bag"}], "labels": []}, "at least one column"),
        ({"features": [{"name": "x", "kind": "bag"}], "labels": [3]}, "a list of names"),
        ({"features": [{"name": "x", "kind": "bag"}], "hash_version": 9}, "hash_version must be 2"),
        ({"features": [{"name": "x", "kind": "bag"}], "weight": 1}, "`weight` must be text"),
    ],
)
def test_what_is_wrong_is_named(content, message, tmp_path):
    path = tmp_path / "features.json"
    path.write_text(json.dumps(content))
    with pytest.raises(DataError, match=message) as e:
        read_schema(path)
    assert str(path) in str(e.value)


def test_files_that_cannot_be_read_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="gone"):
        read_schema(tmp_path / "gone.json")
    (tmp_path / "x.json").write_text("{")
    with pytest.raises(DataError, match=r"x\.json: cannot be read"):
        read_schema(tmp_path / "x.json")


def test_sources_with_fixed_features_take_no_schema(criteo_file, criteo_row, tmp_path):
    path = tmp_path / "features.json"
    path.write_text(schema_to_text(Schema(("x",), (), 0, "y"), "json"))
    source = f"criteo:{criteo_file([criteo_row()])}"
    with pytest.raises(DataError, match="`criteo` takes no schema"):
        open_source(source, schema=path)
    schema = open_source(source).schema
    with pytest.raises(ValueError, match="only one of like and schema"):
        open_source(source, schema=schema, like=schema)
