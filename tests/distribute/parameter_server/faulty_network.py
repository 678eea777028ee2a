"""Hosts that are joined by a wire which loses, delays, repeats and swaps packets.

Linux has `tc netem` for it, which few kernels of virtual machines have. Here a thread passes the
packets on, in the way that a seed determines. `Network` of the benchmarks makes the hosts.
"""

from __future__ import annotations

import dataclasses
import fcntl
import heapq
import os
import random
import select
import struct
import threading
import time

from benchmarks.distributed.network import INTERFACE, Network, NetworkError, _call

_DEVICE = "/dev/net/tun"
_SET_INTERFACE = 0x400454CA  # TUNSETIFF
_FRAMES_WITHOUT_HEADER = 0x0002 | 0x1000  # IFF_TAP, IFF_NO_PI
_LONGEST = 1 << 16


@dataclasses.dataclass(frozen=True)
class Faults:
    """What happens to packets, each with a probability.

    Attributes:
        lost: A packet is lost.
        repeated: A packet arrives twice.
        late: A packet arrives `delay` seconds later than the others, which overtake it.
        delay: Seconds.
        seed: Determines which packets.
    """

    lost: float = 0.0
    repeated: float = 0.0
    late: float = 0.0
    delay: float = 0.003
    seed: int = 0


def unavailable() -> str | None:
    """The reason why there can be no such wire here, although there can be hosts; or None."""
    try:
        with FaultyNetwork(["probe"], Faults()):
            return None
    except NetworkError as e:
        return str(e)


class FaultyNetwork(Network):
    """A `Network` with such a wire.

    Args:
        hosts: Names of the hosts.
        faults: What happens to packets.

    Attributes:
        counts: How many packets were passed on, lost, repeated and late, and lost by cuts.
    """

    def __init__(self, hosts: list[str], faults: Faults) -> None:
        super().__init__(hosts)
        self._faults, self._random = faults, random.Random(faults.seed)
        self.counts = dict.fromkeys(("passed", "lost", "repeated", "late", "cut"), 0)
        self._cuts: dict[int, int] = {}  # host -> how many of its packets are still to be lost
        self._taps: list[int] = []
        self._wake, self._waker = os.pipe()

    def cut(self, host: str, packets: int) -> None:
        """Cuts a host off, until so many packets from it and to it have been lost.

        Args:
            host: The host.
            packets: How many.
        """
        self._cuts[self.hosts.index(host)] = packets

    def _make(self) -> None:
        for i, host in enumerate(self.hosts):
            namespace = self._namespace(host)
            _call("ip", "netns", "add", namespace)
            found: list[int | OSError | NetworkError] = []
            thread = threading.Thread(target=self._open_tap, args=(host, found))
            thread.start()  # which moves to the host, and ends there
            thread.join()
            if not isinstance(found[0], int):
                raise NetworkError(f"{_DEVICE}: {found[0]}")
            self._taps.append(found[0])
            mac = f"02:00:00:00:00:{i + 1:02x}"
            _call("ip", "-n", namespace, "link", "set", INTERFACE, "address", mac)
            address = f"{self.address(host)}/24"
            _call("ip", "-n", namespace, "address", "add", address, "dev", INTERFACE)
            for device in (INTERFACE, "lo"):
                _call("ip", "-n", namespace, "link", "set", device, "up")
        self._thread = threading.Thread(target=self._relay, daemon=True)
        self._thread.start()

    def _open_tap(self, host: str, found: list[int | OSError | NetworkError]) -> None:
        try:
            self.enter(host)
            tap = os.open(_DEVICE, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
            name = struct.pack("16sH22x", INTERFACE.encode(), _FRAMES_WITHOUT_HEADER)
            fcntl.ioctl(tap, _SET_INTERFACE, name)
            found.append(tap)
        except (OSError, NetworkError) as e:
            found.append(e)

    def _remove(self) -> None:
        if self._taps:
            os.close(self._waker)
            self._thread.join()
            for each in (*self._taps, self._wake):
                os.close(each)
        super()._remove()

    def _relay(self) -> None:
        late: list[tuple[float, int, int, bytes]] = []  # time, number, host, packet
        number = 0
        while True:
            wait = max(0.0, late[0][0] - time.monotonic()) if late else None
            ready, _, _ = select.select([*self._taps, self._wake], [], [], wait)
            if self._wake in ready:
                return
            while late and late[0][0] <= time.monotonic():
                _, _, host, packet = heapq.heappop(late)
                self._write(host, packet)
            for source in ready:
                try:
                    packet = os.read(source, _LONGEST)
                except BlockingIOError:
                    continue
                for host in self._targets(self._taps.index(source), packet):
                    number += 1
                    if delay := self._pass(self._taps.index(source), host, packet):
                        heapq.heappush(late, (time.monotonic() + delay, number, host, packet))

    def _targets(self, source: int, packet: bytes) -> list[int]:
        if packet[0] & 1:  # for all hosts, such as ARP's
            return [i for i in range(len(self.hosts)) if i != source]
        host = packet[5] - 1
        return [host] if 0 <= host < len(self.hosts) else []

    def _pass(self, source: int, host: int, packet: bytes) -> float:
        """Writes a packet, or not. Returns the seconds after which it is to be written."""
        faults, chance = self._faults, self._random.random()
        for end in (source, host):
            if self._cuts.get(end):
                self._cuts[end] -= 1
                self.counts["cut"] += 1
                return 0.0
        if chance < faults.lost:
            self.counts["lost"] += 1
            return 0.0
        if chance < faults.lost + faults.late:
            self.counts["late"] += 1
            return faults.delay
        for _ in range(1 + (chance > 1 - faults.repeated)):
            self._write(host, packet)
        self.counts["repeated"] += chance > 1 - faults.repeated
        return 0.0

    def _write(self, host: int, packet: bytes) -> None:
        self.counts["passed"] += 1
        try:
            os.write(self._taps[host], packet)
        except OSError:  # its interface is down, or its queue is full
            self.counts["lost"] += 1
