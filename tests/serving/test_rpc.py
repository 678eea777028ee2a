"""The gRPC interface of a server, with messages of this package and of TensorFlow."""

import threading

import numpy as np
import pytest

pytest.importorskip("twml_ops.serving", reason="needs the extra `serve`")

import grpc
from grpc_health.v1 import health_pb2

from tests.core import scorer_programs
from tests.serving import clients
from tests.serving.clients import constant_model, predict_request, raw_model, serving, sparse_model
from twml_ops import core
from twml_ops.serving import messages, rpc
from twml_ops.serving.tensors import Tensor

ARRAYS = {
    "x_ids": np.array([1, 2]),
    "x_values": np.float32([0.5, 2]),
    "x_row_splits": np.array([0, 2, 2]),
}


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    folder = sparse_model(tmp_path_factory.mktemp("sparse"))
    with serving(folder, max_bytes=1 << 18, max_rows=50) as (_, client):
        yield folder, client


def predict(client, request, **options):
    return client.call(clients.PREDICT, request, messages.PredictResponse, **options)


def test_answers_are_those_of_the_scorer(served):
    folder, client = served
    want = core.Scorer.load(folder).predict(ARRAYS)
    for version, signature in ((None, ""), (1, "serving_default")):
        answer = predict(client, predict_request(ARRAYS, version=version, signature=signature))
        assert list(answer.outputs) == ["output"]
        output = answer.outputs["output"]
        assert [d.size for d in output.tensor_shape.dim] == [2, 16]
        np.testing.assert_array_equal(np.float32(output.float_val).reshape(2, 16), want)
        assert answer.model_spec.name == "m"
        assert answer.model_spec.version.value == 1
        assert answer.model_spec.signature_name == "serving_default"


def test_raw_columns_are_tensors_of_text(tmp_path):
    columns = {
        "age": np.float32([31.5, np.nan]),
        "height": np.float32([1.7, 1.6]),
        "city": np.array(["Zürich", ""], object),
        "tags": np.array([b"x", b"y"], object),
        "tags_row_splits": np.array([0, 2, 2]),
    }
    folder = raw_model(tmp_path)
    with serving(folder) as (_, client):
        answer = predict(client, predict_request(columns, signature="raw"))
    want = core.Scorer.load(folder).predict(columns)
    got = np.float32(answer.outputs["probability"].float_val).reshape(2, 4)
    np.testing.assert_array_equal(got, want)


def test_tensorflow_reads_and_writes_the_same_bytes(served):
    tf = pytest.importorskip("tensorflow", reason="needs TensorFlow's messages")
    _, client = served
    request = predict_request({})
    for name, array in ARRAYS.items():
        for made in (tf.make_tensor_proto(array), clients.tensor_of(array)):
            theirs = type(tf.make_tensor_proto(0)).FromString(made.SerializeToString())
            np.testing.assert_array_equal(tf.make_ndarray(theirs), array)
            ours = messages.TensorProto.FromString(made.SerializeToString())
            assert ours.SerializeToString(deterministic=True) == theirs.SerializeToString(
                deterministic=True
            )
        request.inputs[name].ParseFromString(tf.make_tensor_proto(array).SerializeToString())
    output = predict(client, request).outputs["output"]
    theirs = type(tf.make_tensor_proto(0)).FromString(output.SerializeToString())
    want = np.float32(output.float_val).reshape(2, 16)
    np.testing.assert_array_equal(tf.make_ndarray(theirs), want)


