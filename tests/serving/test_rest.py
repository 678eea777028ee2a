"""The REST interface of a server, by real connections."""

import contextlib
import http.client
import json
import re
import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

pytest.importorskip("twml_ops.serving", reason="needs the extra `serve`")

from tests.core import scorer_programs
from tests.serving.clients import constant_model, raw_model, serving, sparse_model, with_categories
from tests.serving.test_model import damage
from twml_ops import core
from twml_ops.serving import rest

BODY = {"instances": [{"x_ids": [1, 2], "x_values": [0.5, 2]}, {"x_ids": [], "x_values": []}]}
ARRAYS = {"x_ids": [1, 2], "x_values": [0.5, 2], "x_row_splits": [0, 2, 2]}


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    folder = sparse_model(tmp_path_factory.mktemp("sparse"))
    with serving(folder, max_bytes=4000, max_rows=50) as (server, client):
        yield folder, server, client


def test_answers_are_those_of_the_scorer(served):
    folder, _, client = served
    want = core.Scorer.load(folder).predict(ARRAYS)
    for path in ("/v1/models/m:predict", "/v1/models/m/versions/1:predict"):
        status, answer = client.post(path, BODY)
        assert status == 200
        assert list(answer) == ["predictions"]
        np.testing.assert_array_equal(np.float32(answer["predictions"]), want)
        status, answer = client.post(path, {"inputs": ARRAYS})
        assert list(answer) == ["outputs"]
        np.testing.assert_array_equal(np.float32(answer["outputs"]), want)


def test_long_requests_have_the_same_answers(tmp_path):
    folder = sparse_model(tmp_path)
    row = {"x_ids": [1, 2, 49], "x_values": [0.5, -2, 1e-3]}
    body = {"instances": [row] * 2000}
    assert len(json.dumps(body)) > 1 << 16  # which a thread answers
    with serving(folder) as (_, client):
        status, answer = client.predict(body)
    splits = np.array([0, 3])
    want = core.Scorer.load(folder).predict({**row, "x_row_splits": splits})
    assert status == 200
    np.testing.assert_array_equal(np.float32(answer["predictions"]), np.repeat(want, 2000, 0))


def test_numbers_that_are_not_finite_are_written_as_tensorflow_serving_does(tmp_path):
    with serving(constant_model(np.inf, tmp_path)) as (_, client):
        status, body = client.raw("POST", "/v1/models/m:predict", b'{"instances": [[1]]}')
    assert (status, body) == (200, b'{"predictions":[[Infinity,Infinity,Infinity]]}')


def test_numbers_of_a_request_need_not_be_finite(served):
    body = b'{"inputs": {"x_ids": [1], "x_values": [-Infinity], "x_row_splits": [0, 1]}}'
    status, answer = served[2].post("/v1/models/m:predict", body)
    assert status == 200
    assert np.isinf(answer["outputs"]).all()


def test_many_requests_use_one_connection(served):
    _, server, _ = served
    connection = http.client.HTTPConnection("127.0.0.1", server.rest_port, timeout=300)
    with contextlib.closing(connection):
        for body in (BODY, {"instances": 5}, BODY):
            connection.request("POST", "/v1/models/m:predict", json.dumps(body))
            response = connection.getresponse()
            json.loads(response.read())
            assert response.getheader("connection") != "close"


def test_chunked_bodies_are_read(served):
    _, server, _ = served
    connection = http.client.HTTPConnection("127.0.0.1", server.rest_port, timeout=300)
    text = json.dumps(BODY).encode()
    with contextlib.closing(connection):
        connection.request("POST", "/v1/models/m:predict", iter([text[:9], text[9:]]))
        response = connection.getresponse()
        assert (response.status, len(json.loads(response.read())["predictions"])) == (200, 2)
        connection.request("POST", "/v1/models/m:predict", iter([b" " * 1500] * 3))
        response = connection.getresponse()
        assert (response.status, json.loads(response.read())) == (
            413,
            {"error": "the body has more than 4000 bytes"},
        )


