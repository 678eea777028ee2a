"""What silent, slow and greedy clients may cost: connections, headers, bodies and time."""

import asyncio
import contextlib
import http.client
import json
import re
import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

pytest.importorskip("twml_ops.serving", reason="needs the extra `serve`")

from tests.serving.clients import constant_model, serving
from tests.serving.test_load import busy, in_thread, wait_for_queue
from twml_ops.serving.connections import MAX_HEADER_BYTES, MAX_PIPELINED

PREDICT = b"POST /v1/models/m:predict HTTP/1.1\r\nHost: m\r\n"
BODY = b'{"instances": [[1]]}'
WHOLE = PREDICT + b"Content-Length: %d\r\n\r\n%s" % (len(BODY), BODY)
LONG = 1000.0  # seconds that no test takes


@contextlib.contextmanager
def connected(server, data=b"", port=None):
    """A connection to a server that has sent some bytes."""
    with socket.create_connection(("127.0.0.1", port or server.rest_port), timeout=300) as made:
        made.sendall(data)
        yield made


def read_all(connection):
    """What a server sends until it closes the connection."""
    parts = []
    with contextlib.suppress(ConnectionResetError):
        while part := connection.recv(1 << 16):
            parts.append(part)
    return b"".join(parts)


def status_of(answer):
    return int(re.match(rb"HTTP/1\.1 (\d+) ", answer)[1])


def next_status(connection):
    """The status of the next answer, which is read."""
    with http.client.HTTPResponse(connection) as answer:
        answer.begin()
        answer.read()
        return answer.status


def ended(client, reason):
    return client.metric(f'twml_serving_connections_ended_total{{reason="{reason}"}}')


@pytest.fixture(scope="module")
def impatient(tmp_path_factory):
    """A server with short deadlines."""
    folder = constant_model(1, tmp_path_factory.mktemp("m"))
    with serving(folder, timeout=0.3, keep_alive=0.1) as (server, client):
        yield server, client


@pytest.fixture(scope="module")
def patient(tmp_path_factory):
    """A server whose deadlines nobody reaches."""
    folder = constant_model(1, tmp_path_factory.mktemp("m"))
    with serving(folder, timeout=LONG, keep_alive=LONG) as (server, client):
        yield server, client


@pytest.mark.parametrize("sent", [b"", b"\r\n\r\n"])
def test_a_silent_connection_is_closed(impatient, sent):
    with connected(impatient[0], sent) as connection:
        assert read_all(connection) == b""


@pytest.mark.parametrize("sent", [b"P", b"GET /healthz", PREDICT, PREDICT + b"X: 1"])
def test_headers_that_do_not_arrive_in_time_are_an_error(impatient, sent):
    with connected(impatient[0], sent) as connection:
        answer = read_all(connection)
    assert status_of(answer) == 408
    assert b"the headers did not arrive within 0.3 s" in answer


def test_a_connection_may_be_idle_between_requests_for_a_while(impatient):
    with connected(impatient[0], WHOLE) as connection:
        assert read_all(connection).endswith(b'{"predictions":[[1.0,1.0,1.0]]}')


@pytest.mark.parametrize(
    "sent",
    [
        b"GET /healthz HTTP/1.1\r\nContent-Length: 99\r\n\r\n{",  # nobody waits for this body
        WHOLE + b"G",
        WHOLE * 2 + PREDICT,
    ],
)
def test_the_rest_of_a_request_has_a_deadline_after_an_answer_too(impatient, sent):
    with connected(impatient[0], sent) as connection:
        assert status_of(read_all(connection)) == 200


def test_a_client_that_does_not_read_is_disconnected(tmp_path):
    folder = constant_model(1, tmp_path)
    options = {"timeout": LONG, "keep_alive": LONG, "max_rows": 1 << 20, "max_bytes": 1 << 26}
    body = json.dumps({"instances": [[1]] * 300_000}).encode()  # an answer of 4 MB
    request = PREDICT + b"Content-Length: %d\r\n\r\n%s" % (len(body), body)
    with serving(folder, **options) as (server, client), socket.socket() as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.connect(("127.0.0.1", server.rest_port))
        there = server._rest.server_state.connections
        while not there:
            pass
        (connection,) = list(there)
        buffers = connection.transport.get_extra_info("socket")
        buffers.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        slow.sendall(request)
        while not connection.transport.get_write_buffer_size():
            pass

        async def wait():  # until LONG is over, without having read since
            while connection in there:
                connection._wait_for_client(0.0)
                await asyncio.sleep(0)

        asyncio.run_coroutine_threadsafe(wait(), server._loop).result()
        assert ended(client, "deadline") == 1


