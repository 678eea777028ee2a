"""Schema files: what is written is read again, and what is wrong is named."""

import dataclasses
import json

import pytest

from twml_ops.data import (
    ColumnUses,
    DataError,
    Feature,
    Schema,
    open_source,
    read_schema,
    schema_to_text,
)

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
TIMES = Schema(
    *((), ("city", "a.b.hour", "a.b.month", "since.weekday"), 0, "the label is 1"),
    time="since",
    times={"a.b": "", "since": "milliseconds"},
)


@pytest.mark.parametrize("format", ["yaml", "json"])
@pytest.mark.parametrize("schema", [SCHEMA, Schema(("x",), (), 0, "y"), TIMES])
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
        ({"features": [{"name": "t", "kind": "time", "features": ["day"]}]}, "a list of hour, wee"),
        ({"features": [{"name": "t", "kind": "time", "unit": "days"}]}, "the `unit` of t must be"),
        ({"features": [{"name": "x", "kind": "bag", "unit": "seconds"}]}, "only a time has `unit`"),
        (
            {
                "features": [
                    {"name": "t", "kind": "time", "features": ["hour"]},
                    {"name": "t.hour", "kind": "categorical"},
                ]
            },
            r"\['t.hour'\] twice",
        ),
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


@pytest.mark.parametrize("place", ["kind: {}", "kind: bag, weights: {}", "kind: sparse, dim: {}"])
@pytest.mark.parametrize("above", ["", "labels: {}\n", "positive: {}\n", "hash_version: {}\n"])
def test_a_value_that_repeats_itself_is_shown_cut(place, above, tmp_path):
    levels = ["&a0 [" + "x," * 8 + "x]"]
    levels += [f"&a{i} [" + f"*a{i - 1}," * 9 + "]" for i in range(1, 6)]  # 9^6 items
    value = f"[{', '.join(levels)}]"
    kind = "kind: continuous" if above else place.format(value)
    path = tmp_path / "x.yaml"
    path.write_text(above.format(value) + f"features:\n  - {{name: ids, {kind}}}\n")
    with pytest.raises(DataError) as e:
        read_schema(path)
    assert len(str(e.value)) < 1000


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


def test_a_saved_schema_of_times_is_the_same_again():
    saved = json.loads(json.dumps(dataclasses.asdict(TIMES)))
    assert Schema.from_dict(saved) == TIMES
    assert TIMES.columns == ("label", "city", "a.b", "since")
    assert TIMES.without_labels().columns == ("city", "a.b", "since")


def test_columns_of_times_are_written_to_be_filled_in(tmp_path):
    times = "".join(f"{i % 2},2024-01-{10 + i},{1_706_000_000 + i},{i / 8}\n" for i in range(9))
    (tmp_path / "a.csv").write_text("label,day,created_at,x\n" + times)
    source = open_source(f"csv:{tmp_path}/a.csv")
    content = json.loads(schema_to_text(source.schema, "json", source.findings))
    day, created = (
        next(f for f in content["features"] if f["name"] == name) for name in ("day", "created_at")
    )
    assert day == {"name": "day", "kind": "time", "features": []}
    assert created == day | {"name": "created_at", "unit": "seconds"}
    path = tmp_path / "features.json"
    path.write_text(json.dumps(content))
    assert open_source(f"csv:{tmp_path}/a.csv", schema=path).schema == source.schema
    created["features"] = ["hour"]
    path.write_text(json.dumps(content))
    schema = read_schema(path)
    assert (schema.fields, schema.times) == (("created_at.hour",), {"created_at": "seconds"})
    open_source(f"csv:{tmp_path}/a.csv", schema=path).num_examples()


@pytest.mark.parametrize(
    ("uses", "message"),
    [
        (ColumnUses(time_features=("hour",)), "no time of the examples, got hour; name its"),
        (ColumnUses(time_features=("x.day",)), "time_features must be hour, .* got 'x.day'"),
        (ColumnUses(time_features=("y.hour",)), "time_features must be hour, .* got 'y.hour'"),
        (ColumnUses(time_features=("x.hour",)), "x.hour is a column already"),
        (
            ColumnUses(time_features=("x.month",), numeric=("x",)),
            "column x must have one use, got numeric and time_features",
        ),
    ],
)
def test_time_features_that_cannot_be_made_are_named(uses, message, tmp_path):
    (tmp_path / "a.csv").write_text("label,x,x.hour\n1,1,2\n0,3,4\n")
    with pytest.raises(DataError, match=message):
        open_source(f"csv:{tmp_path}/a.csv", uses=uses)


def test_numbers_without_a_unit_are_no_times_and_the_error_says_what_to_write(tmp_path):
    (tmp_path / "a.csv").write_text("label,x\n1,1\n0,3\n")
    source = open_source(f"csv:{tmp_path}/a.csv", uses=ColumnUses(time_features=("x.hour",)))
    with pytest.raises(DataError, match=r"line 2: column x: expected .* '1'; .*`unit: seconds`"):
        source.num_examples(), [*source.blocks()]
