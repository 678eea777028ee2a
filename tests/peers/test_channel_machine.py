"""Channels against a dictionary, while the words of messages arrive in any order and at any time.

The memory of the ranks is in this process. What a channel writes is kept, and arrives word by word:
what was written before a flush before what was written after it, and otherwise in a random order.
Other ranks read in between, also while they are reading.
"""

import contextlib
import random
import types

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests import machines
from twml_ops.peers.channel import Channel

RANKS, CAPACITY, STALENESS, WORD = 3, 64, 2, 8
RANK = st.integers(0, RANKS - 1)
SEED = st.integers(0, 2**32)


class World:
    """The memory of all ranks, and what has not arrived in it."""

    def __init__(self):
        self.epoch, self.windows, self.on_sync = 0, {}, lambda: None
        self.iterations = np.zeros([RANKS, 1], np.int64)
        self.waited = False
        allocate = types.SimpleNamespace(Allocate=lambda size, unit, comm: Window(self, size, comm))
        self.mpi = types.SimpleNamespace(Win=allocate, BYTE=None, ERRORS_RETURN=None)


class Window:
    """As `MPI.Win` of a rank: its slots, and the writes of this rank that have not arrived."""

    def __init__(self, world, size, comm):
        self.world, self.slots, self.writes = world, bytearray(size), [[]]
        self.epoch = comm[0]
        world.windows[comm] = self

    def tomemory(self):
        return self.slots

    def Set_errhandler(self, handler):
        del handler

    def Lock_all(self):
        pass

    def Put(self, origin, to, target):
        data, offset = origin[0].tobytes(), target[0]
        for begin in range(0, len(data), WORD):
            word = data[begin : begin + WORD]
            self.writes[-1].append((to, offset + begin, word))

    def Flush_all(self):
        self.writes.append([])

    def Sync(self):
        self.world.on_sync()

    def deliver(self, count, order):
        """Lets some words arrive."""
        for _ in range(count):
            while len(self.writes) > 1 and not self.writes[0]:
                del self.writes[0]
            if not self.writes[0]:
                return
            to, at, word = self.writes[0].pop(order.randrange(len(self.writes[0])))
            self.world.windows[self.epoch, to].slots[at : at + len(word)] = word

    def is_complete(self):
        return not any(self.writes)


class Group:
    """As `PeerGroup`, of a rank."""

    shares_memory, full_size = True, RANKS

    def __init__(self, world, member):
        self.world, self.member = world, member

    def adopt(self, members):
        self.members, self.size = members, len(members)
        self.rank = members.index(self.member)
        self.comm = self.world.epoch, self.rank

    @contextlib.contextmanager
    def call(self, name):
        yield self.world.mpi

    def add(self, channel):
        del channel

    def check(self):
        pass

    def gather_all(self, numbers, name):
        return self.world.iterations

    def all_sum(self, numbers, name):
        return np.zeros(1, np.int64)

    def wait_until(self, condition, name):
        self.world.waited = True


