"""Batches that keep fields: matrices with marks for what is missing, weights, several labels."""

import dataclasses
import math
import re
from itertools import chain, pairwise

import numpy as np
import pyarrow as pa
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from twml_ops import layers
from twml_ops.data import DataError, Schema, open_source
from twml_ops.data.block import Block, Categories, Numbers, Rows
from twml_ops.data.category_ids import hash_column

pytestmark = pytest.mark.one_tf  # readers do not depend on the TensorFlow version

COLUMNS = {
    "label": pa.array([1, 0, 1]),
    "bought": pa.array([0, 0, 1]),
    "age": pa.array([1, None, 3]),
    "price": pa.array([0.5, math.nan, -1.0]),
    "city": pa.array(["a", None, ""]),
    "code": pa.array([7, 8, None]),
    "tags": pa.array([["x", "y"], [], ["x", None, "z"]]),
    "tag_weights": pa.array([[0.5, 2.0], [], [1.0, 9.0, 3.0]]),
    "importance": pa.array([1.0, 0.5, 0.0]),
    "when": pa.array([0, 1, 2], pa.timestamp("s")),
    "user": pa.array(["u", "v", "u"]),
    "unused": pa.array([{"a": 1}] * 3),
}
SCHEMA = Schema(
    ("age", "price"),
    ("city", "tags", "code"),
    0,
    "the ad was clicked",
    bags=("tags",),
    bag_weights={"tags": "tag_weights"},
    labels=("label", "bought"),
    weight="importance",
    time="when",
    group="user",
)


def ids(column, *tokens):
    return hash_column(column, pa.array(tokens, pa.string())).tolist()


@pytest.fixture
def path(tmp_path):
    parquet.write_table(pa.table(COLUMNS), tmp_path / "x.parquet", row_group_size=2)
    return f"parquet:{tmp_path}/x.parquet"


def test_every_kind_of_column_arrives(path):
    source = open_source(path, schema=SCHEMA)
    (batch,) = source.dataset(3, layout="fields")
    features, labels, weights = batch
    assert set(features) == {
        *("continuous", "continuous_present", "categorical"),
        *("bag_tags_ids", "bag_tags_values"),
    }
    assert features["continuous"].numpy().tolist() == [[1, 0.5], [0, 0], [3, -1]]
    present = [[True, True], [False, False], [True, True]]
    assert features["continuous_present"].numpy().tolist() == present
    city, code = ids("city", "a", None, ""), ids("code", "7", "8", None)
    assert city[1:] == [-1, -1]
    assert features["categorical"].numpy().tolist() == [
        list(r) for r in zip(city, code, strict=True)
    ]
    x, y, z = ids("tags", "x", "y", "z")
    assert features["bag_tags_ids"].to_list() == [[x, y], [], [x, z]]
    assert features["bag_tags_values"].to_list() == [[0.5, 2], [], [1, 3]]
    assert {k: v.numpy()[:, 0].tolist() for k, v in labels.items()} == {
        "label": [1, 0, 1],
        "bought": [0, 0, 1],
    }
    assert weights.numpy().tolist() == [1, 0.5, 0]
    (block,) = [Block.concat(list(source.blocks()))]
    assert block.columns["time"].tolist() == [0, 1, 2]
    assert block.columns["group"].tolist() == ids("user", "u", "v", "u")


def test_ragged_batches_of_the_same_data_have_the_bags_among_the_categories(path):
    ((features, _, weights),) = open_source(path, schema=SCHEMA).dataset(3)
    x, y, z = ids("tags", "x", "y", "z")
    (a,), (seven, eight) = ids("city", "a"), ids("code", "7", "8")
    assert features["categorical_ids"].to_list() == [[a, x, y, seven], [eight], [x, z]]
    assert features["continuous_ids"].to_list() == [[0, 1], [], [0, 1]]
    assert weights.shape == (3,)


def test_data_like_the_training_data_is_read_with_its_schema(path):
    (batch,) = open_source(path, like=SCHEMA).dataset(3, layout="fields")
    assert len(batch) == 3


def test_string_hash_gives_the_matrix_of_the_reader(path):
    (batch,) = open_source(path, schema=SCHEMA).dataset(3, layout="fields")
    raw = {"city": tf.constant(["a", "", ""]), "code": tf.constant(["7", "8", ""])}
    got = layers.StringHash(SCHEMA.fields)(raw)
    np.testing.assert_array_equal(got, batch[0]["categorical"])