@pytest.mark.parametrize(
    "dtype",
    [
        *("float32", "float64", "float16", "bfloat16", "bool", "string"),
        *("int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8"),
    ],
)
def test_tensors_of_tensorflow_are_read_as_it_reads_them(dtype):
    tf = pytest.importorskip("tensorflow", reason="needs TensorFlow's messages")
    from twml_ops.serving.tensors import array_of

    values = np.array([[0, 1, 3], [5, 7, 1]])
    array = (
        values.astype(str)
        if dtype == "string"
        else values.astype(tf.as_dtype(dtype).as_numpy_dtype)
    )
    for made in (
        tf.make_tensor_proto(array, dtype),
        tf.make_tensor_proto(array.ravel().tolist(), dtype, shape=[2, 3]),
        tf.make_tensor_proto(array.ravel().tolist()[1], dtype, shape=[2, 3]),
    ):
        got = array_of("x", messages.TensorProto.FromString(made.SerializeToString()), 1000)
        want = tf.make_ndarray(made)
        np.testing.assert_array_equal(got, want.astype(got.dtype))


def test_the_messages_of_metadata_are_those_of_tensorflow(served):
    tf = pytest.importorskip("tensorflow", reason="needs TensorFlow's messages")
    from tensorflow.core.protobuf import meta_graph_pb2

    request = messages.GetModelMetadataRequest(metadata_field=["signature_def"])
    request.model_spec.name = "m"
    answer = served[1].call(clients.METADATA, request, messages.GetModelMetadataResponse)
    packed = answer.metadata["signature_def"]
    assert packed.type_url == "type.googleapis.com/tensorflow.serving.SignatureDefMap"
    made = messages.SignatureDefMap.FromString(packed.value).signature_def["serving_default"]
    theirs = meta_graph_pb2.SignatureDef.FromString(made.SerializeToString())
    assert theirs.method_name == "tensorflow/serving/predict"
    assert {n: tf.as_dtype(i.dtype).name for n, i in theirs.inputs.items()} == {
        "x_ids": "int64",
        "x_values": "float32",
        "x_row_splits": "int64",
    }
    assert [d.size for d in theirs.outputs["output"].tensor_shape.dim] == [-1, 16]


def test_the_status_has_the_served_version(served):
    request = messages.GetModelStatusRequest()
    request.model_spec.name = "m"
    for number in (None, 1):
        if number is not None:
            request.model_spec.version.value = number
        answer = served[1].call(clients.STATUS, request, messages.GetModelStatusResponse)
        (state,) = answer.model_version_status
        assert (state.version, state.state) == (1, type(state).State.Value("AVAILABLE"))


def request_with(change):
    request = predict_request(ARRAYS)
    change(request)
    return request


def many_rows(request):
    request.inputs["x_row_splits"].CopyFrom(clients.tensor_of(np.zeros(52, np.int64)))


@pytest.mark.parametrize(
    ("request_", "code", "message"),
    [
        (b"\xff\xff", "INVALID_ARGUMENT", "no tensorflow.serving.PredictRequest"),
        (b"", "NOT_FOUND", "no model ''"),
        (predict_request(ARRAYS, name="other"), "NOT_FOUND", "no model 'other'"),
        (predict_request(ARRAYS, version=9), "NOT_FOUND", "version 9"),
        (predict_request(ARRAYS, signature="x"), "INVALID_ARGUMENT", "signature_name"),
        (predict_request({}), "INVALID_ARGUMENT", "the inputs must be"),
        (request_with(lambda r: r.output_filter.append("y")), "INVALID_ARGUMENT", "output_filter"),
        (request_with(many_rows), "INVALID_ARGUMENT", "51 rows, at most 50"),
        (
            request_with(lambda r: setattr(r.model_spec, "version_label", "stable")),
            "NOT_FOUND",
            "label 'stable'",
        ),
        (b"\0" * (1 << 19), "RESOURCE_EXHAUSTED", "larger than max"),
    ],
)
def test_errors_have_a_code_and_a_message(served, request_, code, message):
    with pytest.raises(grpc.RpcError) as error:
        predict(served[1], request_)
    assert error.value.code().name == code
    assert message in error.value.details()