@pytest.mark.parametrize(
    ("method", "path", "body", "headers", "status", "message"),
    [
        ("POST", "/v1/models/m:predict", b"{", {}, 400, "must be JSON"),
        ("POST", "/v1/models/m:predict", b"", {}, 400, "must be JSON"),
        ("POST", "/v1/models/m:predict", b"\xff\xfe", {}, 400, "must be JSON"),
        ("POST", "/v1/models/m:predict", b"[1]", {}, 400, "instances or inputs"),
        ("POST", "/v1/models/m:predict", b" " * 4001, {}, 413, "at most 4000"),
        ("POST", "/v1/models/m:predict", b"x", {"Content-Encoding": "gzip"}, 415, "compressed"),
        ("POST", "/v1/models/other:predict", b"{}", {}, 404, "no model 'other'"),
        ("POST", "/v1/models/m/versions/7:predict", b"{}", {}, 404, "version 7"),
        ("POST", "/v1/models/m/versions/x:predict", b"{}", {}, 404, "must be a number"),
        ("POST", "/v1/models/m:classify", b"{}", {}, 405, "Method Not Allowed"),
        ("GET", "/v1/models/m:predict", None, {}, 404, "no model 'm:predict'"),
        ("GET", "/v1/models/m/versions/7", None, {}, 404, "version 7"),
        ("GET", "/v1/models/other/metadata", None, {}, 404, "no model 'other'"),
        ("GET", "/v1/models/m/versions/7/metadata", None, {}, 404, "version 7"),
        ("POST", "/v1/models/other:reload", b"", {}, 404, "no model 'other'"),
        ("GET", "/nothing", None, {}, 404, "Not Found"),
        ("DELETE", "/v1/models/m", None, {}, 405, "Method Not Allowed"),
    ],
)
def test_errors_have_an_object_and_a_status(served, method, path, body, headers, status, message):
    got, text = served[2].raw(method, path, body, headers)
    assert got == status
    answer = json.loads(text)
    assert list(answer) == ["error"]
    assert message in answer["error"]


def test_too_many_rows_are_413(served):
    status, answer = served[2].predict({"instances": [{"x_ids": [], "x_values": []}] * 51})
    assert (status, answer["error"]) == (413, "the request has 51 rows, at most 50 are allowed")


def test_bytes_that_are_not_http_do_not_stop_the_server(served):
    _, server, client = served
    for data in (
        b"\0" * 100,
        b"POST / HTTP/9.9\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nContent-Length: x",
    ):
        with socket.create_connection(("127.0.0.1", server.rest_port), timeout=300) as connection:
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(4096):
                pass
    assert client.predict(BODY)[0] == 200


def test_a_client_that_leaves_in_the_middle_of_a_body_does_no_harm(served):
    _, server, client = served
    name = 'twml_serving_requests_total{api="rest",code="canceled"}'
    with socket.create_connection(("127.0.0.1", server.rest_port), timeout=300) as connection:
        connection.sendall(b"POST /v1/models/m:predict HTTP/1.1\r\nContent-Length: 99\r\n\r\n{")
        while not client.metric("twml_serving_running"):  # the server has begun to read
            pass
    while not client.metric(name):
        pass
    assert client.predict(BODY)[0] == 200


def test_status_and_metadata_have_the_form_of_tensorflow_serving(tmp_path):
    with serving(raw_model(tmp_path / "7"), name=None) as (_, client):
        state = {
            "version": "1",
            "state": "AVAILABLE",
            "status": {"error_code": "OK", "error_message": ""},
        }
        for path in ("/v1/models/7", "/v1/models/7/versions/1"):
            assert client.get(path) == (200, {"model_version_status": [state]})
        status, metadata = client.get("/v1/models/7/metadata")
    assert status == 200
    assert metadata["model_spec"] == {"name": "7", "signature_name": "", "version": "1"}
    signatures = metadata["metadata"]["signature_def"]["signature_def"]
    assert set(signatures) == {"serving_default", "raw"}
    raw = signatures["raw"]
    assert raw["method_name"] == "tensorflow/serving/predict"
    assert {name: info["dtype"] for name, info in raw["inputs"].items()} == {
        "age": "DT_FLOAT",
        "height": "DT_FLOAT",
        "city": "DT_STRING",
        "tags": "DT_STRING",
        "tags_row_splits": "DT_INT64",
    }
    assert raw["outputs"] == {
        "probability": {
            "dtype": "DT_FLOAT",
            "tensor_shape": {
                "dim": [{"size": "-1", "name": ""}, {"size": "4", "name": ""}],
                "unknown_rank": False,
            },
            "name": "probability:0",
        }
    }


