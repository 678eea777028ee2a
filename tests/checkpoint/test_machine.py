"""Checkpoints of a folder against a dictionary: saves, faults, kills, damage, other processes."""

import contextlib
import errno
import shutil
import tempfile
import types
from pathlib import Path

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests import machines
from tests.disk import ERRORS, Disk
from twml_ops.checkpoint import (
    CheckpointError,
    CheckpointManager,
    CheckpointReader,
    TablePolicy,
    compact,
    prune,
)

pytestmark = pytest.mark.one_tf  # files are our own; test_incremental.py has real tables

ROWS = 6
POLICIES = ["full", "one-shot", "consecutive", "intermittent"]
FAULTS = st.none() | st.tuples(st.integers(0, 60), st.sampled_from((0, *ERRORS)), st.booleans())
NAMES = st.integers(0, 9)


class Table:
    """A table whose changed rows are known, as the manager saves it."""

    name = table = label = "t"
    shape = (ROWS, 2)

    def __init__(self):
        self.variable = np.zeros(self.shape, np.float32)
        self._records = []

    def view(self):
        return self.variable

    def changed_rows(self, group):
        record = types.SimpleNamespace(variables=(self.variable,), rows=None)
        self._records.append(record)

        def take():
            ids = None if record.rows is None else np.array(sorted(record.rows), np.int64)
            rows = self.variable.copy() if ids is None else self.variable[ids]
            return types.SimpleNamespace(ids=ids, rows=(rows,), keep=keep)

        def keep():
            record.rows = set()

        record.take, record.close = take, lambda: self._records.remove(record)
        return record

    def change(self, row, value):
        self.variable[row] = value
        for record in self._records:
            if record.rows is not None:
                record.rows.add(row)


