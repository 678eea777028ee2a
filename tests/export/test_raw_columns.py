"""From raw rows through training and each export to the same probabilities."""

import csv
import dataclasses
import json
import shutil

import numpy as np
import pandas as pd
import pytest
import tensorflow as tf

from tests.pairwise import SLOW, on_both
from twml_ops import export, models
from twml_ops.core import Scorer
from twml_ops.data import Schema, open_source
from twml_ops.data.schema import SPARSE_IDS
from twml_ops.export.model_inputs import ModelInputs
from twml_ops.export.raw_columns import RawColumns
from twml_ops.optimizers import Adagrad

TAGS = "tags, all/é:"  # names of Keras, of tensors and of signatures have other characters
SCHEMA = Schema(
    ("age", "hours per week"),
    ("city", TAGS, "device", "shown at.hour", "shown at.weekday"),
    0,
    "x",
    bags=(TAGS,),
    bag_weights={TAGS: "tag weights"},
    times={"shown at": "seconds"},
)
ROWS = {
    "age": [23.0, None, 61.5, 40.0, 1e9],
    "hours per week": [40.0, 20.0, None, 0.0, -3.0],
    "city": ["Zürich", "", "Bern", "never seen", "Bern"],
    TAGS: [["a", "b"], [], ["c"], ["new", "a", "a"], ["b"]],
    "tag weights": [[1.0, 0.5], [], [2.0], [1.0, 1.0, 3.0], [0.25]],
    "device": ["phone", "desktop", None, "phone", "car"],
    "shown at": ["2024-01-31T10:20Z", "", "31.1.2024 23:10", "1706700000", "2024-02-01 01:30+02"],
}
B = 5


def write_csv(path, rows=300):
    rng = np.random.default_rng(0)
    with open(path, "w", newline="", encoding="utf-8") as file:
        out = csv.writer(file)
        out.writerow(["label", *ROWS])
        for _ in range(rows):
            tags = rng.choice(list("abcd"), rng.integers(0, 4))
            city = rng.choice(["Zürich", "Bern", "Basel", ""])
            out.writerow(
                [
                    int(rng.random() < (0.8 if city == "Bern" else 0.2)),
                    rng.choice(["", rng.integers(18, 70)]),
                    rng.normal(38, 9),
                    city,
                    "|".join(tags),
                    "|".join(f"{w:.2f}" for w in rng.random(len(tags)) + 0.1),
                    rng.choice(["phone", "desktop", ""]),
                    rng.integers(1_706_600_000, 1_707_000_000),
                ]
            )
    return f"csv:{path}"


def write_rows(path):
    """ROWS as a file that the readers read."""
    with open(path, "w", newline="", encoding="utf-8") as file:
        out = csv.writer(file)
        out.writerow(["label", *ROWS])
        for b in range(B):
            cells = [ROWS[name][b] for name in ROWS]
            cells = ["|".join(map(str, c)) if isinstance(c, list) else c for c in cells]
            out.writerow([0, *cells])
    return f"csv:{path}"


def columns(text=str):
    """ROWS as the arrays that a scorer takes."""
    flat = {"age": np.array(ROWS["age"], float), "hours per week": ROWS["hours per week"]}
    flat["city"] = np.array([text(x) for x in ROWS["city"]])
    flat["device"] = np.array(ROWS["device"], object)
    flat["shown at"] = np.array(ROWS["shown at"], object)
    flat[TAGS] = np.array([t for tags in ROWS[TAGS] for t in tags])
    flat[f"{TAGS}_row_splits"] = np.cumsum([0, *map(len, ROWS[TAGS])])
    flat["tag weights"] = np.array([w for ws in ROWS["tag weights"] for w in ws], np.float32)
    return flat


def tensors():
    flat = columns() | {"device": ["" if x is None else x for x in ROWS["device"]]}
    flat["hours per week"] = [np.nan if x is None else x for x in ROWS["hours per week"]]
    specs = RawColumns(SCHEMA, "fields").specs()
    return {spec.name: tf.constant(flat[name], spec.dtype) for name, spec in specs.items()}


