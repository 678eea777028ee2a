"""Requests in JSON and in tensors become the arrays that `core.Scorer` takes."""

import base64
import contextlib
import json
import tracemalloc

import numpy as np
import pytest

pytest.importorskip("twml_ops.serving", reason="needs the extra `serve`")

from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.core import scorer_programs
from tests.serving.clients import predict_request, raw_model, sparse_model, with_categories
from twml_ops.serving import ServerOptions, messages
from twml_ops.serving.errors import InvalidRequest, RequestError, TooLarge
from twml_ops.serving.tensors import _TYPES, Tensor, array_of
from twml_ops.serving.version import Version, read_json

EXAMPLES = scorer_programs.examples()
# One of each kind of input: all operations are tests of the scorer.
NAMES = [n for n in EXAMPLES if not n.startswith(("dense_", "activation_"))] + ["dense_of_vectors"]
COLUMNS = {
    "age": [31.5, None, 7],
    "height": [1.7, 1.6, None],
    "city": ["Zürich", None, "a\0b"],
    "tags": ["x", "y", "x"],
    "tags_row_splits": [0, 2, 2, 3],
}


def json_value(value):
    """A list of numbers or of texts, which JSON can have."""
    if isinstance(value, list):
        return [json_value(x) for x in value]
    return {"b64": base64.b64encode(value).decode()} if isinstance(value, bytes) else value


def as_json(arrays):
    made = {name: json_value(array.tolist()) for name, array in arrays.items()}
    return json.loads(json.dumps(made))


def as_rows(example, arrays, rows):
    """The request as a list with an object for each row."""
    made = [{name: arrays[name][i].tolist() for name in example.dense} for i in range(rows)]
    for splits, (ids, values, _) in example.groups.items():
        for i, row in enumerate(made):
            begin, end = arrays[splits][i : i + 2]
            row |= {n: arrays[n][begin:end].tolist() for n in (ids, values) if n}
    return json.loads(json.dumps([{n: json_value(x) for n, x in row.items()} for row in made]))


def load(folder, **options):
    return Version.load(folder, 1, ServerOptions(**options))


@pytest.fixture(scope="module")
def sparse(tmp_path_factory):
    return load(sparse_model(tmp_path_factory.mktemp("sparse")), max_rows=100)


@pytest.fixture(scope="module")
def raw(tmp_path_factory):
    return load(raw_model(tmp_path_factory.mktemp("raw")), max_rows=100)


@pytest.mark.parametrize("name", NAMES)
def test_json_and_tensors_have_the_bits_of_the_arrays(name, tmp_path):
    example = EXAMPLES[name]
    version = load(example.write(tmp_path))
    for rows in (0, 1, 5):
        arrays = example.request(rows, seed=rows)
        want = version.scorer.predict(arrays)
        columnar = version.predict_json({"inputs": as_json(arrays)})
        np.testing.assert_equal(columnar.values, want)
        by_row = version.predict_json({"instances": as_rows(example, arrays, rows)})
        np.testing.assert_equal(by_row.values, want)
        assert (columnar.rows, by_row.rows) == (rows, rows)
        request = predict_request(arrays)
        tensors = {n: array_of(n, t, 1 << 20) for n, t in request.inputs.items()}
        np.testing.assert_equal(version.predict_arrays("", tensors).values, want)


def test_raw_columns_have_the_bits_of_the_scorer(raw):
    want = raw.scorer.predict(
        COLUMNS | {"city": np.array(["Zürich", None, "a\0b"], object), "age": [31.5, np.nan, 7]}
    )
    rows = [
        {"age": 31.5, "height": 1.7, "city": "Zürich", "tags": ["x", "y"]},
        {"age": None, "height": 1.6, "city": None, "tags": []},
        {"age": 7, "height": None, "city": "a\0b", "tags": ["x"]},
    ]
    for body in ({"inputs": COLUMNS}, {"instances": rows}):
        for signature in ({}, {"signature_name": "raw"}, {"signature_name": "serving_default"}):
            np.testing.assert_array_equal(raw.predict_json(body | signature).values, want)


