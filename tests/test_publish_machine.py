"""Processes that publish, fail, and are killed in one place, and the files of a user there."""

import contextlib
import errno
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tests import machines
from tests.disk import ERRORS, Disk
from twml_ops._publish import files_in
from twml_ops.training import run_folder
from twml_ops.training.config import FORMAT, FORMAT_KEY
from twml_ops.training.errors import UserError

FAULTS = st.none() | st.tuples(st.integers(0, 70), st.sampled_from((0, *ERRORS)), st.booleans())
WHICH = st.integers(0, 1)
MINE = "mine.txt"


class Runs(RuleBasedStateMachine):
    """Two processes that write runs to one folder: it always has one whole run, or none."""

    steps = 0

    def __init__(self):
        super().__init__()
        self.root = Path(tempfile.mkdtemp())
        self.out = self.root / "a" / "run"
        self.open = [None, None]  # the context, the temporary folder and the number of a run
        self.number, self.now, self.mine = 0, None, 0

    def teardown(self):
        for each in self.open:
            if each is not None:
                each[0].__exit__(KeyError, KeyError(), None)
        shutil.rmtree(self.root)

    @rule(which=WHICH, overwrite=st.booleans())
    def begin(self, which, overwrite):
        if self.open[which] is not None:
            return
        context = run_folder.new_folder(self.out, overwrite)
        refused = self.open[1 - which] is not None or self.mine or (self.now and not overwrite)
        with Disk(self.root):
            try:
                folder = context.__enter__()
            except UserError:
                assert refused
                return
        assert not refused
        self.number += 1
        (folder / "deep").mkdir()
        for name in ("weights", "deep/rows"):
            (folder / name).write_text(f"{self.number}")
        run_folder.write_json(folder / "run.json", {FORMAT_KEY: FORMAT, "n": self.number})
        self.open[which] = context, self.number

    @rule(which=WHICH, fault=FAULTS)
    def finish(self, which, fault):
        if self.open[which] is None:
            return
        (context, number), self.open[which] = self.open[which], None
        options = {}
        if fault is not None:
            options = {"fail": fault[0], "error": fault[1] or errno.EIO, "killed": fault[2]}
        raised = None
        with Disk(self.root, **options) as disk:
            try:
                context.__exit__(None, None, None)
            except (UserError, OSError) as e:
                raised = e
        assert raised is None or disk.failed or self.mine, raised
        if raised is None:
            assert not self.mine
            self.now = number
            assert not [p for p in disk.lost() if Path(p).is_relative_to(self.out)]
        elif not self.mine and self.content() == number:
            self.now = number

    @rule(which=WHICH)
    def fail(self, which):
        if self.open[which] is not None:
            (context, _), self.open[which] = self.open[which], None
            with Disk(self.root):
                assert not context.__exit__(KeyError, KeyError(), None)

    @rule()
    def put_a_file_there(self):
        with contextlib.suppress(FileNotFoundError):
            (self.out / MINE).write_text("mine")
            self.mine = 1

    @rule()
    def take_it_away(self):
        (self.out / MINE).unlink(missing_ok=True)
        self.mine = 0

    def content(self):
        """The number of the whole run; None: there is none."""
        if not run_folder.is_run(self.out):
            assert not self.out.is_dir() or not set(files_in(self.out)) - {MINE}
            return None
        numbers = {(self.out / name).read_text() for name in ("weights", "deep/rows")}
        numbers.add(str(run_folder.read_run(self.out)["n"]))
        (number,) = numbers
        return int(number)

    @invariant()
    def the_run_is_whole(self):
        type(self).steps += 1
        assert self.content() == self.now
        assert not self.mine or (self.out / MINE).read_text() == "mine"


def test_a_run_folder_has_one_whole_run_whatever_happens():
    machines.run(Runs, 400)


@pytest.mark.slow
def test_a_run_folder_has_one_whole_run_whatever_happens_at_length(steps):
    machines.run(Runs, steps)
