"""The ports on which TensorFlow listens: on all interfaces, whatever the address of a task is."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
import sys
import warnings
from collections.abc import Iterator

_LOOPBACK_DEVICE = b"lo\0"


def restrict(address: str) -> None:
    """Lets only processes of this machine connect to a port of this process.

    TensorFlow cannot be told on which interface to listen. Linux can bind a socket that listens
    already to the loopback device. If that is not possible, or the address is one that other
    machines use, a warning says who can connect.

    Args:
        address: "host:port" of this task.
    """
    host, _, port = address.rpartition(":")
    if not _is_loopback(host):
        why = f"its address is {host}"
    elif not sys.platform.startswith("linux"):
        why = "this system cannot bind it to the loopback device"
    else:
        found = list(_listeners(int(port)))
        try:
            for each in found:
                each.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, _LOOPBACK_DEVICE)
            if found:
                return
            why = "its socket was not found"
        except OSError as e:
            why = f"it cannot be bound to the loopback device: {e.strerror}"
        finally:
            for each in found:
                each.close()
    warnings.warn(
        f"port {port} of TensorFlow listens on all interfaces, without authentication ({why}): it "
        "must be reachable from a private network only",
        RuntimeWarning,
        stacklevel=3,
    )


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _listeners(port: int) -> Iterator[socket.socket]:
    """Copies of the sockets of this process that listen on a port."""
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                continue
            copy = socket.socket(fileno=os.dup(int(name)))
            is_ip = copy.family in (socket.AF_INET, socket.AF_INET6)
            if (
                is_ip
                and copy.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
                and copy.getsockname()[1] == port
            ):
                yield copy
            else:
                copy.close()
