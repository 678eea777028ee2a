"""A server under load: replacing versions, limits of concurrency, deadlines, and its end."""

import asyncio
import contextlib
import http.client
import json
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

pytest.importorskip("twml_ops.serving", reason="needs the extra `serve`")

import grpc
from grpc_health.v1 import health_pb2

from tests.serving import clients
from tests.serving.clients import constant_model, predict_request, serving
from twml_ops import _child
from twml_ops.serving import Server, ServerOptions, messages
from twml_ops.serving.errors import RequestError

ARRAYS = {"x_ids": np.array([1]), "x_row_splits": np.array([0, 1])}
LONG = 1 << 20  # bytes of a request that runs on a thread


@contextlib.contextmanager
def busy(server):
    """Keeps a thread of a server busy, until the event that it yields is set."""
    service, end, begun = server._service, threading.Event(), threading.Event()

    def work():
        begun.set()
        end.wait()

    running = asyncio.run_coroutine_threadsafe(
        service.run(work, LONG, time.monotonic() + 1000), server._loop
    )
    begun.wait()
    try:
        yield end
    finally:
        end.set()
        running.result()


def in_thread(pool, client, kind):
    if kind == "rest":
        return pool.submit(client.predict, {"instances": [[1]]})
    return pool.submit(
        client.call, clients.PREDICT, predict_request(ARRAYS), messages.PredictResponse
    )


def wait_for_queue(server, size):
    """Waits until requests wait for a slot: a look at each turn of the event loop."""

    async def look():
        while len(server._service._admission._waiting) < size:
            await asyncio.sleep(0)

    asyncio.run_coroutine_threadsafe(look(), server._loop).result(timeout=300)


def test_no_request_fails_or_is_wrong_while_versions_replace_each_other(tmp_path):
    constant_model(1, tmp_path / "1")
    stop = threading.Event()
    with serving(tmp_path, poll=0.01) as (server, client):
        path, seen = "/v1/models/m:predict", set()

        def by_rest():
            connection = http.client.HTTPConnection("127.0.0.1", server.rest_port, timeout=300)
            with contextlib.closing(connection):
                while not stop.is_set():
                    for rows in (1, 5000):  # on the event loop, and on a thread
                        connection.request("POST", path, json.dumps({"instances": [[1]] * rows}))
                        response = connection.getresponse()
                        answer = json.loads(response.read())
                        assert response.status == 200, answer
                        values = np.array(answer["predictions"])
                        assert values.shape == (rows, 3)
                        assert len(set(values.ravel())) == 1
                        seen.add(values[0, 0])

        def by_grpc():
            while not stop.is_set():
                answer = client.call(
                    clients.PREDICT, predict_request(ARRAYS), messages.PredictResponse
                )
                values = list(answer.outputs["output"].float_val)
                assert values == [answer.model_spec.version.value] * 3
                seen.add(values[0])

        with ThreadPoolExecutor(4) as pool:
            running = [pool.submit(f) for f in (by_rest, by_rest, by_grpc)]
            try:
                for number in range(2, 9):
                    constant_model(number, tmp_path / f".{number}")
                    os.replace(tmp_path / f".{number}", tmp_path / str(number))
                    client.post("/v1/models/m:reload", b"")
                    while number not in seen and not any(f.done() for f in running):
                        client.predict({"instances": [[1]]})
            finally:
                stop.set()
            for future in running:
                future.result()
        assert len(seen) > 4
        codes = client.metric('twml_serving_requests_total{api="rest",code="200"}')
        assert codes == client.metric('twml_serving_request_seconds_count{api="rest"}')


def test_a_version_is_found_without_a_request_for_it(tmp_path):
    constant_model(1, tmp_path / "1")
    with serving(tmp_path, poll=0.01) as (server, client):
        constant_model(2, tmp_path / ".2")
        os.replace(tmp_path / ".2", tmp_path / "2")
        while server.model.current.number == 1:
            client.predict({"instances": [[1]]})
        assert client.predict({"instances": [[1]]})[1]["predictions"] == [[2, 2, 2]]


