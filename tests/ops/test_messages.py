"""Ops that send messages: from one device of a process to another, and what strangers may send."""

import contextlib
import os
import socket
import struct
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from tests import forked
from twml_ops.ops import _library
from twml_ops.ops._library import library

pytestmark = pytest.mark.skipif(not _library.is_native(), reason="the op library sends messages")
MAGIC = 0x31676D6C6D7774
SESSION = 17


@pytest.fixture(scope="module")
def port():
    """The port and the secret of this process, and an open session with itself."""
    found = library.twml_message_port()
    library.twml_connect_messages(found, host="localhost", session=SESSION, seconds=5.0)
    return [int(x) for x in found.numpy()]


@pytest.fixture(scope="module")
def order():
    return tf.Variable(0.0)


@pytest.mark.parametrize("dtype", [tf.uint8, tf.float32, tf.bfloat16, tf.float16, tf.int64])
@pytest.mark.parametrize("size", [0, 1, 5])
@pytest.mark.usefixtures("port")
def test_a_message_arrives_as_it_was_sent(order, dtype, size):
    @tf.function(autograph=False)
    def exchange(*tensors):
        attributes = {"session": SESSION, "number": 3}
        library.twml_send_message(order.handle, tensors, **attributes)
        types = [t.dtype for t in tensors]
        return library.twml_receive_message(order.handle, T=types, **attributes)

    tensor = tf.cast(tf.range(size) + 7, dtype)
    for tensors in ([tensor], [tensor, tf.constant([[1.5, 2.5]]), tensor]):
        for sent, received in zip(tensors, exchange(*tensors), strict=True):
            assert received.dtype == sent.dtype
            flat = tf.reshape(tf.cast(sent, tf.float64), [-1])
            np.testing.assert_array_equal(tf.cast(received, tf.float64), flat)


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf"), 1e30])
def test_a_wait_without_an_end_is_refused(port, seconds):
    with pytest.raises(tf.errors.InvalidArgumentError, match="seconds must be more than 0"):
        library.twml_connect_messages(port, host="localhost", session=9, seconds=seconds)


@pytest.mark.usefixtures("port")
@pytest.mark.parametrize(
    ("types", "reason"),
    [([tf.float32], "2 tensors, expected 1"), ([tf.int64, tf.uint8], "no whole elements")],
)
def test_a_message_with_other_tensors_than_expected_is_an_error(order, types, reason):
    @tf.function(autograph=False)
    def exchange():
        attributes = {"session": SESSION, "number": 4}
        library.twml_send_message(order.handle, [tf.zeros([3]), tf.zeros([1])], **attributes)
        return library.twml_receive_message(order.handle, T=types, **attributes)

    with pytest.raises(tf.errors.InternalError, match=reason):
        exchange()


def test_a_peer_s_message_of_many_parts_is_read(port):
    number, secret = port
    with socket.create_connection(("127.0.0.1", number), timeout=60) as peer:
        peer.sendall(struct.pack("<qqq", MAGIC, secret, 8))
        assert peer.recv(8, socket.MSG_WAITALL) == struct.pack("<q", 8)
        sizes = [i % 3 for i in range(2000)]
        peer.sendall(struct.pack("<qqq", 1, 2, len(sizes)) + struct.pack("<2000q", *sizes))
        peer.sendall(b"x" * sum(sizes))
        peer.sendall(struct.pack("<qqq", 1, 2, -1))  # ends the connection if the rest was read
        assert closed(peer)


@pytest.mark.usefixtures("port")
def test_a_message_of_a_session_that_is_not_open_is_an_error(order):
    attributes = {"session": SESSION + 1, "number": 0}
    with pytest.raises(tf.errors.UnavailableError, match="has ended"):
        library.twml_receive_message(order.handle, T=[tf.float32], **attributes)
    with pytest.raises(tf.errors.UnavailableError, match="has ended"):
        library.twml_send_message(order.handle, [tf.zeros([1])], **attributes)


def test_a_peer_without_the_secret_is_refused(port):
    number, secret = port
    for greeting in (
        struct.pack("<qqq", MAGIC, secret ^ 1, 5),
        struct.pack("<qqq", MAGIC ^ 1, secret, 5),
        b"GET / HTTP/1.1\r\nHost: server\r\n",
    ):
        with socket.create_connection(("127.0.0.1", number), timeout=60) as peer:
            peer.sendall(greeting)
            assert closed(peer)