def examples():
    """ROWS as `tf.Example`s: what is missing is left out."""
    out = []
    for b in range(B):
        row = {n: c[b] if isinstance(c[b], list) else [c[b]] for n, c in ROWS.items()}
        feature = {}
        for name, values in row.items():
            if values in ([None], [""]):
                continue
            if name in SCHEMA.categorical or name in SCHEMA.times:
                of_bytes = tf.train.BytesList(value=[v.encode() for v in values])
                feature[name] = tf.train.Feature(bytes_list=of_bytes)
            else:
                feature[name] = tf.train.Feature(float_list=tf.train.FloatList(value=values))
        made = tf.train.Example(features=tf.train.Features(feature=feature))
        out.append(made.SerializeToString())
    return tf.constant(out)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    path = tmp_path_factory.mktemp("raw") / "clicks.csv"
    return open_source(write_csv(path), schema=SCHEMA)


def trained(name, data):
    tf.keras.utils.set_random_seed(0)
    build = models.get(name)
    layout = models.layout_of(build)
    data.num_examples()
    model = build(SCHEMA, data.dataset(64, layout=layout))
    model.compile(Adagrad(0.1), "binary_crossentropy", jit_compile=False)
    model.fit(data.dataset(64, layout=layout), epochs=2, verbose=0)
    return model


@pytest.fixture(scope="module", params=on_both(["deepfm", "sparse_mlp"], "sparse_mlp"))
def model(request, data):
    return trained(request.param, data)


@pytest.fixture
def wanted(model, tmp_path):
    """The predictions for ROWS as the readers read them."""
    source = open_source(write_rows(tmp_path / "rows.csv"), schema=SCHEMA)
    ((features, _),) = source.dataset(B, layout=models.layout_of(model))
    predicted = model(features).numpy()
    assert np.ptp(predicted) > 0.01
    return predicted


@pytest.mark.parametrize("other", [False, pytest.param(True, marks=SLOW)])
def test_saved_models_take_raw_columns_and_examples(model, wanted, other, request, tmp_path):
    """Each model in one of the two formats; in the other one it is slow."""
    stock = (request.node.callspec.params["model"] == "sparse_mlp") != other
    write = export.to_stock_tf if stock else export.to_tf
    write(model, tmp_path / "saved", schema=SCHEMA, output_names=["probability"])
    signatures = tf.saved_model.load(str(tmp_path / "saved")).signatures
    assert set(signatures) == {"serving_default", "raw", "tf_example", "features"}
    named = signatures["serving_default"](**tensors())["probability"]
    np.testing.assert_allclose(named, wanted, atol=1e-6)
    parsed = signatures["tf_example"](examples=examples())["probability"]
    np.testing.assert_allclose(parsed, wanted, atol=1e-6)


@pytest.mark.parametrize("text", [str, str.encode])
def test_a_scorer_takes_raw_columns(model, wanted, text, tmp_path):
    export.to_scorer(model, tmp_path / "scorer", schema=SCHEMA)
    scorer = Scorer.load(tmp_path / "scorer")
    assert set(scorer.columns) == set(columns())
    got = scorer.predict({**columns(text), "not a column": np.zeros(3)})
    np.testing.assert_allclose(got, wanted, atol=1e-6)


@pytest.mark.parametrize("separator", ["|", ", "])
def test_a_data_frame_with_the_texts_of_the_file_has_the_scores_of_the_file(
    model, wanted, separator, tmp_path
):
    schema = dataclasses.replace(SCHEMA, separators={TAGS: separator.strip()})
    export.to_scorer(model, tmp_path / "scorer", schema=schema)
    scorer = Scorer.load(tmp_path / "scorer")
    frame = pd.read_csv(tmp_path / "rows.csv", keep_default_na=False, na_values=[""])
    assert frame[TAGS].tolist()[3] == "new|a|a"
    for name in (TAGS, "tag weights"):
        frame[name] = frame[name].str.replace("|", separator, regex=False)
    np.testing.assert_allclose(scorer.predict(frame), wanted, atol=1e-6)
    of_text = scorer.predict(frame.assign(**{TAGS: frame[TAGS].astype("category")}))
    np.testing.assert_allclose(of_text, wanted, atol=1e-6)
    one = frame.iloc[4:].assign(**{"tag weights": 0.25})  # as pandas reads a column of numbers
    np.testing.assert_allclose(scorer.predict(one), wanted[4:], atol=1e-6)
    with pytest.raises(ValueError, match="'tag weights' must hold lists of numbers"):
        scorer.predict(frame.assign(**{"tag weights": "x"}))
    program = json.loads((tmp_path / "scorer" / "scorer.json").read_text())
    program.pop("crc32")  # as one who edits it does
    for other in ("~", None, 7):  # of another version of the model, of an older one, and damaged
        for category in program["raw"]["categories"]:
            if category["bag"]:
                category["separator"] = other
            if other is None:
                category.pop("separator", None)
        shutil.copytree(tmp_path / "scorer", folder := tmp_path / f"s{other}")
        (folder / "scorer.json").write_text(json.dumps(program))
    scorer.reload(tmp_path / "s~")
    parts = {n: frame[n].str.replace(separator, "~", regex=False) for n in (TAGS, "tag weights")}
    np.testing.assert_allclose(scorer.predict(frame.assign(**parts)), wanted, atol=1e-6)
    with pytest.raises(ValueError, match="categories must have a name"):
        scorer.reload(tmp_path / "s7")
    np.testing.assert_allclose(scorer.predict(frame.assign(**parts)), wanted, atol=1e-6)
    with pytest.raises(ValueError, match="without the separator of texts: export it again"):
        Scorer.load(tmp_path / "sNone").predict(frame)


