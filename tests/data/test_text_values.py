"""Kinds of columns that nobody has declared: nothing is lost, and what is guessed is said."""

import warnings

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from twml_ops._arrow_columns import split_lists
from twml_ops._category_hash import MISSING, NULLS
from twml_ops.data import (
    ColumnUses,
    DataError,
    DataWarning,
    Schema,
    csv,
    hash_tokens,
    open_source,
    text,
    text_values,
)
from twml_ops.data import parquet as parquet_reader


@pytest.fixture
def opened(tmp_path):
    """Opens lines, or columns, as a source; returns it with the warnings of a whole pass."""

    def open_(data, **options):
        if isinstance(data, str):
            path = tmp_path / "x.csv"
            path.write_text(data)
        else:
            path = tmp_path / "x.parquet"
            parquet.write_table(pa.table(data), path, row_group_size=10)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            source = open_source(f"{path.suffix[1:]}:{path}", **options)
            blocks = list(source.blocks())
        texts = [str(w.message) for w in caught if w.category is DataWarning]
        return source, blocks, texts

    return open_


def lines(name, values):
    return f"label,{name}\n" + "".join(f"{i % 2},{x}\n" for i, x in enumerate(values))


def different_values(blocks):
    """How many values the only column has."""
    (name,) = blocks[0].groups
    return len(np.unique(np.concatenate([b.groups[name].table[:, 0] for b in blocks])))


INTEGERS = st.one_of(
    st.from_regex("-?[1-9][0-9]{0,24}", fullmatch=True),
    st.from_regex("0{0,3}[1-9][0-9]?", fullmatch=True),
    st.integers(2**24 - 2, 2**24 + 9).map(str),
)


