"""Processes on hosts that are copies of this one, so that each need not import TensorFlow.

TensorFlow must have been imported, but not used: its threads would not be in the copies.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import traceback
from collections.abc import Callable, Collection
from typing import IO

from benchmarks.distributed.network import Network
from benchmarks.distributed.process import HostProcess, set_expendable


class Fork:
    """A copy of this process that runs a function.

    Args:
        run: what the copy does with its standard input and output, which are pipes.
        log: its standard error.
    """

    def __init__(self, run: Callable[[], None], log: IO[str]) -> None:
        requests, to_copy = os.pipe()
        from_copy, answers = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        gc.freeze()  # a collection would copy the pages that are shared
        self.pid = os.fork()
        os.setpgid(self.pid, self.pid)  # in both processes: this process handles Ctrl-C
        if not self.pid:
            _become(run, requests, answers, log.fileno())
        gc.unfreeze()
        os.close(requests)
        os.close(answers)
        self.stdin: IO[bytes] | None = os.fdopen(to_copy, "wb")
        self.stdout: IO[bytes] | None = os.fdopen(from_copy, "rb", buffering=0)
        self._status: int | None = None

    def wait(self) -> int:
        """Waits for its end; returns its exit status, or minus the number of a signal."""
        if self._status is None:
            self._status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self._status


def fork_on(
    network: Network, host: str, run: Callable[[], None], cores: Collection[int]
) -> HostProcess:
    """Starts a copy of this process on a host.

    Args:
        network: the network of the host.
        host: name of the host.
        run: what the copy does.
        cores: numbers of the cores on which it starts.
    """

    def on_host() -> None:
        network.enter(host)
        os.sched_setaffinity(0, cores)
        run()

    return HostProcess(host, lambda log: Fork(on_host, log))


def _become(run: Callable[[], None], requests: int, answers: int, log: int) -> None:
    status = 1
    try:
        set_expendable()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        for i, descriptor in enumerate((requests, answers, log)):
            os.dup2(descriptor, i)
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))
        # The parent's streams may be objects of a test runner, whose descriptors are closed now.
        sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w")  # noqa: SIM115
        run()
        status = 0
    except BaseException:
        os.write(2, traceback.format_exc().encode())
    finally:
        os._exit(status)