def test_health_and_readiness(served):
    client = served[2]
    assert client.raw("GET", "/healthz") == (200, b"ok\n")
    assert client.raw("GET", "/readyz") == (200, b"ready\n")


def test_a_reload_serves_the_new_version_and_tells_what_is_damaged(tmp_path):
    constant_model(1, tmp_path / "1")
    with serving(tmp_path) as (_, client):
        constant_model(2, tmp_path / "2")
        damage(constant_model(3, tmp_path / "3"))
        assert client.predict({"instances": [[1]]})[1]["predictions"] == [[1, 1, 1]]
        status, answer = client.post("/v1/models/m:reload", b"")
        assert status == 200
        assert [(s["version"], s["state"]) for s in answer["model_version_status"]][:2] == [
            ("3", "END"),
            ("2", "AVAILABLE"),
        ]
        assert client.predict({"instances": [[1]]})[1]["predictions"] == [[2, 2, 2]]
        assert client.metric('twml_serving_loads_total{result="refused"}') == 1
        assert client.metric('twml_serving_loads_total{result="loaded"}') == 2
        assert client.metric('twml_serving_model_version{model="m"}') == 2


def test_metrics_count_requests_rows_and_times(tmp_path):
    with serving(sparse_model(tmp_path)) as (_, client):
        for body in (BODY, BODY, {"instances": 1}):
            client.predict(body)
        client.post("/v1/models/other:predict", {})
        for code, count in (("200", 2), ("400", 1), ("404", 1)):
            name = f'twml_serving_requests_total{{api="rest",code="{code}"}}'
            assert client.metric(name) == count
        assert client.metric('twml_serving_rows_total{api="rest"}') == 4
        assert client.metric('twml_serving_request_seconds_count{api="rest"}') == 4
        assert client.metric('twml_serving_shed_total{api="rest"}') == 0
        assert client.metric("twml_serving_running") == 0


def test_metrics_count_unknown_categories(tmp_path):
    folder = with_categories(raw_model(tmp_path / "m"), city=["a"], tags=["x", "y"])
    columns = {"age": [1, 2], "height": [1, 2], "city": ["a", "b"]}
    columns |= {"tags": ["x", "y", "z"], "tags_row_splits": [0, 1, 3]}
    with serving(folder) as (_, client):
        assert client.predict({"inputs": columns})[0] == 200
        for field, known, unknown in (("city", 1, 1), ("tags", 2, 1)):
            for result, count in (("known", known), ("unknown", unknown)):
                name = (
                    f'twml_serving_categories_total{{field="{field}",model="m",result="{result}"}}'
                )
                assert client.metric(name) == count


def test_times_are_texts_or_integers_of_the_unit_and_their_categories_are_counted(tmp_path):
    folder = raw_model(tmp_path / "m")
    program = json.loads((folder / "scorer.json").read_text())
    time = {"column": "city", "part": "hour", "unit": "seconds"}
    program["raw"]["categories"][0] |= {"name": "city.hour", "time": time}
    (folder / "scorer.json").write_text(json.dumps(program))
    with_categories(folder, **{"city.hour": ["10"], "tags": ["x"]})
    columns = {"age": [1] * 5, "height": [1] * 5, "tags": [], "tags_row_splits": [0] * 6}
    times = ["2024-01-31T10:20Z", 1_706_696_430, "31.1.2024 10:00", None, "2024-01-31 11:00"]
    with serving(folder) as (_, client):
        status, answer = client.predict({"inputs": columns | {"city": times}})
        assert status == 200
        (first, *others), missing, eleven = np.split(np.float32(answer["outputs"]), [3, 4])
        assert all((other == first).all() for other in others)
        assert (missing[0] != first).any()
        assert (eleven[0] != first).any()
        for result, count in (("known", 3), ("unknown", 1)):
            labels = f'field="city.hour",model="m",result="{result}"'
            assert client.metric(f"twml_serving_categories_total{{{labels}}}") == count
        for wrong, message in (("soon", "got 'soon' in row 4"), (1.5, "must hold texts")):
            status, answer = client.predict({"inputs": columns | {"city": [*times[:4], wrong]}})
            assert status == 400
            assert message in answer["error"]