def test_bytes_are_base64(raw):
    b64 = {"b64": base64.b64encode("Zürich".encode()).decode()}
    cities = [b64, None, {"b64": base64.b64encode(b"a\0b").decode()}]
    got = raw.predict_json({"inputs": COLUMNS | {"city": cities}}).values
    np.testing.assert_array_equal(got, raw.predict_json({"inputs": COLUMNS}).values)


def test_integers_and_bools_are_the_categories_of_their_text(raw):
    numbers, texts = (COLUMNS | {"city": cities} for cities in ([5, True, 1], ["5", "true", "1"]))
    np.testing.assert_array_equal(
        *(raw.predict_json({"inputs": columns}).values for columns in (numbers, texts))
    )


@pytest.mark.parametrize("ids", [[True, 3], [3, False], [True], [3.7], [1, 2.0], [None], ["3"]])
def test_ids_are_integers_and_nothing_else(sparse, ids):
    ends = [0, len(ids)]
    body = {"inputs": {"x_ids": ids, "x_values": [1.0] * len(ids), "x_row_splits": ends}}
    with pytest.raises(InvalidRequest, match="x_ids"):
        sparse.predict_json(body)


@pytest.mark.parametrize("big", ["1e400", "-1e400", "1e39", "-3.5e38"])
@pytest.mark.parametrize("other", ["0", "Infinity"])  # the second is for another JSON parser
def test_numbers_that_the_readers_refuse_are_refused(sparse, raw, big, other):
    values = f'{{"x_ids": [1, 2], "x_values": [{big}, {other}], "x_row_splits": [0, 2]}}'
    columns = json.dumps(COLUMNS | {"age": [1, 2, "BIG"]}).replace('"BIG"', big)
    for version, inputs in ((sparse, values), (raw, columns)):
        with pytest.raises(InvalidRequest, match="finite in float"):
            version.predict_json(read_json(b'{"inputs": %s}' % inputs.encode()))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_infinite_numbers_in_raw_columns_are_refused_by_every_route(raw, dtype):
    age = np.array([1, np.nan, -np.inf], dtype)
    columns = {
        n: np.array(c, object if n in ("city", "tags") else None) for n, c in COLUMNS.items()
    }
    columns |= {"age": age, "height": np.float32([1, 2, 3])}
    message = "column 'age' must hold numbers that are finite in float32, got -inf in row 2"
    with pytest.raises(ValueError, match=message):
        raw.scorer.predict(columns)
    request = predict_request({"age": age})
    columns["age"] = array_of("age", request.inputs["age"], 1 << 20)
    with pytest.raises(InvalidRequest, match=message):
        raw.predict_arrays("", columns)


@pytest.mark.parametrize("dtype", [4, 5, 6, 17, 19])
def test_items_that_do_not_fit_the_type_of_a_tensor_are_refused(dtype):
    tensor = messages.TensorProto()
    tensor.dtype = dtype
    tensor.tensor_shape.dim.add(size=1)
    getattr(tensor, "half_val" if dtype == 19 else "int_val").append(70_000)
    with pytest.raises(InvalidRequest, match="'x' must fit into u?int.*got 70000"):
        array_of("x", tensor, 100)


def test_categories_that_training_has_not_seen_are_counted(raw_with_categories):
    version = raw_with_categories
    assert version.categories.taken() == {}  # the warm-up is no request
    unseen = COLUMNS | {"city": ["?", None, "Bern"], "tags": ["x", "x", "x"]}
    for body in (COLUMNS, unseen):
        version.predict_json({"inputs": body})
    assert version.categories.taken() == {"city": (4, 2), "tags": (6, 1)}
    assert version.categories.taken() == {}
    for _ in range(400):
        version.predict_json({"inputs": COLUMNS})
    examined, unknown = version.categories.taken()["city"]
    assert 2 * 98 <= examined < 2 * 200
    assert 2 * unknown == examined


@pytest.fixture
def raw_with_categories(tmp_path):
    return load(with_categories(raw_model(tmp_path), city=["Zürich", "Bern"], tags=["x"]))


