"""Control groups (cgroup v1) that limit the CPU time of hosts and count it. Needs root.

`network.Network(hosts, cpu=True)` creates them.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path

FOLDER = Path("/sys/fs/cgroup")
CONTROLLERS = ("cpu", "cpuacct")
QUOTA, PERIOD, USAGE, MEMBERS, SHARES = (
    "cpu.cfs_quota_us",
    "cpu.cfs_period_us",
    "cpuacct.usage",
    "cgroup.procs",
    "cpu.shares",
)
# A host with a limit gets it whatever else runs: a process outside of the groups has 1024 of these.
FEW_SHARES, MANY_SHARES = 1024, 65536
MIN_QUOTA_US = 1000  # of the kernel
MIN_PERIOD_US = 10_000
MAX_PERIOD_US = 1_000_000  # of the kernel
REMOVE_SECONDS = 10.0  # for killed processes to end
NEEDED = f"a limit of CPU time needs cgroup v1 with the controllers {' and '.join(CONTROLLERS)}"
_ENTER = 'for group in {}; do echo $$ > "$group" || exit 1; done; exec "$@"'


class CpuGroupError(Exception):
    """Groups cannot be created or used here; the message is one line."""


def quota(share: float, quota_us: int = MIN_QUOTA_US) -> tuple[int, int]:
    """The quota and the period, in microseconds, of a share of one core.

    The period is short by default, because a host that has used up its quota answers no message
    until the next period. The shorter it is, the more often hosts that share a core take turns, and
    fill its caches anew.

    Args:
        share: the share of one core; 2 for two cores.
        quota_us: the quota, unless the period would be shorter than `MIN_PERIOD_US`.

    Raises:
        ValueError: the kernel has no such quota.
    """
    least = MIN_QUOTA_US / MAX_PERIOD_US
    if not share >= least:
        raise ValueError(f"share must be at least {least}, got {share}")
    period = max(MIN_PERIOD_US, min(MAX_PERIOD_US, round(quota_us / share)))
    return max(MIN_QUOTA_US, round(share * period)), period


class CpuGroups:
    """One group for each host, and for each controller that is mounted by itself.

    Args:
        run: prefix of the names of the groups.
        hosts: names of the hosts.
    """

    def __init__(self, run: str, hosts: Sequence[str]) -> None:
        self._run, self._hosts = run, tuple(hosts)

    def create(self) -> None:
        """Creates the groups, without a limit.

        Raises:
            CpuGroupError: cgroup v1 is not there, or not writable.
        """
        try:
            for host in self._hosts:
                for controller in CONTROLLERS:
                    self._group(controller, host).mkdir(exist_ok=True)
                for controller, file in zip(CONTROLLERS, (QUOTA, USAGE), strict=True):
                    (self._group(controller, host) / file).read_text()
        except OSError as e:
            raise CpuGroupError(f"{NEEDED} in {FOLDER}: {e.strerror}: {e.filename}") from e

    def enter(self, host: str) -> list[str]:
        """The beginning of a command whose rest then runs in the groups of a host."""
        files = " ".join(str(self._group(c, host) / MEMBERS) for c in CONTROLLERS)
        return ["sh", "-c", _ENTER.format(files), "sh"]

    def join(self, host: str) -> None:
        """Moves this process to the groups of a host."""
        for controller in CONTROLLERS:
            (self._group(controller, host) / MEMBERS).write_text(str(os.getpid()))

    def cap(self, share: float | None, quota_us: int = MIN_QUOTA_US) -> None:
        """Limits the CPU time of each host.

        Args:
            share: the share of one core; None removes the limit.
            quota_us: see `quota`.

        Raises:
            ValueError: the kernel has no such quota.
        """
        limits = None if share is None else quota(share, quota_us)
        for host in self._hosts:
            group = self._group("cpu", host)
            (group / QUOTA).write_text("-1")  # any period is valid without a quota
            (group / SHARES).write_text(str(FEW_SHARES if limits is None else MANY_SHARES))
            if limits is not None:
                (group / PERIOD).write_text(str(limits[1]))
                (group / QUOTA).write_text(str(limits[0]))

    def seconds(self) -> dict[str, float]:
        """Seconds of CPU time that each host has used so far."""
        files = {host: self._group("cpuacct", host) / USAGE for host in self._hosts}
        return {host: int(file.read_text()) / 1e9 for host, file in files.items()}

    def _group(self, controller: str, host: str) -> Path:
        return FOLDER / controller / f"{self._run}-{host}"


def groups(prefix: str) -> list[Path]:
    """The existing groups whose names begin with `prefix`."""
    return sorted(group for c in CONTROLLERS for group in FOLDER.glob(f"{c}/{prefix}-*"))


def remove(run: str) -> None:
    """Kills the processes in the groups of a run and removes the groups.

    Args:
        run: prefix of the names of the groups.
    """
    deadline = time.monotonic() + REMOVE_SECONDS
    while left := groups(run):
        for group in left:
            with contextlib.suppress(OSError):
                if (group / QUOTA).exists():
                    (group / QUOTA).write_text("-1")  # or its processes would end slowly
                for process in (group / MEMBERS).read_text().split():
                    os.kill(int(process), signal.SIGKILL)
            with contextlib.suppress(OSError):  # the processes have not ended yet
                group.rmdir()
        if time.monotonic() > deadline:
            return
        time.sleep(0.01)