def test_requests_beyond_the_queue_are_refused_and_the_others_answered(tmp_path):
    constant_model(1, tmp_path)
    with serving(tmp_path, threads=1, queue=2) as (server, client), ThreadPoolExecutor(2) as pool:
        with busy(server):
            waiting = [in_thread(pool, client, kind) for kind in ("rest", "grpc")]
            wait_for_queue(server, 2)
            status, answer = client.predict({"instances": [[1]]})
            assert (status, list(answer)) == (503, ["error"])
            assert "2 requests wait already" in answer["error"]
            with pytest.raises(grpc.RpcError) as error:
                client.call(clients.PREDICT, predict_request(ARRAYS), messages.PredictResponse)
            assert error.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
            assert client.raw("GET", "/healthz")[0] == 200  # these are never refused
            assert client.get("/v1/models/m")[0] == 200
        assert waiting[0].result()[0] == 200
        assert list(waiting[1].result().outputs["output"].float_val) == [1, 1, 1]
        for api in ("rest", "grpc"):
            assert client.metric(f'twml_serving_shed_total{{api="{api}"}}') == 1
        name = 'twml_serving_requests_total{api="grpc",code="RESOURCE_EXHAUSTED"}'
        assert client.metric(name) == 1


def test_a_request_that_waits_longer_than_the_timeout_gets_an_error(tmp_path):
    constant_model(1, tmp_path)
    with serving(tmp_path, threads=1, timeout=0.05) as (server, client):
        with busy(server):
            status, answer = client.predict({"instances": [[1]]})
            assert (status, list(answer)) == (504, ["error"])
            with pytest.raises(grpc.RpcError) as error:
                client.call(clients.PREDICT, predict_request(ARRAYS), messages.PredictResponse)
            assert error.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
        while (status := client.predict({"instances": [[1]]})[0]) == 504:  # a busy machine
            pass
        assert status == 200


def test_a_request_that_runs_longer_than_the_timeout_keeps_its_slot(tmp_path):
    constant_model(1, tmp_path)
    with serving(tmp_path, threads=1, queue=0) as (server, client):
        end, soon = threading.Event(), time.monotonic() + 0.05
        with pytest.raises(Exception, match="took too long"):
            asyncio.run_coroutine_threadsafe(
                server._service.run(end.wait, LONG, soon), server._loop
            ).result()
        assert client.predict({"instances": [[1]]})[0] == 503  # the thread is still busy
        end.set()
        while (status := client.predict({"instances": [[1]]})[0]) == 503:
            pass
        assert status == 200


@pytest.mark.parametrize("size", [1, LONG])
def test_an_unexpected_error_is_one_of_the_server_and_frees_the_slot(tmp_path, size, caplog):
    constant_model(1, tmp_path)
    with serving(tmp_path, threads=1, queue=0) as (server, client):
        with pytest.raises(RequestError, match="internal error"):
            asyncio.run_coroutine_threadsafe(
                server._service.run(lambda: 1 / 0, size, time.monotonic() + 1000), server._loop
            ).result()
        while (status := client.predict({"instances": [[1]]})[0]) == 503:
            pass
        assert status == 200
    assert "ZeroDivisionError" in caplog.text


def test_a_body_that_does_not_arrive_gets_an_error(tmp_path):
    constant_model(1, tmp_path)
    with serving(tmp_path, timeout=0.05) as (server, _):
        connection = http.client.HTTPConnection("127.0.0.1", server.rest_port, timeout=300)
        with contextlib.closing(connection):
            connection.putrequest("POST", "/v1/models/m:predict")
            connection.putheader("Content-Length", "100")
            connection.endheaders()
            connection.send(b"{")
            assert connection.getresponse().status == 504