def test_the_raw_signature_refuses_features(raw):
    with pytest.raises(InvalidRequest, match="the inputs must be"):
        raw.predict_json({"inputs": {"continuous_ids": []}, "signature_name": "raw"})


def test_values_alone_are_rows_of_the_only_input(tmp_path):
    version = load(EXAMPLES["sparse_linear_float32_binary"].write(tmp_path))
    want = version.scorer.predict({"x_ids": [3, 1, 4], "x_row_splits": [0, 2, 3]})
    got = version.predict_json({"instances": [[3, 1], [4]]}).values
    np.testing.assert_array_equal(got, want)


def test_values_alone_are_the_column_of_the_only_input(tmp_path):
    version = load(EXAMPLES["dense_3_4"].write(tmp_path))
    value = [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]
    want = version.scorer.predict({"x": value})
    for body in ({"inputs": value}, {"instances": value}):
        np.testing.assert_array_equal(version.predict_json(body).values, want)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ([], "either instances or inputs"),
        ({}, "either instances or inputs"),
        ({"instances": [], "inputs": {}}, "either instances or inputs"),
        ({"instances": {}}, "instances must be a list"),
        ({"instances": [], "extra": 1}, "got also"),
        ({"instances": [], "signature_name": 5}, "signature_name"),
        ({"inputs": {}, "signature_name": "other"}, "signature_name must be serving_default"),
        ({"inputs": {"x_ids": [1]}}, "the inputs must be"),
        ({"inputs": [1]}, "an object with the inputs"),
        ({"instances": [1]}, "an object with the inputs"),
        ({"instances": [{"x_ids": [1], "x_values": [1]}, {"x_ids": [1]}]}, r"instances\[1\]"),
        ({"instances": [{"x_ids": [1], "x_values": 1}]}, r"instances\[0\].x_values must be a list"),
        ({"instances": [{"x_ids": [1], "x_values": [1, 2]}]}, "must have the same length"),
        ({"instances": [{"x_ids": [50], "x_values": [1]}]}, "out of range"),
        ({"instances": [{"x_ids": [1.5], "x_values": [1]}]}, "x_ids"),
        ({"instances": [{"x_ids": ["1"], "x_values": [1]}]}, "x_ids.* must hold numbers"),
        ({"instances": [{"x_ids": [1 << 70], "x_values": [1]}]}, "x_ids"),
        ({"instances": [{"x_ids": [[1], [2, 3]], "x_values": [1, 1]}]}, "x_ids"),
        ({"instances": [{"x_ids": [None], "x_values": [1]}]}, "x_ids"),
        ({"inputs": {"x_ids": 1, "x_values": [1], "x_row_splits": [0, 1]}}, "must be a list"),
        ({"inputs": {"x_ids": [1], "x_values": [1], "x_row_splits": []}}, "row_splits"),
        ({"inputs": {"x_ids": [1], "x_values": [1], "x_row_splits": [0, 2]}}, "row_splits"),
    ],
)
def test_a_request_that_does_not_fit_says_what_is_wrong(sparse, body, message):
    with pytest.raises(InvalidRequest, match=message):
        sparse.predict_json(body)


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("city", ["a", "b", 1.5], "must hold texts"),
        ("city", ["a", "b", ["c", "d"]], "must hold texts"),
        ("city", ["a", "b", {"b64": "?"}], "not base64"),
        ("city", ["a", "b", {"b64": 5}], "must hold texts"),
        ("city", ["a", "b", "\ud800"], "Unicode"),
        ("city", ["a", "b"], "same number of rows"),
        ("age", ["12", 1, 2], "must hold numbers"),
        ("age", ["12", None, 2], "must hold numbers"),
        ("tags_row_splits", [0, 2, 1, 3], "row_splits"),
    ],
)
def test_a_column_that_does_not_fit_says_what_is_wrong(raw, column, value, message):
    with pytest.raises(InvalidRequest, match=message):
        raw.predict_json({"inputs": COLUMNS | {column: value}})