def test_a_criteo_row_keeps_its_columns(criteo_file, criteo_row):
    source = open_source(f"criteo:{criteo_file([criteo_row(c14=b'', c3=b''), criteo_row()])}")
    (batch,) = source.dataset(2, layout="fields")
    categorical = batch[0]["categorical"].numpy()
    assert categorical.shape == (2, 26)
    assert (categorical < 0).nonzero()[1].tolist() == [0]
    assert categorical[0, 1:].tolist() == categorical[1, 1:].tolist()
    assert (~batch[0]["continuous_present"].numpy()).nonzero()[1].tolist() == [2]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"weight": "price"}, r"row 1: weight price must be a number >= 0, and finite in .*, got"),
        (
            {"continuous": ("city",), "categorical": ()},
            "column city has type string, expected a number or bool",
        ),
        ({"categorical": ("price",)}, "column price has type double, expected text, integers"),
        ({"continuous": ("nope",)}, "there is no column nope, the columns are"),
        ({"labels": ("age",)}, "row 1: age has no value"),
        ({"bag_weights": {"tags": "price"}}, "column price has type double, expected lists"),
    ],
)
def test_what_is_not_as_the_schema_says_is_named(path, changes, message):
    base = {
        "continuous": (),
        "categorical": ("city", "tags"),
        "sparse_dim": 0,
        "label": "x",
        "bags": ("tags",),
    }
    if "categorical" in changes:
        base["bags"] = ()
    with pytest.raises(DataError, match=message):
        list(open_source(path, schema=Schema(**{**base, **changes})).blocks())


def test_weights_of_a_bag_must_be_as_many(tmp_path):
    table = {"label": [1, 0], "t": [["a"], ["b"]], "w": [[1.0], [1.0, 2.0]]}
    parquet.write_table(pa.table(table), tmp_path / "x.parquet")
    schema = Schema((), ("t",), 0, "x", ("t",), {"t": "w"})
    with pytest.raises(DataError, match="row 1: t and w have different lengths, 1 and 2"):
        list(open_source(f"parquet:{tmp_path}/x.parquet", schema=schema).blocks())


def test_an_unknown_layout_is_refused(path):
    with pytest.raises(ValueError, match='"keyed_fields" or "row_keys", got .flat'):
        open_source(path, schema=SCHEMA).dataset(3, layout="flat")


@settings(deadline=None, max_examples=50)
@given(st.data())
def test_tables_are_moved_like_their_rows(data):
    count, columns = data.draw(st.integers(0, 6)), data.draw(st.integers(0, 3))
    size = count * columns
    cells = data.draw(st.lists(st.integers(-1, 5), min_size=size, max_size=size))
    table = np.array(cells, np.int64).reshape(count, columns)
    lengths = np.array(data.draw(st.lists(st.integers(0, 3), min_size=count, max_size=count)), int)
    bag = Rows.from_lengths(lengths, np.arange(lengths.sum()))
    position = data.draw(st.integers(0, columns))
    numbers = Numbers(np.where(table < 0, np.nan, table).astype(np.float32))
    categories = Categories(table, {position: bag})
    order = np.array(data.draw(st.permutations(range(count))), np.int64)
    start = data.draw(st.integers(0, count))
    stop = data.draw(st.integers(start, count))

    def lists(rows):
        return [rows.ids[a:b].tolist() for a, b in pairwise(rows.row_splits)]

    expected = []
    for r in range(count):
        row = [[i] if i >= 0 else [] for i in table[r].tolist()]
        row.insert(position, bag.ids[bag.row_splits[r] : bag.row_splits[r + 1]].tolist())
        expected.append(list(chain(*row)))
    assert lists(categories.rows) == expected
    assert lists(categories.take(order).rows) == [expected[i] for i in order]
    assert lists(categories.slice(start, stop).rows) == expected[start:stop]
    joined = Categories.concat([categories.slice(0, start), categories.slice(start, count)])
    np.testing.assert_array_equal(joined.ids, categories.ids)
    again = Numbers.concat([numbers.slice(0, start), numbers.slice(start, count)])
    np.testing.assert_array_equal(again.table, numbers.table)
    np.testing.assert_array_equal(numbers.ids, Rows.from_numbers(numbers.table).ids)


def test_keras_fits_weighted_examples(path, fresh_keras):
    source = open_source(path, schema=SCHEMA)
    source.num_examples()
    inputs = {"continuous": tf.keras.Input([2], name="continuous")}
    x = inputs["continuous"]
    outputs = {n: tf.keras.layers.Dense(1, "sigmoid", name=n)(x) for n in ("label", "bought")}
    model = tf.keras.Model(inputs, outputs)
    model.compile("sgd", {n: "binary_crossentropy" for n in outputs})
    batches = source.dataset(2, layout="fields")
    batches = batches.map(lambda x, y, w: ({"continuous": x["continuous"]}, y, w))
    history = model.fit(batches, epochs=2, verbose=0)
    assert np.isfinite(history.history["loss"]).all()