@settings(max_examples=40, deadline=None)
@given(texts=st.lists(INTEGERS, min_size=2, max_size=8, unique=True), quoted=st.booleans())
def test_different_integers_are_different_in_the_examples(texts, quoted, tmp_path_factory):
    path = tmp_path_factory.mktemp("csv") / "x.csv"
    path.write_text(lines("x", [f'"{x}"' if quoted else x for x in texts]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert different_values(list(open_source(f"csv:{path}").blocks())) == len(texts)


@pytest.mark.parametrize("kind", [pa.int32(), pa.int64(), pa.uint64()])
@pytest.mark.parametrize("first", [2**24, 2**31 - 30, 2**53, 2**63 - 30])
def test_integers_of_parquet_files_do_not_pass_through_a_float(kind, first, opened):
    if first > 2**31 and kind == pa.int32():
        return
    numbers = np.arange(first, first + 25, dtype=np.uint64).astype(kind.to_pandas_dtype())
    source, blocks, said = opened({"label": [0] * 25, "x": pa.array(numbers, kind)})
    assert source.schema.categorical == ("x",)
    assert different_values(blocks) == 25
    assert "would be rounded" in said[0]
    assert "`- {kind: continuous, name: x}`" in said[0]


def test_limits_in_the_footers_count_as_values_of_the_sample(opened, monkeypatch):
    monkeypatch.setattr(parquet_reader, "BATCH_ROWS", 10)
    source, _, said = opened({"label": [0] * 30, "x": [*range(29), 2**24 + 1]})
    assert source.schema.categorical == ("x",)
    assert "16777217" in said[0]


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_integers_in_the_names_of_folders_do_not_pass_through_a_float(ending, tmp_path):
    for user in (2**24, 2**24 + 1):
        path = tmp_path / f"user={user}" / f"a.{ending}"
        path.parent.mkdir()
        if ending == "csv":
            path.write_text("label,x\n1,0.5\n")
        else:
            parquet.write_table(pa.table({"label": [1], "x": [0.5]}), path)
    with pytest.warns(DataWarning, match="user is a category .* 16777217"):
        source = open_source(f"{ending}:{tmp_path}")
    assert (source.schema.categorical, source.schema.typed) == (("user",), ("user",))
    ids = np.concatenate([b.groups["categorical"].table[:, 0] for b in source.blocks()])
    assert ids.tolist() == hash_tokens("user", pa.array(["16777216", "16777217"])).tolist()
    (tmp_path / "user=16777217").rename(tmp_path / "user=1_000")
    numbers = Schema(("x", "user"), (), 0, "the label is 1")
    with pytest.raises(DataError, match="user: expected a number, the folder is 'user=1_000'"):
        list(open_source(f"{ending}:{tmp_path}", schema=numbers).blocks())


def test_a_parquet_file_without_rows_says_nothing_of_the_others(tmp_path):
    table = pa.table({"label": [0, 1], "x": [2**24, 2**24 + 1]})
    parquet.write_table(table.slice(0, 0), tmp_path / "0.parquet")
    parquet.write_table(table, tmp_path / "1.parquet")
    with pytest.warns(DataWarning, match="x is a category .* 16777217"):
        source = open_source(f"parquet:{tmp_path}")
    assert source.schema.categorical == ("x",)
    assert different_values(list(source.blocks())) == 2


@pytest.mark.parametrize("kind", [pa.int64(), pa.float64(), pa.decimal128(20, 0)])
def test_integers_behind_the_sample_of_a_parquet_file_are_named(kind, tmp_path, monkeypatch):
    monkeypatch.setattr(parquet_reader, "BATCH_ROWS", 10)
    numbers = pa.array([*range(18), None, 2**24 + 1, 3]).cast(kind)
    path = tmp_path / "a.parquet"
    table = pa.table({"label": [0] * 21, "x": numbers, "y": pa.array([0.1] * 21)})
    parquet.write_table(table, path, write_statistics=False)
    source = open_source(f"parquet:{path}")
    assert source.schema.continuous == ("x", "y")
    with pytest.warns(DataWarning) as said:
        assert sum(len(block) for _ in range(2) for block in source.blocks()) == 42
    (text,) = [str(w.message) for w in said]  # said once
    assert "row 19: column x is read as numbers, which lose something of 16777217" in text
    assert "`- {kind: categorical, name: x}`" in text


def test_integers_of_one_file_and_floats_of_another_are_categories(tmp_path):
    for k, kind in enumerate([pa.int64(), pa.float64(), pa.decimal128(20, 0)]):
        numbers = pa.array([2**24 + 1, 2**24 + 2, None]).cast(kind)
        parquet.write_table(pa.table({"label": [0, 1, 0], "x": numbers}), tmp_path / f"{k}.parquet")
    with pytest.warns(DataWarning, match="x is a category "):
        source = open_source(f"parquet:{tmp_path}")
    ids = np.stack([block.groups["categorical"].table[:, 0] for block in source.blocks()])
    expected = hash_tokens("x", pa.array(["16777217", "16777218"])).tolist()
    assert ids.tolist() == [[*expected, MISSING]] * 3


def test_half_floats_and_long_decimals_are_read(tmp_path):
    halves = pa.array(np.array([0.5, 1, 2], np.float16))
    decimals = pa.array([2**60 + 1, 7, None]).cast(pa.decimal256(40, 0))
    table = pa.table({"label": [0, 1, 0], "x": halves, "c": decimals})
    parquet.write_table(table, tmp_path / "a.parquet")
    with pytest.warns(DataWarning, match=f"c is a category .* {2**60 + 1}"):
        source = open_source(f"parquet:{tmp_path}")
    (block,) = source.blocks()
    assert block.groups["continuous"].table.tolist() == [[0.5], [1], [2]]
    expected = [*hash_tokens("c", pa.array([str(2**60 + 1), "7"])).tolist(), MISSING]
    assert block.groups["categorical"].table[:, 0].tolist() == expected


def test_what_was_a_dictionary_is_one_of_categories(opened):
    source, blocks, _ = opened({"label": [0, 1, 1], "x": pa.array([5, 7, 5]).dictionary_encode()})
    assert source.schema.categorical == ("x",)
    assert different_values(blocks) == 2


RNG = np.random.default_rng(0)


@pytest.mark.parametrize(
    ("name", "values", "kind", "sure"),
    [
        ("user_id", range(5), "categorical", True),
        ("userId", [3, 1, 2] * 9, "categorical", True),
        ("zip", [0, 1] * 30, "categorical", True),
        ("region", [3, 1, 2] * 20, "categorical", True),
        ("x", RNG.choice(RNG.integers(0, 5000, 40), 1000).tolist(), "categorical", False),
        ("x", RNG.binomial(200, 0.5, 3000).tolist(), "continuous", True),
        ("role", RNG.permutation(100).tolist(), "continuous", False),
        ("flag", [0, 1] * 60, "continuous", True),
        ("x", [-5, 3, 4] * 40, "continuous", True),
        ("age", RNG.integers(18, 60, 400).tolist(), "continuous", True),
        ("cost", [x / 2 for x in range(200)], "continuous", True),
    ],
)
def test_integers_are_ids_by_their_names_or_if_they_repeat_as_ids_do(
    name, values, kind, sure, opened
):
    labels = [0] * len(values)
    for data in (lines(name, values), {"label": labels, name: list(values)}):
        source, _, said = opened(data)
        assert source.findings[name][:1] == (kind,)
        assert source.findings[name].sure == sure
        assert name in getattr(source.schema, kind)
        assert source.findings[name].distinct == len(set(values))
        by_type = source.findings[name].by_type
        assert len(said) == (not by_type)
        other = "continuous" if kind == "categorical" else "categorical"
        assert by_type or f"`- {{kind: {other}, name: {name}}}`" in said[0]
        assert opened(data, schema=source.schema)[2] == []  # it was declared


@pytest.mark.parametrize("null", ["", *NULLS])
@pytest.mark.parametrize("quoted", [False, True])
def test_null_values_are_missing_numbers_and_missing_integers(null, quoted, opened):
    cell = f'"{null}"' if quoted else null
    body = f"label,x,n,b,c\n0,1.5,7,True,a\n1,{cell},{cell},{cell},{cell}\n0,2,8,False,b\n"
    source, (block,), _ = opened(body)
    assert source.schema.continuous == ("x", "n")
    assert source.schema.categorical == ("b", "c")
    assert np.isnan(block.groups["continuous"].table).tolist() == [
        [False] * 2,
        [True] * 2,
        [False] * 2,
    ]
    schema = Schema((), ("n", "b", "c"), 0, "x")
    _, (block,), _ = opened(body, schema=schema)
    missing = block.groups["categorical"].table[1] == MISSING
    assert missing.tolist() == [True, True, null == ""]  # in a column of text it is text


@pytest.fixture
def small_sample(monkeypatch):
    monkeypatch.setattr(text, "CHUNK_BYTES", 200)
    monkeypatch.setattr(csv, "_SAMPLE_BYTES", 100)


@pytest.mark.parametrize("head", ["", "NA"])
@pytest.mark.parametrize(("tail", "number"), [("3.5", True), ("a", False)])
def test_a_column_that_begins_empty_is_what_its_first_value_is(
    head, tail, number, small_sample, opened
):
    source, _, said = opened(lines("y,x", [f"{i % 9},{head}" for i in range(200)] + [f"1,{tail}"]))
    assert source.schema.continuous == (("y", "x") if number else ("y",))
    assert said == []


def test_a_column_without_any_value_is_named(small_sample, opened):
    source, _, said = opened(lines("y,x", [f"{i % 9},NA" for i in range(200)]))
    assert source.schema.columns == ("label", "y")
    assert "x is left out (all of its fields are empty or null)" in said[0]


def test_text_behind_the_sample_of_a_column_of_numbers_is_named(small_sample, opened):
    with pytest.raises(DataError, match=r"x\.csv: line 302: column x: expected a number, got 'a'"):
        opened(lines("x", [*[1] * 300, "a"]))


@pytest.mark.parametrize("late", ["007", "16777217", "9007199254740993", '"16777217"'])
def test_ids_behind_the_sample_of_a_column_of_numbers_are_named(late, small_sample, opened):
    _, _, said = opened(lines("x", [*[1] * 300, late, late]))
    (message,) = said
    assert "x.csv: line 302: column x is read as numbers" in message
    assert late.strip('"') in message


def test_text_beside_numbers_is_named(opened):
    source, _, said = opened('label,x\n0,1\n0,2\n1,"1,23"\n')
    assert source.schema.categorical == ("x",)
    assert not source.findings["x"].sure
    assert "it has the text '1,23' beside numbers" in said[0]


SECONDS = 1_709_173_623  # 2024-02-29 02:27:03 UTC


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("2024-02-29 02:27:03", SECONDS),
        ("2024-02-29T02:27:03Z", SECONDS),
        (" 2024-02-29 02:27:03 UTC ", SECONDS),
        ("2024-02-29T02:27:03.250+00:00", SECONDS + 0.25),
        ("2024-02-29 04:27:03+0200", SECONDS),
        ("2024-02-28T19:57:03-06:30", SECONDS),
        ("2024/02/29 02:27", SECONDS - 3),
        ("29.2.2024 02:27:03", SECONDS),
        ("2/29/2024 2:27:03 AM", SECONDS),
        ("02/29/2024, 2:27:03 pm", SECONDS + 12 * 3600),
        ("2024-2-29 2:27:03", SECONDS),
        ("20240229T022703Z", SECONDS),
        ("2/29/24 2:27", SECONDS - 3),
        ("29/Feb/2024:02:27:03 +0000", SECONDS),
        ("Thu, 29 Feb 2024 02:27:03 GMT", SECONDS),
        ("Thu Feb 29 03:27:03 +0100 2024", SECONDS),
        ("Feb 29, 2024, 2:27 am", SECONDS - 3),
        ("29-FEB-24 02:27:03", SECONDS),
        ("31 December 1969", -86_400),
        ("1969-12-31", -86_400),
        ("1969-12-30 24:00", -86_400),
        ("1709173623000", SECONDS * 1000),
        ("NA", None),
        ("", None),
    ],
)
def test_times_are_seconds_since_1970_or_the_numbers_that_they_are(text, seconds):
    times, good = text_values.times_of_texts(pa.array([text, "2024-02-29"], pa.string()))
    assert good.all()
    assert np.isnan(times[0]) if seconds is None else times[0] == seconds