@pytest.fixture(scope="module")
def scorer(data, tmp_path_factory):
    path = tmp_path_factory.mktemp("scorer") / "s"
    export.to_scorer(trained("logistic", data), path, schema=SCHEMA)
    return Scorer.load(path)


def test_a_category_that_training_has_not_seen_is_a_rare_one_and_no_missing_one(scorer):
    cities = np.array(["never seen", "nor this one", "", "Bern", "Zürich"])
    same = {n: np.repeat(np.array(c[:1]), B) for n, c in columns().items() if "tag" not in n}
    bag = {
        TAGS: np.zeros(0, str),
        "tag weights": np.zeros(0),
        f"{TAGS}_row_splits": np.zeros(6, int),
    }
    got = scorer.predict({**same, **bag, "city": cities})[:, 0]
    assert got[0] == got[1]
    assert len(set(got.tolist())) == 4


def test_integers_and_bools_are_their_text(scorer):
    given = columns()
    numbers = scorer.predict(given | {"city": np.arange(B), "device": np.arange(B) > 2})
    words = ["false"] * 3 + ["true"] * 2
    texts = scorer.predict(given | {"city": list("01234"), "device": words})
    objects = scorer.predict(given | {"city": np.array([*range(B)], object), "device": words})
    np.testing.assert_array_equal(numbers, texts)
    np.testing.assert_array_equal(objects, texts)


def test_missing_categories_in_lists_are_those_of_arrays_of_objects(scorer):
    given = columns()

    def predict(**change):
        return scorer.predict(given | change)

    nan, none = float("nan"), [None] * B
    np.testing.assert_array_equal(predict(city=[nan] * B), predict(city=none))
    np.testing.assert_array_equal(predict(city=np.full(B, np.nan)), predict(city=none))
    mixed, same = ["Bern", nan, None, "Zürich", b"Bern"], ["Bern", "", "", "Zürich", "Bern"]
    np.testing.assert_array_equal(predict(city=mixed), predict(city=same))
    numbers = [np.int64(7), nan, True, np.bool_(False), 7]
    words = ["7", "", "true", "false", "7"]
    np.testing.assert_array_equal(predict(city=numbers), predict(city=words))
    none = {TAGS: [], "tag weights": [], f"{TAGS}_row_splits": [0] * (B + 1)}
    want = predict(**none | {TAGS: np.zeros(0, str)})
    np.testing.assert_array_equal(predict(**none), want)
    np.testing.assert_array_equal(predict(**none | {TAGS: np.zeros(0)}), want)