class Channels(RuleBasedStateMachine):
    """Ranks that scatter, gather, pause, are lost and are replaced, against dictionaries."""

    steps = 0

    @initialize(consistency=st.sampled_from(["async", "ssp"]))
    def begin(self, consistency):
        self.consistency, self.world = consistency, World()
        self.members = tuple(range(RANKS))
        self.channels, self.sent, self.seen = {}, {}, {}
        self.complete, self.finished = {}, {}
        self.connect(self.members, new=self.members)

    def connect(self, members, new):
        numbers = [0 if m in new else self.channels[m].iteration for m in members]
        self.world.iterations = np.array(numbers, np.int64)[:, None]
        self.world.epoch += 1
        start = max(numbers)
        for member in members:
            if member in new:
                group = Group(self.world, member)
                group.adopt(members)
                made = Channel(group, "all", CAPACITY, self.consistency, STALENESS)
                self.channels[member] = made
            else:
                self.channels[member].group.adopt(members)
                self.channels[member].reconnect()
        self.members = members
        for member in members:
            self.sent[member], self.complete[member], self.finished[member] = {}, start, False
            self.seen[member] = dict.fromkeys((m for m in members if m != member), start)

    def window(self, member):
        return self.channels[member]._window

    def is_idle(self, member):
        return member in self.members and self.window(member).is_complete()

    def advance(self, member, count, order):
        """Lets words of a rank arrive; the message is complete with the last one."""
        if member in self.members:
            self.window(member).deliver(count, order)
            if self.window(member).is_complete():
                self.complete[member] = self.channels[member].iteration

    @rule(member=RANK, size=st.integers(0, CAPACITY), progress=st.integers(0, 9), seed=SEED)
    def scatter(self, member, size, progress, seed):
        if not self.is_idle(member):
            return
        channel, data = self.channels[member], random.Random(seed).randbytes(size)
        self.sent[member][channel.iteration + 1] = data, progress
        part = np.frombuffer(data, np.uint8)
        channel.scatter([part[: size // 2], part[size // 2 :]], progress)
        self.finished[member] = False

    @rule(member=RANK)
    def pause(self, member):
        if self.is_idle(member):
            self.channels[member].pause()
            self.finished[member] = True

    @rule(member=RANK, count=st.integers(1, 40), seed=SEED)
    def arrive(self, member, count, seed):
        self.advance(member, count, random.Random(seed))

    @rule(member=RANK, seed=SEED, busy=st.booleans())
    def gather(self, member, seed, busy):
        if not self.is_idle(member):
            return
        channel, order = self.channels[member], random.Random(seed)
        others = [m for m in self.members if m != member]
        before = dict(self.complete)
        quiet = not busy and all(map(self.is_idle, others))

        def others_go_on():
            for other in others:
                self.advance(other, order.choice([0, 0, 1, 3, 30]), order)

        self.world.on_sync = others_go_on if busy else lambda: None
        missed = channel.counts.missed
        found = {self.members[m.sender]: m for m in channel.gather()}
        self.world.on_sync = lambda: None
        for sender, message in found.items():
            data, progress = self.sent[sender][message.iteration]
            assert message.data.tobytes()[: len(data)] == data
            assert len(message.data) == len(data)
            assert message.progress == progress
            assert message.iteration > self.seen[member][sender]
            assert message.iteration >= before[sender]
            self.seen[member][sender] = message.iteration
        if quiet:
            assert self.seen[member] == {m: self.complete[m] for m in others}
            none = [m for m in others if m not in found and not self.finished[m]]
            assert channel.counts.missed == missed + len(none)

    @rule(member=RANK)
    def barrier(self, member):
        others = [m for m in self.members if m != member]
        if not self.is_idle(member) or not all(map(self.is_idle, others)):
            return
        channel, self.world.waited = self.channels[member], False
        channel.barrier()
        limit = channel.iteration - STALENESS
        late = [m for m in others if self.complete[m] < limit and not self.finished[m]]
        assert self.world.waited == (self.consistency == "ssp" and bool(late))
        arrived = {self.members[s]: n for s, n in channel.arrived().items()}
        assert arrived == {m: self.complete[m] for m in others}

    @precondition(lambda self: len(self.members) == RANKS)
    @rule(member=RANK)
    def lose(self, member):
        self.connect(tuple(m for m in self.members if m != member), new=())

    @precondition(lambda self: len(self.members) < RANKS)
    @rule()
    def join(self):
        [lost] = set(range(RANKS)) - set(self.members)
        self.connect((*self.members, lost), new=(lost,))

    @invariant()
    def each_step_is_counted(self):
        type(self).steps += 1


def test_any_sequence_of_steps_gives_whole_messages_in_their_order():
    machines.run(Channels, 1000)


@pytest.mark.slow
def test_any_sequence_of_steps_gives_whole_messages_in_their_order_at_length(steps):
    machines.run(Channels, steps)