@pytest.mark.parametrize(
    "text",
    [
        "2024-13-01",
        "2024-02-32",
        "32.02.2024",
        "2023-02-29",
        "30-FEB-2024",
        "2024-04-31 10:00",
        "2024-01-31 10:75",
        "20240131T250000Z",
        "31/1/2024",
        "soon",
        "2024-2",
        "1/Foo/2024",
        "May 5",
    ],
)
def test_texts_that_are_no_times_are_named(text, opened):
    schema = Schema(("x",), (), 0, "y", time="t")
    with pytest.raises(DataError, match=r"x\.csv: line 3: column t: expected a date and time"):
        opened(f"label,x,t\n0,1,2024-02-29\n1,2,{text}\n", schema=schema)


@pytest.mark.parametrize(
    ("separator", "texts", "lists"),
    [
        ("|", ["a|b", " a", "", None], [["a", "b"], [" a"], [""], []]),
        (";", ["a; b", "a;;b"], [["a", "b"], ["a", "", "b"]]),
        ("[]", ["['a', \"b c\"]", "[]", '["1",2]'], [["a", "b c"], [""], ["1", "2"]]),
        ("[]", ['{a,"b c"}', "{}"], [["a", "b c"], [""]]),
    ],
)
def test_bags_in_texts_are_split_and_missing_ones_left_out(separator, texts, lists, opened):
    found = split_lists(pa.array(texts, pa.string()), separator).to_pylist()
    assert [tokens or [] for tokens in found] == lists
    schema = Schema((), ("tags",), 0, "y", bags=("tags",), separators={"tags": separator})
    _, (block,), _ = opened({"label": [0] * len(texts), "tags": texts}, schema=schema)
    splits = block.groups["categorical"].bags[0].row_splits
    assert np.diff(splits).tolist() == [sum(t != "" for t in tokens) for tokens in lists]