def test_several_outputs_have_names(tmp_path):
    folder = scorer_programs.examples()["outputs"].write(tmp_path / "m")
    x, n = np.arange(12, dtype=np.float32).reshape(2, 2, 3), np.array([[1, 2], [3, 4]])
    want = core.Scorer.load(folder).predict({"x": x, "n": n})
    with serving(folder) as (_, client):
        status, columns = client.predict({"inputs": {"x": x.tolist(), "n": n.tolist()}})
        assert status == 200
        for name, array in want.items():
            np.testing.assert_array_equal(np.float32(columns["outputs"][name]), array)
        body = {"instances": [{"x": x[i].tolist(), "n": n[i].tolist()} for i in range(2)]}
        status, rows = client.predict(body)
        assert [list(row) for row in rows["predictions"]] == [["part", "matrix", "ids"]] * 2
        for name, array in want.items():
            got = np.float32([row[name] for row in rows["predictions"]])
            np.testing.assert_array_equal(got, array)
        body["instances"][0]["x"][0][1] = None
        nan = json.dumps(body).replace("null", "NaN")
        _, text = client.raw("POST", "/v1/models/m:predict", nan)
        assert b'"part":[NaN,2.0]' in text
        _, metadata = client.get("/v1/models/m/metadata")
    outputs = metadata["metadata"]["signature_def"]["signature_def"]["serving_default"]["outputs"]
    sizes = {n: [d["size"] for d in o["tensor_shape"]["dim"]] for n, o in outputs.items()}
    assert sizes == {"part": ["-1", "2"], "matrix": ["-1", "2", "3"], "ids": ["-1", "2"]}


def test_categories_may_be_features(tmp_path):
    folder = scorer_programs.examples()["hash_strings_string"].write(tmp_path / "m")
    texts = [["a", "", "b"], ["c", "d", "Zürich"]]
    want = core.Scorer.load(folder).predict({"x": texts})
    with serving(folder) as (_, client):
        for body in ({"inputs": {"x": texts}}, {"instances": [{"x": t} for t in texts]}):
            _, answer = client.predict(body)
            (values,) = answer.values()
            np.testing.assert_array_equal(np.float32(values), want)
        status, answer = client.predict({"inputs": {"x": ["a", "b"]}})
    assert status == 400
    assert answer["error"] == "input 'x' must have a list of 3 texts for each row"


@pytest.mark.parametrize(
    "text", ["[" + "[]," * 600 + "[]]", "[" + "{}," * 600 + "{}]", "[" + "1," * 600 + "1]"]
)
@pytest.mark.parametrize("key", ["instances", "inputs"])
def test_the_values_of_a_body_are_counted_before_they_are_decoded(served, key, text, monkeypatch):
    body = f'{{"{key}": {text}}}'.encode()
    assert len(body) < 4000
    with monkeypatch.context() as patch:
        patch.setattr(rest, "read_json", lambda _: pytest.fail("a body was decoded"))
        status, answer = served[2].post("/v1/models/m:predict", body)
    assert status == 413
    assert re.fullmatch(
        r"the body has \d+ bytes as arrays, at most 4000 are allowed", answer["error"]
    )


@pytest.mark.parametrize("size", [30_000, 60_000])
def test_errors_quote_a_part_of_what_is_wrong(served, size):
    name = "a" * size
    status, text = served[2].raw("GET", f"/v1/models/{name}")
    assert status == 404
    assert len(text) < 2500
    assert b"characters)" in text
    status, text = served[2].raw("GET", f"/{name}")
    assert (status, len(text) < 2500) == (404, True)


def test_reloads_at_the_same_time_share_a_look_at_the_folder(tmp_path):
    constant_model(1, tmp_path / "1")
    with serving(tmp_path) as (server, client), ThreadPoolExecutor(8) as pool:
        begin, end, looks = threading.Event(), threading.Event(), []
        look = server.model.refresh

        def slow(retry=False):
            looks.append(retry)
            begin.set()
            end.wait()
            return look(retry)

        server.model.refresh = slow
        first = pool.submit(client.post, "/v1/models/m:reload", b"")
        begin.wait()
        constant_model(2, tmp_path / "2")
        later = [pool.submit(client.post, "/v1/models/m:reload", b"") for _ in range(7)]
        while server._service._next_look is None:  # one of them waits for the next look
            pass
        end.set()
        for answer in (first, *later):
            assert answer.result()[0] == 200
        for answer in later:  # a look that began after the request has found the version
            assert answer.result()[1]["model_version_status"][0]["version"] == "2"
        assert len(looks) < 8