def test_too_many_rows_are_refused_in_every_form(sparse):
    splits = np.zeros(102, np.int64)
    arrays = {"x_ids": np.zeros(0, np.int64), "x_values": np.zeros(0), "x_row_splits": splits}
    rows = [{"x_ids": [], "x_values": []}] * 101
    for call in (
        lambda: sparse.predict_json({"instances": rows}),
        lambda: sparse.predict_json({"inputs": as_json(arrays)}),
        lambda: sparse.predict_arrays("", arrays),
    ):
        with pytest.raises(TooLarge, match="101 rows, at most 100"):
            call()
    assert sparse.predict_json({"instances": rows[:100]}).rows == 100


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda x: (
        st.lists(x, max_size=4)
        | st.dictionaries(
            st.sampled_from(
                ["x_ids", "x_values", "x_row_splits", "city", "age", "b64", "tags", ""]
            ),
            x,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@settings(max_examples=400)
@given(
    model=st.sampled_from(["sparse", "raw"]),
    key=st.sampled_from(["instances", "inputs"]),
    value=JSON,
    column=st.sampled_from([*COLUMNS, "x_ids", "x_values", "x_row_splits"]),
)
def test_any_json_value_is_answered_or_refused(model, key, value, column, sparse, raw):
    version = {"sparse": sparse, "raw": raw}[model]
    fitting = (
        {"x_ids": [1], "x_values": [1], "x_row_splits": [0, 1]} if model == "sparse" else COLUMNS
    )
    for body in (value, {key: value}, {"inputs": fitting | {column: value}}):
        with contextlib.suppress(RequestError):
            assert version.predict_json(body).values.dtype == np.float32


@settings(max_examples=300)
@given(data=st.data())
def test_any_damaged_text_is_answered_or_refused(data, sparse):
    text = bytearray(
        json.dumps({"instances": [{"x_ids": [1, 2], "x_values": [1.5, 2]}]}, indent=1).encode()
    )
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(text) - 1))
        text[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=4))
    with contextlib.suppress(RequestError):
        sparse.predict_json(read_json(bytes(text)))