@pytest.mark.parametrize(
    "line",
    [
        b"X: " + b"a" * MAX_HEADER_BYTES + b"\r\n",
        b"X: 1\r\n" * (MAX_HEADER_BYTES // 6),
        b"X: " + b"a" * (4 * MAX_HEADER_BYTES),  # without an end
    ],
)
@pytest.mark.parametrize("parts", [1, 50])
def test_headers_beyond_their_bound_are_refused(patient, line, parts):
    server, client = patient
    before, data = ended(client, "headers"), PREDICT + line
    with connected(server) as connection:
        step = len(data) // parts
        with contextlib.suppress(ConnectionResetError, BrokenPipeError):
            for begin in range(0, len(data), step):
                connection.sendall(data[begin : begin + step])
            connection.sendall(b"\r\n")
        connection.shutdown(socket.SHUT_WR)
        answer = read_all(connection)
    assert status_of(answer) == 431
    error = json.loads(answer.partition(b"\r\n\r\n")[2])["error"]
    assert f"at most {MAX_HEADER_BYTES} are allowed" in error
    assert ended(client, "headers") == before + 1


@pytest.mark.parametrize(
    "part",
    [
        b"0\r\n" + b"X: 1\r\n" * 100_000,
        b"0\r\nX: " + b"a" * 1_000_000,
        b"1;" + b"a" * 1_000_000,
        b"1\r\n \r\n" * 100_000,
    ],
)
def test_chunks_and_trailers_beyond_a_multiple_of_a_body_end_the_connection(tmp_path, part):
    options = {"max_bytes": 2000, "timeout": LONG, "keep_alive": LONG}
    with serving(constant_model(1, tmp_path), **options) as (server, client):
        with connected(server, PREDICT + b"Transfer-Encoding: chunked\r\n\r\n") as connection:
            with contextlib.suppress(ConnectionResetError, BrokenPipeError):
                for begin in range(0, len(part), 1 << 14):
                    connection.sendall(part[begin : begin + (1 << 14)])
            read_all(connection)
        assert ended(client, "body") == 1
        trailer = b"0\r\nX: 1\r\n\r\n"
        chunk = b"%x\r\n%s\r\n" % (len(BODY), BODY)
        with connected(server, PREDICT + b"Transfer-Encoding: chunked\r\n\r\n") as connection:
            connection.sendall(chunk + trailer)
            assert next_status(connection) == 200


def test_long_urls_are_headers_too(patient):
    with connected(patient[0], b"GET /" + b"a" * MAX_HEADER_BYTES + b" HTTP/1.1\r\n\r\n") as made:
        assert status_of(read_all(made)) == 431


def test_headers_up_to_their_bound_are_taken(patient):
    with connected(patient[0], b"GET /healthz HTTP/1.1\r\nX: " + b"a" * 60_000) as connection:
        connection.sendall(b"\r\nConnection: close\r\n\r\n")
        assert status_of(read_all(connection)) == 200


def test_a_client_cannot_send_any_number_of_requests_ahead(patient):
    server, client = patient
    before = ended(client, "pipelined")
    with connected(server, b"GET /healthz HTTP/1.1\r\n\r\n" * (MAX_PIPELINED + 2)) as connection:
        read_all(connection)
    assert ended(client, "pipelined") == before + 1
    last = b"GET /healthz HTTP/1.1\r\nConnection: close\r\n\r\n"
    ahead = b"GET /healthz HTTP/1.1\r\n\r\n" * (MAX_PIPELINED - 1) + last
    with connected(server, ahead) as connection:
        assert read_all(connection).count(b"HTTP/1.1 200 OK") == MAX_PIPELINED


@pytest.mark.parametrize(
    "headers",
    [
        b"Content-Length: 20\r\nTransfer-Encoding: chunked\r\n",
        b"Transfer-Encoding: chunked\r\nContent-Length: 20\r\n",
        b"Content-Length: 20\r\nContent-Length: 21\r\n",
        b"Transfer-Encoding: chunked, identity\r\n",
        b"Content-Length: -1\r\n",
        b"Content-Length: +20\r\n",
        b"Content-Length : 20\r\n",
        b"X: 1\r\n Content-Length: 20\r\n",
        b"X: a\0b\r\n",
    ],
)
def test_a_request_whose_end_is_ambiguous_is_refused(patient, headers):
    with connected(patient[0], PREDICT + headers + b"\r\n" + BODY + WHOLE) as connection:
        answer = read_all(connection)
    assert status_of(answer) == 400
    assert answer.count(b"HTTP/1.1") == 1


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"HEAD /healthz HTTP/1.1\r\n\r\n", 200),
        (b"HEAD /v1/models/m HTTP/1.1\r\n\r\n", 200),
        (b"OPTIONS /v1/models/m:predict HTTP/1.1\r\n\r\n", 405),
        (b"GET /nothing HTTP/1.1\r\nHost: [\r\n\r\n", 404),
        (b"GET /healthz/ HTTP/1.1\r\nHost: evil\r\n\r\n", 404),
        (b"GET //evil/ HTTP/1.1\r\nHost: evil\r\n\r\n", 404),
        (b"GET /v1/models/%2e%2e%2f%2e%2e HTTP/1.1\r\n\r\n", 404),
        (b"GET /v1/models/../../etc HTTP/1.1\r\n\r\n", 404),
        (b"GET /v1/models/%00%0d%0aX:%201 HTTP/1.1\r\n\r\n", 404),
        (b"GET /v1/models/%ff%fe HTTP/1.1\r\n\r\n", 404),
        (b"GET /v1/models/\xff HTTP/1.1\r\n\r\n", 400),
        (b"GET http://[/ HTTP/1.1\r\n\r\n", 400),
    ],
)
def test_odd_requests_get_an_answer_of_the_server(patient, request_, status):
    closing = request_.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
    with connected(patient[0], closing) as connection:
        answer = read_all(connection)
    assert status_of(answer) == status
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"evil" not in head
    if request_.startswith(b"HEAD"):
        assert body == b""