@pytest.mark.parametrize("announced", [(-1,), (1 << 62,), (1, -1), (2, 3, 1 << 62)])
def test_a_peer_that_announces_an_impossible_size_is_disconnected(port, announced):
    number, secret = port
    with socket.create_connection(("127.0.0.1", number), timeout=60) as peer:
        peer.sendall(struct.pack("<qqq", MAGIC, secret, 6))
        assert peer.recv(8, socket.MSG_WAITALL) == struct.pack("<q", 6)
        peer.sendall(struct.pack("<qqqq", 1, 2, 1, 3) + b"abc")
        peer.sendall(struct.pack("<qq", 1, 2) + struct.pack(f"<{len(announced)}q", *announced))
        assert closed(peer)


def closed(peer):
    """Whether the other end has closed a connection, in order or because data were not read."""
    try:
        return peer.recv(1) == b""
    except ConnectionResetError:
        return True


def test_a_server_that_does_not_listen_is_an_error(port):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        address = tf.constant([other.getsockname()[1], port[1]], tf.int64)
        with pytest.raises(tf.errors.UnavailableError, match="no connection for messages to"):
            library.twml_connect_messages(address, host="localhost", session=9, seconds=5.0)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"shape \[2\]"):
        library.twml_connect_messages(address[:1], host="localhost", session=9, seconds=5.0)


def greeted(port, session):
    """A connection to the port of this process that has shown the secret."""
    number, secret = port
    peer = socket.create_connection(("127.0.0.1", number), timeout=60)
    peer.sendall(struct.pack("<qqq", MAGIC, secret, session))
    assert peer.recv(8, socket.MSG_WAITALL) == struct.pack("<q", session)
    return peer


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="counts threads in /proc")
def test_peers_that_say_nothing_have_no_thread_and_keep_nobody_out(port):
    """They are 200, each with a part of a greeting; the oldest are disconnected."""
    threads = len(os.listdir("/proc/self/task"))
    with contextlib.ExitStack() as stack:
        silent = []
        for _ in range(200):
            peer = socket.create_connection(("127.0.0.1", port[0]), timeout=60)
            silent.append(stack.enter_context(peer))
            peer.sendall(b"x")
        stack.enter_context(greeted(port, 21))
        assert len(os.listdir("/proc/self/task")) <= threads + 1
        assert all(closed(peer) for peer in silent[:100])


def test_a_greeting_may_come_in_parts(port):
    number, secret = port
    with socket.create_connection(("127.0.0.1", number), timeout=60) as peer:
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in struct.pack("<qqq", MAGIC, secret, 22):
            peer.sendall(bytes([byte]))
        assert peer.recv(8, socket.MSG_WAITALL) == struct.pack("<q", 22)


def test_the_port_is_one_of_its_host_only(port):
    """This process listens on localhost, so no other address of the machine leads there."""
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", port[0]), timeout=60)


NO_THREADS = """
import resource, socket, struct, sys
from twml_ops.ops._library import library
port, secret = map(int, library.twml_message_port().numpy())
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
before = resource.getrlimit(resource.RLIMIT_AS)

def greet(session):
    with socket.create_connection(("127.0.0.1", port), timeout=60) as peer:
        peer.sendall(struct.pack("<qqq", MAGIC, secret, session))
        return peer.recv(8, socket.MSG_WAITALL)

resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 20), before[1]))
refused = [greet(i) for i in range(3)]
resource.setrlimit(resource.RLIMIT_AS, before)
print("refused", refused.count(b""), "accepted", greet(7) == struct.pack("<q", 7))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="limits the memory for stacks")
@pytest.mark.skipif(
    "asan" in os.environ.get("LD_PRELOAD", ""), reason="a sanitizer needs memory for each thread"
)
def test_a_peer_for_whom_there_is_no_thread_is_disconnected_and_the_process_goes_on():
    code = NO_THREADS.replace("MAGIC", str(MAGIC))
    done = forked.run(["-c", code], capture_output=True, text=True, timeout=600)
    assert done.stdout.split() == ["refused", "3", "accepted", "True"], done.stderr[-500:]