@settings(max_examples=300)
@given(data=st.data())
def test_any_damaged_message_is_answered_or_refused(data, sparse):
    arrays = {"x_ids": np.array([1, 2]), "x_values": np.float32([1, 2])}
    request = predict_request(arrays | {"x_row_splits": np.array([0, 2])})
    message = bytearray(request.SerializeToString())
    for _ in range(data.draw(st.integers(1, 4))):
        message[data.draw(st.integers(0, len(message) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(RequestError, DecodeError):
        parsed = messages.PredictRequest.FromString(bytes(message))
        tensors = {n: array_of(n, t, 1 << 20) for n, t in parsed.inputs.items()}
        sparse.predict_arrays(parsed.model_spec.signature_name, tensors)


def test_a_deeply_nested_text_is_refused():
    with pytest.raises(InvalidRequest, match="must be JSON"):
        read_json(b"[" * 100_000)


def tensor(dtype, shape, **fields):
    made = messages.TensorProto(dtype=dtype, **fields)
    for size in shape:
        made.tensor_shape.dim.add(size=size)
    return made


@pytest.mark.parametrize(
    ("made", "want"),
    [
        (tensor(1, [3], float_val=[1.5]), np.float32([1.5, 1.5, 1.5])),
        (tensor(1, [2]), np.float32([0, 0])),
        (tensor(9, [2, 2], int64_val=[1, 2]), np.array([[1, 2], [2, 2]])),
        (tensor(10, [2], bool_val=[True, False]), np.array([True, False])),
        (tensor(10, [2], tensor_content=b"\x02\0"), np.array([True, False])),
        (tensor(6, [1], int_val=[-5]), np.int8([-5])),
        (tensor(14, [1], half_val=[0x3FC0]), np.float32([1.5])),
        (tensor(19, [1], half_val=[0x3E00]), np.float16([1.5])),
        (tensor(7, [2], string_val=[b"a\0"]), np.array([b"a\0", b"a\0"], object)),
        (tensor(1, [0]), np.zeros(0, np.float32)),
    ],
)
def test_tensors_are_what_tensorflow_makes_of_them(made, want):
    got = array_of("x", made, 1000)
    assert got.dtype == want.dtype
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize(
    ("made", "error", "message"),
    [
        (tensor(1, [-1]), InvalidRequest, "known shape"),
        (tensor(1, [1] * 17), InvalidRequest, "known shape"),
        (tensor(1, [2], float_val=[1, 2, 3]), InvalidRequest, "3 items for a shape of 2"),
        (tensor(1, [2], tensor_content=b"abc"), InvalidRequest, "must have 8 bytes"),
        (tensor(99, [2]), InvalidRequest, "data type 99"),
        (tensor(1, [1 << 40, 1 << 40]), TooLarge, "at most 1000"),
        (tensor(7, [1 << 40], string_val=[b"a"]), TooLarge, "at most 1000"),
    ],
)
def test_tensors_that_are_damaged_or_too_large_are_refused(made, error, message):
    with pytest.raises(error, match=message):
        array_of("x", made, 1000)


def peak_of(call):
    """The most memory that a call has at a time, as Python and NumPy allocate it."""
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("wrong", ["a" * 5000, [1], {"b64": "a" * 5000}, None, {}, []])
@pytest.mark.parametrize("first", [True, False])
def test_a_wrong_kind_among_numbers_costs_no_more_than_the_numbers(sparse, wrong, first):
    many = [1] * 5000
    values = [wrong, *many] if first else [*many, wrong]
    fitting = {"x_ids": many, "x_values": many, "x_row_splits": [0, 5000]}

    def ask(body):
        with pytest.raises(InvalidRequest, match="must"):
            sparse.predict_json(body)

    for name in fitting:
        body = {"inputs": fitting | {name: values}}
        assert peak_of(lambda body=body: ask(body)) < 64 * 5000
    row = {"x_ids": many, "x_values": values}
    assert peak_of(lambda: ask({"instances": [row]})) < 128 * 5000


def test_names_are_checked_before_contents_and_many_are_not_listed(sparse):
    given = {f"x_{i}": ["a"] * 10 for i in range(10_000)}
    for body in ({"inputs": given}, {"instances": [given]}):
        with pytest.raises(InvalidRequest, match=r"the inputs must be .* \(10000 names\)") as error:
            sparse.predict_json(body)
        assert len(str(error.value)) < 2500


def test_too_many_rows_are_refused_before_they_are_read(sparse):
    with pytest.raises(TooLarge, match="101 rows, at most 100"):
        sparse.predict_json({"instances": ["wrong"] * 101})


@settings(max_examples=50)
@given(
    dtype=st.sampled_from([1, 2, 3, 4, 5, 6, 9, 10, 14, 17, 19, 22, 23]),
    shape=st.lists(st.integers(0, 5), max_size=3),
    listed=st.integers(0, 3),
)
def test_a_tensor_has_as_many_bytes_as_it_declares(dtype, shape, listed):
    field = _TYPES[dtype].field
    made = Tensor("x", tensor(dtype, shape, **{field: [1] * min(listed, int(np.prod(shape)))}))
    assert made.size == made.array().size
    assert made.bytes() == made.size * (2 if dtype == 14 else made.array().itemsize)


def test_repeated_items_are_counted_before_they_are_made():
    text = tensor(7, [1000], string_val=[b"a" * 5000])
    assert Tensor("x", text).bytes() == 8 * 1000 + 999 * 5000
    for made in (text, tensor(9, [1 << 40], int64_val=[1]), tensor(4, [1 << 20, 1 << 20])):
        with pytest.raises(TooLarge, match="bytes as arrays, at most 1000000 are allowed"):
            array_of("x", made, 1_000_000)
    whole = tensor(4, [1 << 20], int_val=[7])  # a list would have 8 bytes for each
    assert peak_of(lambda: array_of("x", whole, 1 << 20)) < 3 << 20


def test_a_tensor_of_any_number_of_dimensions_is_refused_before_they_are_read():
    made = tensor(9, [1] * 100_000)
    with pytest.raises(InvalidRequest, match="at most 16 dimensions"):
        Tensor("x", made)