def test_what_the_user_says_of_columns_counts(opened):
    body = "y,user_id,n,w,t,tags,noise\n" + "".join(
        f"{i % 2},{i % 7},{i % 5},1.5,{i},{'a|b' if i % 3 else 'a'},{i}\n" for i in range(200)
    )
    uses = ColumnUses(("y",), "t", "w", "n", numeric=("user_id",), drop=("noise",))
    source, (block,), _ = opened(body, uses=uses)
    schema = source.schema
    assert (schema.continuous, schema.categorical) == (("user_id",), ("n", "tags"))
    assert (schema.bags, schema.time, schema.weight, schema.group) == (("tags",), "t", "w", "n")
    assert block.columns["time"].tolist() == [*range(200)]
    source, _, _ = opened(body, uses=ColumnUses(("y",), categorical=("tags", "w")))
    assert {"tags", "w"} <= {*source.schema.fields}
    for wrong, message in (
        (ColumnUses(("y",), drop=("nope",)), "drop: there is no column `nope`"),
        (ColumnUses(("y",), time="t", drop=("t",)), "column t must have one use, got time and"),
        (ColumnUses(("z",)), "label: there is no column `z`; .*with two values: y$"),
    ):
        with pytest.raises(DataError, match=message):
            opened(body, uses=wrong)


def test_a_year_of_two_digits_is_one_of_1970_to_2069_in_each_form():
    years = {"70": 1970, "85": 1985, "99": 1999, "00": 2000, "24": 2024, "69": 2069}
    for form in ("1/31/{}", "31/Jan/{}", "31-Jan-{} 10:00"):
        short, long = (
            text_values.times_of_texts(pa.array([form.format(y) for y in each], pa.string()))
            for each in (years, years.values())
        )
        assert short[1].all()
        np.testing.assert_array_equal(short[0], long[0])