def test_unknown_metadata_and_models_are_refused(served):
    request = messages.GetModelMetadataRequest(metadata_field=["other"])
    for fields in (["other"], []):
        request = messages.GetModelMetadataRequest(metadata_field=fields)
        with pytest.raises(grpc.RpcError, match="metadata_field"):
            served[1].call(clients.METADATA, request, messages.GetModelMetadataResponse)
    for method, kind in (
        (clients.METADATA, messages.GetModelMetadataResponse),
        (clients.STATUS, messages.GetModelStatusResponse),
    ):
        data = b"\x12\x0dsignature_def" if method == clients.METADATA else b""
        with pytest.raises(grpc.RpcError, match="no model ''"):
            served[1].call(method, data, kind)


def test_an_output_filter_with_the_output_is_allowed(served):
    request = request_with(lambda r: r.output_filter.append("output"))
    assert list(predict(served[1], request).outputs) == ["output"]


def test_the_health_service_knows_the_services(served):
    for service, status in (
        ("", "SERVING"),
        ("tensorflow.serving.PredictionService", "SERVING"),
        ("tensorflow.serving.ModelService", "SERVING"),
    ):
        request = health_pb2.HealthCheckRequest(service=service)
        answer = served[1].call(
            "/grpc.health.v1.Health/Check", request, health_pb2.HealthCheckResponse
        )
        assert health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status) == status


def test_requests_and_errors_are_counted(tmp_path):
    with serving(constant_model(1, tmp_path)) as (_, client):
        arrays = {"x_ids": np.array([1]), "x_row_splits": np.array([0, 1])}
        predict(client, predict_request(arrays))
        with pytest.raises(grpc.RpcError):
            predict(client, predict_request({}))
        assert client.metric('twml_serving_requests_total{api="grpc",code="OK"}') == 1
        name = 'twml_serving_requests_total{api="grpc",code="INVALID_ARGUMENT"}'
        assert client.metric(name) == 1
        assert client.metric('twml_serving_rows_total{api="grpc"}') == 1


def test_several_outputs_have_names_and_may_be_filtered(tmp_path):
    folder = scorer_programs.examples()["outputs"].write(tmp_path / "m")
    arrays = {"x": np.ones([2, 2, 3], np.float32), "n": np.array([[1, 2], [3, 4]])}
    want = core.Scorer.load(folder).predict(arrays)
    with serving(folder) as (_, client):
        for wanted in ([], ["ids"], ["matrix", "part"]):
            request = predict_request(arrays)
            request.output_filter.extend(wanted)
            answer = predict(client, request)
            assert sorted(answer.outputs) == sorted(wanted or want)
            for name, tensor in answer.outputs.items():
                assert [d.size for d in tensor.tensor_shape.dim] == list(want[name].shape)
                np.testing.assert_array_equal(np.float32(tensor.float_val), want[name].ravel())
        for wanted in (["other"], ["ids", "ids"]):
            request = predict_request(arrays)
            request.output_filter.extend(wanted)
            with pytest.raises(grpc.RpcError, match="output_filter must have names of"):
                predict(client, request)


def gzipped_request():
    return predict_request(ARRAYS | {"x_values": np.zeros(1 << 14, np.float32)})


@pytest.mark.parametrize("algorithm", [grpc.Compression.Gzip, grpc.Compression.Deflate])
def test_compressed_messages_are_refused_before_they_are_decompressed(served, algorithm):
    call = served[1].channel.unary_unary(clients.PREDICT)
    with pytest.raises(grpc.RpcError) as error:
        call(gzipped_request().SerializeToString(), timeout=300, compression=algorithm)
    assert error.value.code() == grpc.StatusCode.UNIMPLEMENTED
    assert "disabled" in error.value.details()


@pytest.mark.parametrize("method", [clients.PREDICT, clients.METADATA, clients.STATUS])
def test_a_message_that_does_not_arrive_ends_its_call(tmp_path, method):
    end = threading.Event()

    def nothing():
        end.wait()
        yield from ()

    with serving(constant_model(1, tmp_path), timeout=0.1) as (_, client):
        call = client.channel.stream_unary(method)
        try:
            with pytest.raises(grpc.RpcError) as error:
                call(nothing(), timeout=300)
            assert error.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
            assert error.value.details() == "the message did not arrive in time"
        finally:
            end.set()