def test_silent_connections_give_way_the_oldest_first(tmp_path):
    options = {"max_connections": 4, "timeout": LONG, "keep_alive": LONG}
    with contextlib.ExitStack() as stack:
        server, client = stack.enter_context(serving(constant_model(1, tmp_path), **options))
        silent = [stack.enter_context(connected(server)) for _ in range(4)]
        kept = stack.enter_context(connected(server, WHOLE))  # in place of the first one
        assert next_status(kept) == 200
        assert read_all(silent[0]) == b""
        assert client.predict({"instances": [[1]]})[0] == 200
        assert read_all(silent[1]) == b""
        kept.sendall(WHOLE)
        assert next_status(kept) == 200
        assert ended(client, "evicted") >= 2


def test_a_connection_whose_request_is_computed_stays_and_another_one_is_refused(tmp_path):
    options = {"max_connections": 1, "threads": 1, "timeout": LONG}
    folder = constant_model(1, tmp_path)
    with serving(folder, **options) as (server, client), ThreadPoolExecutor(1) as pool:
        with busy(server):
            waiting = in_thread(pool, client, "rest")
            wait_for_queue(server, 1)
            assert client.raw("GET", "/healthz")[0] == 503
        assert waiting.result()[0] == 200
        while client.raw("GET", "/healthz")[0] == 503:
            pass


def test_health_and_metrics_answer_while_the_thread_of_requests_is_blocked(tmp_path):
    with serving(constant_model(1, tmp_path)) as (server, client):
        blocked, end = threading.Event(), threading.Event()
        server._loop.call_soon_threadsafe(lambda: (blocked.set(), end.wait()))
        blocked.wait()
        try:
            for path, text in (("/healthz", b"ok"), ("/readyz", b"ready"), ("/metrics", b"# HELP")):
                connection = http.client.HTTPConnection(
                    "127.0.0.1", server.health_port, timeout=300
                )
                with contextlib.closing(connection):
                    connection.request("GET", path)
                    answer = connection.getresponse()
                    assert answer.status == 200
                    assert answer.read().startswith(text)
                    connection.request("POST", "/v1/models/m:predict", BODY)
                    assert connection.getresponse().status == 404
        finally:
            end.set()
        assert client.predict({"instances": [[1]]})[0] == 200


def test_the_health_port_tells_that_the_server_stops_until_it_has_stopped(tmp_path):
    with serving(constant_model(1, tmp_path), threads=1) as (server, _):
        with busy(server):
            server._loop.call_soon_threadsafe(server._stop.set)
            status = 200
            while status == 200:
                with connected(server, b"GET /readyz HTTP/1.0\r\n\r\n", server.health_port) as made:
                    status = status_of(read_all(made))
            assert status == 503
        server._thread.join()
        with pytest.raises(OSError, match="refused"), connected(server, port=server.health_port):
            pass


def test_requests_of_all_clients_together_have_a_bound_of_memory(tmp_path):
    options = {"max_bytes": 100_000, "timeout": LONG}
    large = PREDICT + b"Content-Length: 100000\r\n\r\n" + b" " * 99_000
    with serving(constant_model(1, tmp_path), **options) as (server, client):
        with contextlib.ExitStack() as stack:
            held = []
            while not held or server._service._held < 32 * 99_000:
                held.append(stack.enter_context(connected(server, large)))
                while server._service._held < 99_000 * len(held):
                    pass
            with connected(server, large + b" " * 1000) as one_more:
                assert next_status(one_more) == 503
            assert client.predict({"instances": [[1]]})[0] == 200  # a short one
        while server._service._held:
            pass
        with connected(server, large + b" " * 1000) as one_more:
            assert next_status(one_more) == 400  # spaces are no JSON