def test_columns_of_nullable_types_of_pandas_have_missing_values(scorer):
    given = columns()
    texts, numbers = ["Bern", None, "b", None, "c"], [1, None, 3, None, 5]
    want = scorer.predict(given | {"city": texts, "age": numbers})
    city, ages = pd.array(texts, dtype="string"), pd.array(numbers, dtype="Int64")
    for made in (pd.Series, np.asarray, list):
        change = {"city": made(city), "age": made(ages)}
        np.testing.assert_array_equal(scorer.predict(given | change), want)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"city": None}, r"columns \['city'\] are missing"),
        ({"city": np.zeros(B)}, "column 'city' must hold strings, integers or bools, got float64"),
        ({"city": np.array([1.5] * B, object)}, "column 'city' must hold strings.*got float"),
        ({"age": np.array(["1"] * B)}, "column 'age' must hold numbers, got text"),
        ({"age": np.array(["1", 2, 3, 4, 5], object)}, "column 'age' must hold numbers, got text"),
        ({"age": np.zeros(B - 1)}, "the same number of rows, got .*'age': 4"),
        ({"age": np.zeros((B, 2))}, r"column 'age' must have the shape \[B\], got \(5, 2\)"),
    ],
)
def test_missing_columns_and_wrong_types_are_named(scorer, change, message):
    given = columns() | change
    given = {name: column for name, column in given.items() if column is not None}
    with pytest.raises(ValueError, match=message):
        scorer.predict(given)


def test_columns_of_one_per_row_may_have_a_second_axis(scorer):
    given = columns()
    want = scorer.predict(given)
    got = scorer.predict(given | {"city": given["city"][:, None], "age": given["age"][:, None]})
    np.testing.assert_array_equal(got, want)


@pytest.mark.one_tf
def test_examples_with_a_feature_of_another_type_are_refused(data, tmp_path):
    export.to_stock_tf(trained("logistic", data), tmp_path / "saved", schema=SCHEMA)
    serve = tf.saved_model.load(str(tmp_path / "saved")).signatures["tf_example"]
    feature = tf.train.Feature(bytes_list=tf.train.BytesList(value=[b"23"]))
    wrong = tf.train.Example(features=tf.train.Features(feature={"age": feature}))
    with pytest.raises(tf.errors.InvalidArgumentError, match="age"):
        serve(examples=tf.constant([wrong.SerializeToString()]))


def example(**features):
    """A serialized `tf.Example` with lists of integers, floats or bytes."""
    made = {}
    for name, (kind, values) in features.items():
        if kind == "int":
            made[name] = tf.train.Feature(int64_list=tf.train.Int64List(value=values))
        elif kind == "float":
            made[name] = tf.train.Feature(float_list=tf.train.FloatList(value=values))
        else:
            made[name] = tf.train.Feature(bytes_list=tf.train.BytesList(value=values))
    return tf.train.Example(features=tf.train.Features(feature=made)).SerializeToString()


LISTS = Schema(("n",), ("c", "t"), 9, "x", bags=("t",), bag_weights={"t": "w"})


@pytest.mark.parametrize("number", ["int", "float"])
@pytest.mark.parametrize("category", ["int", "bytes"])
def test_examples_are_served_as_they_were_trained_on_whatever_types_their_lists_have(
    number, category, tmp_path
):
    def numbers(*values):
        return number, [float(v) if number == "float" else v for v in values]

    def categories(*values):
        return category, [b"%d" % v if category == "bytes" else v for v in values]

    ids = ("int", [5, 8])
    full = {"label": ("int", [1]), "n": numbers(2**24 + 1), "c": categories(3)}
    full |= {"t": categories(1, 2), "w": numbers(2, 3), "ids": ids, "values": numbers(4, 6)}
    empty = {"label": ("int", [0]), "n": (number, []), "ids": ("int", []), "values": numbers()}
    rows = [example(**full), example(**empty), example(**full | {"n": numbers(-7)})]
    path = tmp_path / "a.tfrecord"
    with tf.io.TFRecordWriter(str(path)) as out:
        for row in rows:
            out.write(row)
    source = open_source(f"tfrecord:{path}", schema=LISTS)
    ((want, _),) = source.dataset(3, layout="fields")
    raw = RawColumns(source.schema, "fields")
    got = raw.features(raw.parse(tf.constant(rows)))
    assert got.keys() == want.keys()
    for name, tensor in want.items():
        for part in ("flat_values", "row_splits") if name in raw.specs() else ("flat_values",):
            a, b = (getattr(x, part, x) for x in (got[name], tensor))
            np.testing.assert_array_equal(a, b, name)