@pytest.mark.parametrize("name", ["csv", "parquet", "tfrecord"])
def test_labels_can_have_other_names(name, open_examples):
    data = open_examples(name).name
    schema = open_source(data, labels=("x",)).schema
    assert (schema.labels, schema.continuous) == (("x",), ("label",))
    with pytest.raises(DataError, match=r"`nope`.*--label NAME"):
        open_source(data, labels=("x", "nope"))
    with pytest.raises(DataError, match="no feature.* besides `x`, `label`"):
        open_source(data, labels=("x", "label"))
    with pytest.raises(ValueError, match="together with labels"):
        open_source(data, labels=("x",), schema=schema)


def test_a_source_with_a_fixed_label_takes_no_other(criteo_file, criteo_row):
    with pytest.raises(DataError, match="`criteo` takes no labels"):
        open_source(f"criteo:{criteo_file([criteo_row()])}", labels=("x",))


@pytest.mark.parametrize("use", [{"weight": "city"}, {"group": "age"}])
def test_a_csv_column_cannot_be_both_number_and_text(use, tmp_path):
    (tmp_path / "x.csv").write_text("label,age,city\n1,7,a\n")
    schema = Schema(("age",), ("city",), 0, "x", **use)
    with pytest.raises(DataError, match=f"uses {next(iter(use.values()))} as both"):
        open_source(f"csv:{tmp_path}/x.csv", schema=schema)


@pytest.mark.parametrize("name", ["csv", "parquet", "tfrecord"])
def test_examples_without_labels_are_read_for_prediction(name, open_examples, rows_of):
    source = open_examples(name)
    unlabeled = open_source(source.name, like=source.schema.without_labels())
    assert not any(block.labels.any() for block in unlabeled.blocks())
    want = [features for _, *features in rows_of(source.blocks())]
    assert [features for _, *features in rows_of(unlabeled.blocks())] == want
    only = dataclasses.replace(source.schema.without_labels(), continuous=("nope",))
    with pytest.raises(DataError, match="nope"):
        list(open_source(source.name, like=only).blocks())


BAGS = [["x"], ["y", "x"], [], ["z", "x", "y"], ["y"], ["x", "x"]]


def write_bags(folder, name):
    """The same bags as lists, or as texts with a separator, in a format."""
    labels = [i % 2 for i in range(len(BAGS))]
    kind, _, how = name.partition(" ")
    texts = [how.join(bag) for bag in BAGS]
    if kind == "csv":
        path = folder / "x.csv"
        rows = zip(labels, texts, strict=True)
        path.write_text("label,tags\n" + "".join(f"{label},{text}\n" for label, text in rows))
    elif kind == "parquet":
        path = folder / "x.parquet"
        parquet.write_table(pa.table({"label": labels, "tags": texts if how else BAGS}), path)
    else:
        path = folder / "x.tfrecord"
        with tf.io.TFRecordWriter(str(path)) as out:
            for label, text, bag in zip(labels, texts, BAGS, strict=True):
                tokens = [text] if how else bag
                record = {
                    "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[label])),
                    "tags": tf.train.Feature(
                        bytes_list=tf.train.BytesList(value=[t.encode() for t in tokens])
                    ),
                }
                features = tf.train.Features(feature=record)
                out.write(tf.train.Example(features=features).SerializeToString())
    return f"{kind}:{path}"


FORMS = ["csv |", "csv ;", "parquet", "parquet |", "parquet ;", "tfrecord", "tfrecord |"]


@pytest.mark.parametrize("trained_on", FORMS)
def test_a_bag_is_read_alike_in_every_form_whatever_the_training_data_was(trained_on, tmp_path):
    def bags(source):
        (block,) = source.blocks()
        (rows,) = block.groups["categorical"].bags.values()
        return [row.tolist() for row in np.split(rows.ids, rows.row_splits[1:-1])]

    declared = Schema((), ("tags",), 0, "x", bags=("tags",))
    separator = trained_on.partition(" ")[2]
    if separator:
        declared = dataclasses.replace(declared, separators={"tags": separator})
    want = [ids("tags", *bag) for bag in BAGS]
    for schema in (None, declared):
        source = open_source(write_bags(tmp_path, trained_on), schema=schema)
        assert bags(source) == want
        others = [f for f in FORMS if f.partition(" ")[2] in ("", separator or "|")]
        for name in others:
            if name == "tfrecord |" and not separator:
                continue  # a list of one text is a list, unless the training data had texts
            path = write_bags(tmp_path, name)
            assert bags(open_source(path, like=source.schema)) == want, name


def test_no_two_bags_have_arrays_of_one_name_to_tensorflow():
    bags = ("tags", "Tags", "tags_x_1", "my tags", "my_x20_tags", "é", "É", "a/b")
    schema = Schema((), bags, 0, "label", bags=bags)
    names = [schema.bag_arrays(bag).lower() for bag in bags]
    assert len({*names}) == len(bags)
    assert names[0] == "bag_tags"
    assert all(re.fullmatch(r"bag_[a-z0-9_.]+", name) for name in names)