@pytest.mark.parametrize("method", [clients.PREDICT, clients.METADATA, clients.STATUS])
def test_a_call_without_a_message_is_an_error(served, method):
    with pytest.raises(grpc.RpcError, match="the call has no message"):
        served[1].channel.stream_unary(method)(iter(()), timeout=300)


def test_the_watchers_of_the_health_are_bounded(tmp_path):
    with serving(constant_model(1, tmp_path)) as (_, client):
        watch = client.channel.unary_stream("/grpc.health.v1.Health/Watch")
        watchers = [watch(b"") for _ in range(rpc.MAX_WATCHERS)]
        for watcher in watchers:
            next(watcher)
        with pytest.raises(grpc.RpcError, match="clients watch the health already"):
            next(watch(b""))
        watchers[0].cancel()
        while True:
            try:
                next(watch(b""))
                break
            except grpc.RpcError:
                pass


@pytest.mark.parametrize(
    "name", ["a" * 100_000, "\N{PILE OF POO}" * 20_000, "'" * 70_000, "\x01" * 70_000]
)
def test_errors_quote_a_part_of_a_long_name(served, name):
    for request in (predict_request(ARRAYS, name=name), predict_request({name: np.zeros(1)})):
        with pytest.raises(grpc.RpcError) as error:
            predict(served[1], request)
        assert error.value.code().name in ("NOT_FOUND", "INVALID_ARGUMENT")
        assert "characters)" in error.value.details()


def declaring(*sizes, name="x_ids", dtype=9, **items):
    request = predict_request(ARRAYS)
    tensor = messages.TensorProto(dtype=dtype, **items)
    for size in sizes:
        tensor.tensor_shape.dim.add(size=size)
    request.inputs[name].CopyFrom(tensor)
    return request


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (declaring(1 << 40, int64_val=[1]), "8796093022240 bytes as arrays, at most 262144"),
        (declaring(1 << 15, 4, dtype=4, int_val=[1]), "bytes as arrays, at most 262144"),
        (declaring(*[2] * 17, int64_val=[1]), "at most 16 dimensions"),
        (declaring(3, dtype=7, string_val=[b"a"]), "'x_ids' must hold numbers, got texts"),
        (declaring(1 << 40, name="x", int64_val=[1]), "the inputs must be"),
        # The limit is one of all arrays together.
        (declaring(1 << 15, int64_val=[1]), "the request has 2621.. bytes as arrays"),
    ],
)
def test_what_a_message_declares_is_bounded_before_arrays_are_made(served, request_, message):
    assert request_.ByteSize() < 500
    made = Tensor.array

    def fail(tensor):
        raise AssertionError("an array was made")

    Tensor.array = fail
    try:
        with pytest.raises(grpc.RpcError, match=message) as error:
            predict(served[1], request_)
    finally:
        Tensor.array = made
    assert error.value.code() == grpc.StatusCode.INVALID_ARGUMENT


def test_a_short_message_that_declares_much_does_not_run_on_the_event_loop(tmp_path):
    with serving(constant_model(1, tmp_path), max_rows=1 << 20) as (server, client):
        threads = server._service._threads._threads
        arrays = {"x_ids": np.array([1]), "x_row_splits": np.array([0, 1])}
        predict(client, predict_request(arrays))
        assert not threads
        request = predict_request(arrays)
        del request.inputs["x_row_splits"].tensor_shape.dim[:]
        request.inputs["x_row_splits"].tensor_shape.dim.add(size=5000)
        request.inputs["x_row_splits"].tensor_content = b""
        request.inputs["x_row_splits"].int64_val.extend([0, 1])  # and 1 again
        answer = predict(client, request)
        assert [d.size for d in answer.outputs["output"].tensor_shape.dim] == [4999, 3]
        assert threads