def test_lists_of_one_batch_may_have_different_types():
    raw = RawColumns(Schema(("n",), ("c",), 0, "x", typed=("c",)), "fields")
    rows = [
        example(n=("int", [3]), c=("bytes", [b"True"])),
        example(n=("float", [3.5]), c=("int", [7])),
        example(c=("bytes", [b"7.0"])),
        b"",
    ]
    columns = raw.parse(tf.constant(rows))
    np.testing.assert_array_equal(columns["n"], np.float32([3, 3.5, np.nan, np.nan]))
    assert columns["c"].numpy().tolist() == [b"True", b"7", b"7.0", b""]
    ids = raw.features(columns)["categorical"].numpy()[:, 0]
    assert ids[1] == ids[2]
    assert ids[3] == -1
    assert {k: v.shape[0] for k, v in raw.parse(tf.zeros([0], tf.string)).items()} == {
        "n": 0,
        "c": 0,
    }


@pytest.mark.parametrize(
    "features",
    [
        {"n": ("bytes", [b"3"])},
        {"n": ("int", [3, 4])},
        {"c": ("float", [3.0])},
        {"c": ("bytes", [b"a", b"b"])},
        {"t": ("float", [1.0])},
        {"t": ("bytes", [b"a"]), "w": ("int", [1, 2])},
        {"ids": ("float", [1.0])},
        {"ids": ("int", [1]), "values": ("int", [1, 2])},
    ],
)
def test_lists_that_training_refuses_are_refused(features):
    raw = RawColumns(LISTS, "fields")
    with pytest.raises(tf.errors.InvalidArgumentError, match=next(reversed(features))):
        raw.parse(tf.constant([example(), example(**features)]))


@pytest.mark.parametrize("column", ["n", "w"])
def test_infinite_numbers_are_refused_as_the_readers_refuse_them(column):
    raw = RawColumns(LISTS, "fields")
    columns = raw.parse(tf.constant([example(n=("int", [1]), t=("int", [2]), w=("int", [3]))]))
    raw.features(columns)
    with pytest.raises(tf.errors.InvalidArgumentError, match="must not be infinite"):
        raw.features(columns | {column: tf.constant([np.inf])})


@pytest.mark.parametrize("layout", ["ragged", "fields"])
def test_raw_sparse_ids_are_passed_on(layout):
    raw = RawColumns(Schema((), (), 9, "x"), layout)
    splits = tf.constant([0, 2, 3], tf.int64)
    given = {"ids": tf.constant([1, 5, 8], tf.int64), "values": tf.constant([1.0, 2.0, 3.0])}
    features = raw.features({**given, "ids_row_splits": splits})
    assert features[f"sparse_{SPARSE_IDS}"].to_list() == [[1, 5], [8]]
    assert features["sparse_values"].to_list() == [[1.0, 2.0], [3.0]]


def test_tensors_have_names_of_their_own():
    raw = RawColumns(Schema(("a b", "a-b", "_c", "a_b_", "A b"), (), 0, "x"), "fields")
    names = ["a_b", "a_b_", "column_c", "a_b__", "A_b___"]
    assert [spec.name for spec in raw.specs().values()] == names


@pytest.mark.one_tf
def test_inputs_that_are_no_features_are_refused(data, tmp_path):
    other = Schema(("age",), (), 0, "x")
    with pytest.raises(ValueError, match="no features of the schema"):
        export.to_stock_tf(trained("logistic", data), tmp_path / "saved", schema=other)
    assert not (tmp_path / "saved").exists()
    with pytest.raises(ValueError, match="no features of the schema"):
        export.to_scorer(trained("logistic", data), tmp_path / "scorer", schema=other)
    assert not (tmp_path / "scorer").exists()


def test_bags_have_arrays_of_their_own_whatever_their_names():
    bags = (
        "tags",
        "tags_ids",
        "tags_values",
        "Tags",
        "my tags",
        "my_tags",
        "my/tags",
        "é",
        ":",
        "my_x20_tags",
    )
    schema = Schema((), bags, 0, "x", bags=bags)
    inputs = [
        tf.keras.Input((None,), ragged=True, dtype="int64", name=f"{schema.bag_arrays(bag)}_ids")
        for bag in bags
    ]
    model = tf.keras.Model(inputs, [tf.keras.layers.Identity()(x) for x in inputs])
    names = {name.lower() for name in ModelInputs(model).flat_specs()}  # as TensorFlow takes them
    assert len(names) == 2 * len(bags)


def test_columns_with_the_name_of_the_row_splits_of_a_bag_are_refused():
    with pytest.raises(ValueError, match=r"must not be called \['tags_row_splits'\]"):
        Schema((), ("tags", "tags_row_splits"), 0, "x", bags=("tags",))
