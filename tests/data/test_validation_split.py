"""The part of the training data that is taken away for validation."""

import numpy as np
import pytest

from twml_ops.data import DataError, Schema, open_source, split_for_validation, split_in_time
from twml_ops.data.source import RowRange

ROWS = 1000
SCHEMA = Schema(("row",), (), 0, "the label is 1", time="day", group="user")
LIBSVM = "1 1:1\n0 2:1\n" * 50


@pytest.fixture
def source(tmp_path):
    """Rows that are numbered in the feature `row`, with a day and a user."""

    def make(days=50, users=40, missing=0.0, rows=ROWS):
        rng = np.random.default_rng(0)
        lines = ["row,label,day,user"]
        for row in range(rows):
            day = "" if rng.random() < missing else str(rng.integers(days))
            user = "" if rng.random() < missing else f"u{rng.integers(users)}"
            lines.append(f"{row},{row % 2},{day},{user}")
        (tmp_path / "a.csv").write_text("\n".join(lines) + "\n")
        return open_source(f"csv:{tmp_path}/a.csv", schema=SCHEMA)

    return make


def rows_of(source):
    tables = [block.groups["continuous"].table[:, 0] for block in source.blocks()]
    return np.concatenate(tables).astype(int).tolist()


def column_of(source, name):
    return np.concatenate([block.columns[name] for block in source.blocks()])


@pytest.mark.parametrize("method", ["time", "order", "random", "group"])
@pytest.mark.parametrize("missing", [0.0, 0.2])
def test_each_example_is_in_one_part_and_in_order(source, method, missing):
    fit, validation = split_for_validation(source(missing=missing), method, 0.2)
    assert sorted(rows_of(fit) + rows_of(validation)) == list(range(ROWS))
    for part in (fit, validation):
        assert rows_of(part) == sorted(rows_of(part))
        assert part.num_examples() == len(rows_of(part))
    assert 0.1 < validation.num_examples() / ROWS < 0.3


def test_validation_data_of_a_time_are_the_latest(source):
    fit, validation = split_for_validation(source(missing=0.1), "time", 0.2)
    times = column_of(fit, "time")
    assert np.isnan(times).any()
    first = column_of(validation, "time").min()
    assert np.nanmax(times) < first
    assert validation.name.endswith(f"(day from {first:g} on)")


def test_examples_of_many_times_are_sampled(source, monkeypatch):
    monkeypatch.setattr("twml_ops.data.validation_split._SAMPLE_SIZE", 100)
    _, validation = split_for_validation(source(), "time", 0.2)
    assert 0.1 < validation.num_examples() / ROWS < 0.3


def test_a_group_is_in_one_part_and_examples_without_a_group_are_drawn_one_by_one(source):
    fit, validation = split_for_validation(source(missing=0.3), "group", 0.3)
    groups = [set(column_of(part, "group").tolist()) for part in (fit, validation)]
    assert groups[0] & groups[1] == {-1}
    assert len(groups[1]) > 5


def test_the_last_examples_are_the_validation_data_of_an_order(source):
    fit, validation = split_for_validation(source(), "order", 0.2)
    assert rows_of(fit) == list(range(800))
    assert rows_of(validation) == list(range(800, ROWS))


def test_random_examples_are_given_by_the_seed(source):
    parts = [split_for_validation(source(), "random", 0.2, seed) for seed in (0, 0, 1)]
    rows = [rows_of(validation) for _, validation in parts]
    assert rows[0] == rows[1]
    assert rows[0] != rows[2]


def test_a_row_range_is_divided_like_a_source(source):
    whole, _ = source().split(0.5)
    fit, validation = split_for_validation(whole, "random", 0.2)
    assert sorted(rows_of(fit) + rows_of(validation)) == list(range(500))


@pytest.mark.parametrize("method", ["time", "random", "group"])
def test_shards_and_ranges_of_a_part_are_its_examples(source, method, monkeypatch):
    monkeypatch.setattr("twml_ops.data.text.CHUNK_BYTES", 1 << 11)
    fit, _ = split_for_validation(source(), method, 0.2)
    shards = [rows_of(fit.shard(i, 3)) for i in range(3)]
    assert sorted(row for shard in shards for row in shard) == rows_of(fit)
    assert all(shards)
    middle = [b.groups["continuous"].table[:, 0] for b in fit.blocks(100, 300)]
    assert np.concatenate(middle).astype(int).tolist() == rows_of(fit)[100:300]


@pytest.mark.parametrize("in_memory", [True, False])
def test_a_part_is_the_same_in_any_order_of_reading(source, monkeypatch, in_memory):
    monkeypatch.setattr("twml_ops.data.text.CHUNK_BYTES", 1 << 11)
    if not in_memory:
        monkeypatch.setattr("twml_ops.data.validation_split.CACHE_BYTES", 0)
        monkeypatch.setattr("twml_ops.data.source.CACHE_BYTES", 0)
    fit, _ = split_for_validation(source(), "random", 0.2)
    shuffled = fit.dataset(64, shuffle=True)
    epochs = [
        np.concatenate([x["continuous_values"].flat_values for x, *_ in shuffled]) for _ in "ab"
    ]
    assert (epochs[0] != epochs[1]).any()
    for epoch in epochs:
        assert sorted(epoch.astype(int)) == rows_of(fit)