def test_a_server_that_stops_answers_the_requests_that_it_has(tmp_path):
    constant_model(1, tmp_path)
    with contextlib.ExitStack() as stack:
        server, client = stack.enter_context(serving(tmp_path, threads=1))
        watch = client.channel.unary_stream(
            "/grpc.health.v1.Health/Watch",
            response_deserializer=health_pb2.HealthCheckResponse.FromString,
        )(b"")
        assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
        pool = stack.enter_context(ThreadPoolExecutor(3))
        with busy(server):
            waiting = [in_thread(pool, client, kind) for kind in ("rest", "grpc")]
            wait_for_queue(server, 2)
            server._loop.call_soon_threadsafe(server._stop.set)
            assert next(watch).status == health_pb2.HealthCheckResponse.NOT_SERVING
            assert list(watch) == []  # the watcher does not keep the server from stopping
        assert waiting[0].result()[0] == 200
        assert list(waiting[1].result().outputs["output"].float_val) == [1, 1, 1]
        server._thread.join()
        with pytest.raises(OSError, match="refused"):
            client.raw("GET", "/healthz")


def test_a_port_in_use_is_an_error(tmp_path):
    constant_model(1, tmp_path)
    with serving(tmp_path) as (server, _):
        for field in ("rest_port", "grpc_port"):
            ports = {"rest_port": 0, "grpc_port": 0, field: getattr(server, field)}
            with (
                pytest.raises(OSError, match="cannot listen on"),
                Server(tmp_path, ServerOptions(**ports)),
            ):
                pass


WITHOUT_TENSORFLOW = """
import runpy, sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        assert name.partition(".")[0] not in ("tensorflow", "keras", "lightgbm", "pyarrow"), name
sys.meta_path.insert(0, Finder())
sys.path.insert(0, sys.argv.pop(1))
runpy.run_module("twml_ops.cli", run_name="__main__", alter_sys=True)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_command_serves_without_tensorflow_until_a_signal(tmp_path, number):
    constant_model(1, tmp_path / "ranking" / "4")
    root = _child.command("x")[3]
    options = ["--rest-port", "0", "--grpc-port", "0", "--threads", "1", "--poll", "0"]
    command = [sys.executable, "-c", WITHOUT_TENSORFLOW, root, "serve", str(tmp_path / "ranking")]
    with subprocess.Popen([*command, *options], stdout=subprocess.PIPE, text=True) as process:
        line = process.stdout.readline()
        assert line.startswith("serving version 4 of ranking: REST on port "), line
        port = int(line.split("port ")[1].split(",")[0])
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
        with contextlib.closing(connection):
            body = json.dumps({"instances": [[1]]})
            connection.request("POST", "/v1/models/ranking:predict", body)
            assert json.loads(connection.getresponse().read()) == {"predictions": [[1, 1, 1]]}
            process.send_signal(number)
            assert process.stdout.read() == "stopped\n"
        assert process.wait() == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing"], "is no folder"),
        (["."], "has no scorer.json"),
        ([".", "--name", "a/b"], "name must be a text"),
    ],
)
def test_the_command_says_in_one_line_what_is_wrong(arguments, message, tmp_path, capsys):
    from twml_ops.cli import main

    with pytest.raises(SystemExit) as end:
        main(["serve", str(tmp_path / arguments[0]), *arguments[1:]])
    assert end.value.code == 1
    err = capsys.readouterr().err
    assert err.startswith("twml-ops: ")
    assert message in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    "options",
    [
        *({"name": ""}, {"rest_port": -1}, {"grpc_port": 70000}, {"threads": -1}),
        *({"row_threads": 0}, {"queue": -1}, {"max_connections": 0}, {"max_bytes": 0}),
        *({"max_rows": 0}, {"timeout": 0}, {"poll": -1}, {"grace": -1}, {"timeout": np.nan}),
    ],
)
def test_an_option_out_of_its_range_is_an_error(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        ServerOptions(**options)