class Checkpoints(RuleBasedStateMachine):
    """`newest_intact` finds the newest undamaged checkpoint, which has the saved values."""

    steps = 0

    def __init__(self):
        super().__init__()
        self.place = Path(tempfile.mkdtemp())
        self.root = self.place / "checkpoints"
        self.values = {}  # the table, by number of the save
        self.saved, self.bases = {}, {}  # names of what was reported, by number; their bases
        self.mine = False  # whether there is a folder that is no checkpoint
        self.bad, self.number, self.manager = set(), 0, None

    def teardown(self):
        if self.manager is not None:
            self.manager.close()
        shutil.rmtree(self.place)

    @initialize(policy=st.sampled_from(POLICIES), keep=st.integers(1, 3), background=st.booleans())
    def open(self, policy, keep, background):
        self.table = Table()
        self.policy, self.keep, self.background = policy, keep, background
        self.manager = self.new_manager()

    def new_manager(self):
        return CheckpointManager(
            self.root, keep=self.keep, background=self.background, tables=TablePolicy(self.policy)
        )

    def disk(self, fault=None):
        if fault is None:
            return Disk(self.place)
        return Disk(self.place, fault[0], fault[1] or errno.EIO, killed=fault[2])

    def note(self):
        """Notes the newest checkpoint as saved."""
        newest = CheckpointManager(self.root).latest()
        self.saved[newest.manifest.values["n"]] = newest.folder.name
        self.bases[newest.folder.name] = newest.manifest.base
        self.bad.discard(newest.folder.name)

    @rule(row=st.integers(0, ROWS - 1))
    def train(self, row):
        self.number += 1
        self.table.change(row, self.number)

    @rule(fault=FAULTS)
    def save(self, fault):
        self.number += 1
        self.values[self.number] = self.table.variable.copy()
        saved = False
        with self.disk(fault), contextlib.suppress(CheckpointError):
            self.manager.save(self.number, [self.table], {"n": self.number})
            self.manager.wait()
            saved = True
        if saved:
            self.note()
        if fault is not None and fault[2]:
            self.reopen(self.policy, self.keep)

    @rule(policy=st.sampled_from(POLICIES), keep=st.integers(1, 3))
    def reopen(self, policy, keep):
        self.manager.close()
        self.policy, self.keep, self.table = policy, keep, Table()
        self.manager = self.new_manager()
        with contextlib.suppress(CheckpointError):
            self.manager.newest_intact(warn=lambda text: None)

    @rule()
    def save_in_a_second_process(self):
        if (self.root / ".lock").exists() and self.manager._next is not None:
            with self.disk(), pytest.raises(CheckpointError, match="another process"):
                CheckpointManager(self.root).save(1, [self.table], {"n": 0})

    @rule(which=NAMES)
    def delete(self, which):
        if path := self.pick(which):
            shutil.rmtree(path)
            self.bad.add(path.name)

    @rule(which=NAMES, in_manifest=st.booleans(), at=st.integers(0, 10**6))
    def damage(self, which, in_manifest, at):
        if path := self.pick(which):
            file = path / ("manifest.json" if in_manifest else "data-00000")
            content = bytearray(file.read_bytes() if file.exists() else b"")
            if content:
                entry = next(iter(CheckpointReader(path).entries.values()), None)
                at = at % len(content) if in_manifest else entry.offset + at % entry.bytes
                content[at] ^= 64
                file.write_bytes(content)
                self.bad.add(path.name)
                self.reopen(self.policy, self.keep)

    def pick(self, which):
        """The folder of a checkpoint that is not damaged; None: there is none."""
        paths = [p for p in sorted(self.root.glob("ckpt-*")) if p.name not in self.bad]
        paths = [p for p in paths if self.is_complete(p.name)]
        return paths[which % len(paths)] if paths else None

    def is_complete(self, name):
        return (self.root / name / "manifest.json").exists()

    @rule(name=st.sampled_from(["ckpt-00000000-step-7", "ckpt-00000099-step-1", "mine"]))
    def leave_an_incomplete_one(self, name):
        with contextlib.suppress(OSError):
            (self.root / name).mkdir()
            self.mine |= name == "mine"
            (self.root / name / "data-00000").write_bytes(b"part")

    @rule()
    def delete_the_folder(self):
        if self.root.is_dir():
            shutil.rmtree(self.root)
            self.mine = False
            self.saved.clear()

    @rule(fault=FAULTS, keep=st.integers(1, 2), hourly=st.booleans(), compacts=st.booleans())
    def maintain(self, fault, keep, hourly, compacts):
        self.manager.close()
        done = None
        with self.disk(fault), contextlib.suppress(CheckpointError):
            done = compact(self.root) if compacts else prune(self.root, keep, hourly)
        if done is not None and compacts:
            self.note()
        self.reopen(self.policy, self.keep)

    @rule(saves=st.integers(1, 3))
    def read_while_another_process_saves(self, saves):
        left = [saves]

        def read(checkpoint):
            while left[0]:
                left[0] -= 1
                self.save(None)
            checkpoint.verify()

        self.check(CheckpointManager(self.root), read)

    @rule()
    def remove_all(self):
        with self.disk():
            self.manager.remove_all()
        assert not list(self.root.glob("ckpt-*"))
        self.saved.clear()

    def check(self, manager, read=CheckpointReader.verify):
        def is_good(name):
            return name is None or (name not in self.bad and is_good(self.bases.get(name)))

        expected = max((n for n, name in self.saved.items() if is_good(name)), default=-1)
        try:
            newest = manager.newest_intact(read, warn=lambda text: None)
        except CheckpointError:
            newest = None
        found = -1 if newest is None else newest.manifest.values["n"]
        assert found >= expected, (found, expected)
        if newest is not None:
            np.testing.assert_array_equal(newest.read("t"), self.values[found])
        # A newer one is there: these have been removed.
        self.saved = {n: name for n, name in self.saved.items() if self.is_complete(name)}

    @invariant()
    def the_newest_is_found(self):
        type(self).steps += 1
        self.check(CheckpointManager(self.root))
        assert not self.mine or (self.root / "mine").exists()


def test_the_newest_checkpoint_is_found_whatever_happened():
    machines.run(Checkpoints, 400)


@pytest.mark.slow
def test_the_newest_checkpoint_is_found_whatever_happened_at_length(steps):
    machines.run(Checkpoints, steps)