def test_parts_of_a_small_source_are_views_of_what_is_in_memory(source, tmp_path):
    parts = split_for_validation(source(), "random", 0.2)
    before = [rows_of(part) for part in parts]
    (tmp_path / "a.csv").unlink()
    assert [rows_of(part) for part in parts] == before


@pytest.mark.parametrize("method", ["time", "order", "random", "group"])
def test_a_source_that_is_too_large_for_memory_gives_the_same_parts(source, method, monkeypatch):
    want = [rows_of(part) for part in split_for_validation(source(), method, 0.2)]
    monkeypatch.setattr("twml_ops.data.validation_split.CACHE_BYTES", 0)
    monkeypatch.setattr("twml_ops.data.source.CACHE_BYTES", 0)
    parts = split_for_validation(source(), method, 0.2)
    assert [rows_of(part) for part in parts] == want


def test_auto_takes_the_latest_examples_where_there_is_a_time(source):
    assert "(day from " in split_for_validation(source()).validation.name


def test_auto_takes_the_last_examples_of_criteo_files_and_random_ones_of_others(
    criteo_file, criteo_row, text_file
):
    criteo = open_source(f"criteo:{criteo_file([criteo_row()] * 40)}")
    train, _ = criteo.split()
    assert train.in_order_of_time
    assert split_for_validation(train).validation.name == f"{criteo.name}[0:32][29:32]"
    libsvm = open_source(f"libsvm:{text_file(LIBSVM)}")
    assert split_for_validation(libsvm).validation.name.endswith("(a random 0.1 of the examples)")


@pytest.mark.parametrize(
    ("method", "share", "message"),
    [
        ("late", 0.1, "method must be one of auto, time, order, random, group, got 'late'"),
        ("random", 0.0, "share must be between 0 and 1, got 0.0"),
        ("random", 1.0, "share must be between 0 and 1, got 1.0"),
        ("random", 1e-9, "1000 examples cannot be divided by random with the share 1e-09"),
    ],
)
def test_errors_name_the_argument(source, method, share, message):
    with pytest.raises(ValueError, match=message.replace("(", r"\(")):
        split_for_validation(source(), method, share)


def test_a_single_time_cannot_be_divided(source):
    with pytest.raises(DataError, match="day has no two different times"):
        split_for_validation(source(days=1), "time")


@pytest.mark.parametrize("method", ["time", "group"])
def test_a_schema_without_the_column_cannot_be_divided_by_it(text_file, method):
    libsvm = open_source(f"libsvm:{text_file(LIBSVM)}")
    with pytest.raises(ValueError, match=f"the schema has no {method}"):
        split_for_validation(libsvm, method)


@pytest.mark.parametrize("in_order", [True, False])
def test_evaluation_data_split_in_time_are_the_latest(in_order, tmp_path):
    times = [1, 2, 3, 3, 4, 5, 6, 7, 7, 7] if in_order else [7, 1, 2, 7, 3, 3, 4, 5, 7, 6]
    body = "".join(f"{i % 2},{i},{t}\n" for i, t in enumerate(times))
    (tmp_path / "x.csv").write_text("label,x,t\n" + body)
    schema = Schema(("x",), (), 0, "y", time="t")
    source = open_source(f"csv:{tmp_path}/x.csv", schema=schema)
    parts = split_in_time(source, 0.25)
    found = [np.concatenate([b.columns["time"] for b in part.blocks()]) for part in parts]
    assert found[1].tolist() == [7, 7, 7]  # examples of one time are not divided
    assert found[0].tolist() == [t for t in times if t < 7]
    assert isinstance(parts[1], RowRange) == in_order  # without a pass over the other part
    (tmp_path / "y.csv").write_text("label,x,t\n0,1,1\n" + "1,2,2\n" * 9)  # two times
    few = open_source(f"csv:{tmp_path}/y.csv", schema=schema)
    one_time = split_for_validation(few.split(0.2)[1], "auto", 0.5)
    assert [part.num_examples() for part in one_time] == [1, 1]
    assert [part.num_examples() for part in split_in_time(few, 0.2)] == [8, 2]
    (tmp_path / "z.csv").write_text("label,x,t\n" + "1,2,2\n" * 9 + "0,1,1\n")
    with pytest.raises(DataError, match=r"too few different times .* 90.0% of the examples"):
        split_in_time(open_source(f"csv:{tmp_path}/z.csv", schema=schema), 0.2)
    with pytest.raises(ValueError, match="no time"):
        split_in_time(open_source(f"csv:{tmp_path}/x.csv", like=schema.without_labels()))
