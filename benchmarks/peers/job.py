"""Starts the ranks of a measurement, on this machine or each on a host of a `Network`."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.distributed.network import INTERFACE, Network
from twml_ops.peers.launch import mpirun_command, run_job

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 600.0  # that a job may take
LAUNCHER = "start"  # the host of mpirun
MOUNT = 'hostname "$0"; mount -t tmpfs none /dev/shm; eval "$@"'
IN_HOST = ["unshare", "--uts", "--mount", "sh", "-c", MOUNT]
QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
Setting = dict[str, Any]


class JobError(Exception):
    """A job has failed; the message ends with its output."""


def run(
    part: str, setting: Setting, ranks: int, transport: str = "shared", seconds: float = SECONDS
) -> list[Any]:
    """Runs ranks on this machine.

    Args:
        part: of benchmarks/peers/rank.py.
        setting: the setting of the part.
        ranks: their number.
        transport: see `mpirun_command`.
        seconds: that they may take.

    Returns:
        The result of each rank.

    Raises:
        JobError: they failed.
    """
    lines: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        job = run_job(
            *(_command(part, setting, folder), ranks, 0, transport, {**QUIET, **_path()}),
            show=lines.append,
            timeout=seconds,
        )
        if job.status:
            raise JobError("\n".join(lines))
        return _results(folder, ranks)


def hosts_of(ranks: int) -> list[str]:
    """Names of the hosts of a job: the host of mpirun, and the hosts of the ranks."""
    return [LAUNCHER, *(f"host{i}" for i in range(ranks))]


def run_on_hosts(part: str, setting: Setting, ranks: int, network: Network) -> list[Any]:
    """Runs each rank on a host of its own, which has a host name and a /dev/shm of its own.

    Args:
        part: of benchmarks/peers/rank.py.
        setting: the setting of the part.
        ranks: their number.
        network: the network of `hosts_of`.

    Returns:
        The result of each rank.

    Raises:
        JobError: they failed.
    """
    with tempfile.TemporaryDirectory() as folder:
        agent = Path(folder, "agent")
        # Of each host: its name, and the beginning of a command that runs on it.
        cases = "".join(
            f'{host}) set -- {shlex.join(network.on(host, IN_HOST))} "$@" ;;\n'
            for host in network.hosts
        )
        agent.write_text(
            "#!/bin/sh\n# Instead of ssh: runs a command line on a host.\n"
            f"case $1 in\n{cases}esac\n"
            # From a host, which has a /sys of its own, to the mounts of the machine.
            f'exec nsenter --mount=/proc/{os.getpid()}/ns/mnt "$@"\n'
        )
        agent.chmod(0o755)
        command = _command(part, setting, folder)
        line, more = mpirun_command(command, ranks, "tcp", INTERFACE)
        at = line.index("-n")
        hosts = ",".join(f"{host}:1" for host in hosts_of(ranks)[1:])
        line[at:at] = ["--map-by", "ppr:1:node", "--host", hosts, "--prtemca", "prte_if_include"]
        at = line.index("-n")
        line[at:at] = [INTERFACE, "--mca", "plm_rsh_agent", str(agent)]
        script = f'hostname {LAUNCHER}; exec "$@"'
        process = subprocess.Popen(
            network.on(LAUNCHER, ["unshare", "--uts", "--mount", "sh", "-c", script, "sh", *line]),
            env={**os.environ, **more, **QUIET, **_path()},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        try:
            output, _ = process.communicate(timeout=SECONDS)
        except BaseException:
            process.terminate()  # mpirun ends its ranks
            process.wait()
            raise
        if process.returncode:
            raise JobError(output)
        return _results(folder, ranks)


def _command(part: str, setting: Setting, folder: str) -> list[str]:
    return [sys.executable, "-m", "benchmarks.peers.rank", part, json.dumps(setting), folder]


def _path() -> dict[str, str]:
    known = os.environ.get("PYTHONPATH")
    return {"PYTHONPATH": os.pathsep.join([str(ROOT), *([known] if known else [])])}


def _results(folder: str, ranks: int) -> list[Any]:
    with contextlib.suppress(FileNotFoundError):
        return [json.loads(Path(folder, f"{rank}.json").read_text()) for rank in range(ranks)]
    raise JobError("a rank has written no result")
