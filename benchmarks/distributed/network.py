"""Hosts as network namespaces that are joined by a bridge, with a cap on their egress. Needs root.

Everything, including the bridge, is in namespaces of this run. No interface, route or rule of the
machine is changed, and deleting the namespaces removes everything. If CPU time is to be limited as
well, each host also has control groups, which are removed with the namespaces.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from benchmarks.distributed import cpu_groups
from benchmarks.distributed.cpu_groups import MIN_QUOTA_US, CpuGroupError, CpuGroups

PREFIX = "twmlbench"
INTERFACE = "eth0"
SUBNET = "10.77.0"
FRAME = 1500
BURST_SECONDS = 2.5e-4  # size of a burst, as time at the cap
# Network cards take segments of 64 KiB and cut them in hardware. With segments of 16 KiB a byte
# costs a host three times as much CPU time, and tbf itself cuts segments of more than 60 KiB.
MIN_BURST = 48 * 1024
SEGMENT = MIN_BURST - FRAME  # maximum size handed to the interface, because bursts are cut
# With several queues the packets of a connection are reordered, which TCP takes for losses.
ONE_QUEUE = ("numtxqueues", "1", "numrxqueues", "1")
CLONE_NEWNET = 0x40000000  # of setns
QUEUE_BYTES = 16 * 2**20  # large enough that senders wait and no packet is dropped


class NetworkError(Exception):
    """Hosts cannot be created, or a command for them failed; the message is one line."""


def unavailable(cpu: bool = False) -> str | None:
    """The reason why network namespaces cannot be created here, or None.

    Args:
        cpu: whether the CPU time of hosts is to be limited.
    """
    if os.name != "posix" or not Path("/proc/self/ns/net").exists():
        return "network namespaces need Linux"
    missing = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
    if missing:
        return f"{' and '.join(missing)} not found: install iproute2"
    if os.geteuid() != 0:
        return "creating network namespaces needs root: run it with sudo"
    try:
        with Network(["probe"], cpu=cpu) as network:
            network.cap(1e6)
            if cpu:
                network.cap_cpu(0.5)
    except NetworkError as e:
        return str(e)
    return None


class Network:
    """Context manager: hosts that can reach each other and nothing else.

    Args:
        hosts: names of the hosts.
        cpu: whether `cap_cpu` and `cpu_seconds` are needed. Without them a machine needs no cgroup
            v1.

    Raises:
        NetworkError: namespaces or control groups cannot be created.
    """

    def __init__(self, hosts: Sequence[str], cpu: bool = False) -> None:
        self.hosts = tuple(hosts)
        self._run = f"{PREFIX}-{os.getpid()}"
        self._switch = f"{self._run}-switch"
        self._cpu_groups = CpuGroups(self._run, self.hosts) if cpu else None

    def __enter__(self) -> Network:
        remove_stale()
        try:
            self._make()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._remove()

    def address(self, host: str) -> str:
        """The IP address of a host."""
        return f"{SUBNET}.{self.hosts.index(host) + 1}"

    def on(self, host: str, command: Sequence[str]) -> list[str]:
        """The command that runs `command` on a host."""
        enter = [] if self._cpu_groups is None else self._cpu_groups.enter(host)
        return [*enter, "ip", "netns", "exec", self._namespace(host), *command]

    def enter(self, host: str) -> None:
        """Moves this process to a host. It must have one thread that matters."""
        if self._cpu_groups is not None:
            self._cpu_groups.join(host)
        with open(f"/run/netns/{self._namespace(host)}") as namespace:
            if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), CLONE_NEWNET):
                raise NetworkError(f"setns: {os.strerror(ctypes.get_errno())}: {namespace.name}")

    def cap(self, bytes_per_second: float | None) -> None:
        """Limits the egress of each host.

        Args:
            bytes_per_second: counts frames with all headers; None removes the limit.
        """
        for host in self.hosts:
            namespace = self._namespace(host)
            device = ["dev", INTERFACE]
            if bytes_per_second is None:
                _call("tc", "-n", namespace, "qdisc", "replace", *device, "root", "pfifo")
                continue
            burst = int(max(MIN_BURST, bytes_per_second * BURST_SECONDS))
            shape = ["rate", f"{8 * bytes_per_second:.0f}bit", "burst", str(burst)]
            shape += ["limit", str(QUEUE_BYTES)]
            _call("tc", "-n", namespace, "qdisc", "replace", *device, "root", "tbf", *shape)

    def sent(self) -> dict[str, int]:
        """Bytes that each host has sent so far, from the counter of its port on the bridge."""
        found = _call("ip", "-n", self._switch, "-s", "-j", "link", "show", "type", "veth")
        ports = {p["ifname"]: p["stats64"]["rx"]["bytes"] for p in json.loads(found)}
        return {host: ports[f"port{i}"] for i, host in enumerate(self.hosts)}

    def cap_cpu(self, share: float | None, quota_us: int = MIN_QUOTA_US) -> None:
        """Limits the CPU time of each host.

        Args:
            share: the share of one core; None removes the limit.
            quota_us: microseconds that a host may use at once.
        """
        self._with_cpu().cap(share, quota_us)

    def cpu_seconds(self) -> dict[str, float]:
        """Seconds of CPU time that each host has used so far."""
        return self._with_cpu().seconds()

    def _with_cpu(self) -> CpuGroups:
        if self._cpu_groups is None:
            raise ValueError("limiting and counting CPU time needs Network(hosts, cpu=True)")
        return self._cpu_groups

    def _namespace(self, host: str) -> str:
        return f"{self._run}-{host}"

    def _make(self) -> None:
        if self._cpu_groups is not None:
            try:
                self._cpu_groups.create()
            except CpuGroupError as e:
                raise NetworkError(str(e)) from e
        _call("ip", "netns", "add", self._switch)
        _call("ip", "-n", self._switch, "link", "add", "bridge", "type", "bridge")
        _call("ip", "-n", self._switch, "link", "set", "bridge", "up")
        for rules in ("iptables", "ip6tables", "arptables"):  # a bridge must not filter packets
            _write(self._switch, f"/proc/sys/net/bridge/bridge-nf-call-{rules}", "0")
        for i, host in enumerate(self.hosts):
            namespace, port = self._namespace(host), f"port{i}"
            _call("ip", "netns", "add", namespace)
            _call(
                *("ip", "link", "add", INTERFACE, "netns", namespace),
                *("gso_max_size", str(SEGMENT), *ONE_QUEUE, "type", "veth"),
                *("peer", "name", port, "netns", self._switch, *ONE_QUEUE),
            )
            _call("ip", "-n", self._switch, "link", "set", port, "master", "bridge", "up")
            address = f"{self.address(host)}/24"
            _call("ip", "-n", namespace, "address", "add", address, "dev", INTERFACE)
            for device in (INTERFACE, "lo"):
                _call("ip", "-n", namespace, "link", "set", device, "up")

    def _remove(self) -> None:
        _remove(self._run)


def remove_stale() -> None:
    """Removes what killed runs of this benchmark have left, not what running ones use."""
    for name in [*namespaces(), *(group.name for group in cpu_groups.groups(PREFIX))]:
        owner = name.removeprefix(f"{PREFIX}-").split("-")[0]
        if owner.isdigit() and not Path(f"/proc/{owner}").exists():
            _remove(f"{PREFIX}-{owner}")


def namespaces() -> list[str]:
    """Names of the existing namespaces of this benchmark."""
    folder = Path("/run/netns")
    names = [p.name for p in folder.iterdir()] if folder.is_dir() else []
    return sorted(name for name in names if name.startswith(f"{PREFIX}-"))


def _remove(run: str) -> None:
    for name in namespaces():
        if name.startswith(f"{run}-"):
            with _deferred_signals():
                subprocess.run(["ip", "netns", "delete", name], check=False, capture_output=True)
    with _deferred_signals():
        cpu_groups.remove(run)


def _write(namespace: str, path: str, text: str) -> None:
    """Writes a kernel setting of a namespace, if the kernel has it."""
    script = 'test ! -e "$1" || echo "$2" > "$1"'
    _call("ip", "netns", "exec", namespace, "sh", "-c", script, "sh", path, text)


def _call(*command: str) -> str:
    with _deferred_signals():
        done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        reason = " ".join(done.stderr.split()) or f"exit status {done.returncode}"
        raise NetworkError(f"`{' '.join(command)}`: {reason}")
    return done.stdout


@contextlib.contextmanager
def _deferred_signals() -> Iterator[None]:
    """Handles signals after the block, so that no command runs while its effects are undone."""
    received: list[Any] = []
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    previous = {n: signal.signal(n, lambda *which: received.append(which)) for n in numbers}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
        for number, _ in received[:1]:
            signal.raise_signal(number)
