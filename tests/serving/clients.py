"""Clients of a server, and models for it."""

import contextlib
import http.client
import json
from pathlib import Path

import grpc
import numpy as np

from tests.core import scorer_programs
from twml_ops._known_categories import KnownCategories
from twml_ops._raw_columns import strings_of
from twml_ops.core import hash_strings
from twml_ops.serving import Server, ServerOptions, messages
from twml_ops.serving.tensors import tensor_of

PREDICT = "/tensorflow.serving.PredictionService/Predict"
METADATA = "/tensorflow.serving.PredictionService/GetModelMetadata"
STATUS = "/tensorflow.serving.ModelService/GetModelStatus"


@contextlib.contextmanager
def serving(folder, **options):
    """A server on free ports, and a client of it."""
    options = {"rest_port": 0, "grpc_port": 0, "poll": 0, "threads": 2, "name": "m"} | options
    with Server(folder, ServerOptions(**options)) as server, Client(server) as client:
        yield server, client


class Client:
    """Sends requests to a server on this machine."""

    def __init__(self, server):
        self._rest = server.rest_port
        self.channel = grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.channel.close()

    def raw(self, method, path, body=None, headers=None):
        """The status and the body of an answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self._rest, timeout=300)
        with contextlib.closing(connection):
            connection.request(method, path, body, headers or {})
            response = connection.getresponse()
            return response.status, response.read()

    def get(self, path):
        """The status and the JSON value of an answer."""
        status, body = self.raw("GET", path)
        return status, json.loads(body)

    def post(self, path, value, **headers):
        """The same of a POST; a value that is not bytes is sent as JSON."""
        body = value if isinstance(value, bytes) else json.dumps(value).encode()
        status, answer = self.raw("POST", path, body, headers)
        return status, json.loads(answer)

    def predict(self, value):
        return self.post("/v1/models/m:predict", value)

    def call(self, method, request, kind, timeout=300):
        """Calls a method of gRPC."""
        call = self.channel.unary_unary(method, response_deserializer=kind.FromString)
        data = request if isinstance(request, bytes) else request.SerializeToString()
        return call(data, timeout=timeout)

    def metric(self, name):
        """The value of a metric, written as in the text, 0 if it is not there."""
        _, text = self.raw("GET", "/metrics")
        lines = (line.rpartition(" ") for line in text.decode().splitlines())
        return next((float(value) for key, _, value in lines if key == name), 0.0)


def predict_request(arrays, name="m", version=None, signature=""):
    """The message of a request."""
    request = messages.PredictRequest()
    request.model_spec.name = name
    request.model_spec.signature_name = signature
    if version is not None:
        request.model_spec.version.value = version
    for key, array in arrays.items():
        request.inputs[key].CopyFrom(tensor_of(array))
    return request


def constant_model(value, folder):
    """Writes a model that answers a constant to rows of one id: all rows of its table are equal."""
    example = scorer_programs.Example()
    arrays = {"table": np.full((50, 3), value, np.float32)}
    example.step("sparse_linear", example.batch("x", 50, False), ["#0"], arrays)
    return example.write(Path(folder))


def sparse_model(folder):
    """Writes a model with 50 ids, values and row splits, and an output of 16 numbers."""
    return scorer_programs.examples()["sparse_linear_float32_16"].write(Path(folder))


def raw_model(folder):
    """Writes a model that also takes two numbers, a category and a bag as raw columns."""
    example, table = scorer_programs.Example(), scorer_programs.tables(64, 4, "float32")
    numbers = example.batch("continuous", 2)
    ids, _, splits = example.batch("categorical", 1 << 40, values=False)
    example.step("sparse_linear", numbers, ["#n"], table)
    example.step("hash_ids", [ids], ["#i"], bits=6)
    example.step("sparse_linear", ["#i", None, splits], ["#c"], table)
    example.step("add", ["#n", "#c"], ["#0"])
    example.write(Path(folder))
    file = Path(folder) / "scorer.json"
    program = json.loads(file.read_text())
    categories = [
        {"name": name, "key": [i, 7], "bag": i == 1, "weights": None}
        for i, name in enumerate(("city", "tags"))
    ]
    program["raw"] = {
        "layout": "ragged",
        "numbers": ["age", "height"],
        "categories": categories,
        "sparse": False,
    }
    program["output_name"] = "probability"
    file.write_text(json.dumps(program))
    return Path(folder)


def with_categories(folder, **tokens):
    """Adds to a model of raw columns which categories training has seen, by column."""
    program = json.loads((folder / "scorer.json").read_text())
    known = KnownCategories([*tokens])
    for column in program["raw"]["categories"]:
        data, offsets = strings_of("", np.array(tokens[column["name"]], object))
        known.add(column["name"], hash_strings(data, offsets, tuple(column["key"])))
    known.save(folder)
    return folder
