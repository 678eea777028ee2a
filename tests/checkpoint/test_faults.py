"""Faults of the file system, kills and power cuts while checkpoints are written and removed."""

import errno
import shutil

import numpy as np
import pytest

from tests.checkpoint.test_manager import Value
from tests.disk import ERRORS, Disk, each_fault
from tests.power_cut import Log, write_state
from twml_ops.checkpoint import (
    CheckpointError,
    CheckpointManager,
    CheckpointReader,
    CheckpointWriter,
    compact,
    prune,
)

pytestmark = pytest.mark.one_tf  # files are our own; test_manager.py runs on both


def save(manager, step):
    manager.save(step, [Value("a", np.full(3, float(step)))], {})


def write(root, bases):
    """Checkpoints of the steps 0, 1, ... that are based on others, by their steps."""
    for step, base in enumerate(bases):
        name = None if base is None else f"ckpt-{base:08d}-step-{base}"
        with CheckpointWriter(root / f"ckpt-{step:08d}-step-{step}") as writer:
            writer.add("a", "a", [np.full(3, float(step))])
            writer.commit(step, step, {}, name)


def check(root, least, what):
    """All valid checkpoints are whole, and there is one of a step or a later one."""
    found = CheckpointManager(root).all()
    for each in found:
        each.verify()
        assert (each.read("a") == each.manifest.step).all()
    assert found[-1].manifest.step >= least, what


def save_next(root):
    with CheckpointManager(root, keep=1, background=False) as manager:
        save(manager, 4)


def save_with_a_thread(root):
    with CheckpointManager(root, keep=2) as manager:
        save(manager, 4)


def remove_all(root):
    with CheckpointManager(root) as manager:
        manager.remove_all()


WORK = {
    "save": save_next,
    "save_with_a_thread": save_with_a_thread,
    "compact": compact,
    "prune": lambda root: prune(root, 1),
    "remove_all": remove_all,
}


@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize("way", WORK)
def test_a_fault_or_a_kill_leaves_whole_checkpoints_and_the_newest_of_them(tmp_path, way, killed):
    root = tmp_path / "root"
    writes = way in ("save", "save_with_a_thread", "compact")
    steps = {"save": 4, "save_with_a_thread": 4}
    before = tmp_path / "before"
    before.mkdir()
    write(before, [None, 0, 0, 2])
    (before / "ckpt-00000009-step-9").mkdir()

    def prepare(root):
        shutil.copytree(before, root, dirs_exist_ok=True)

    errors = (0, *ERRORS) if writes and not killed else (errno.EIO,)
    for disk, raised in each_fault(lambda: WORK[way](root), prepare, root, errors, killed=killed):
        assert raised is None or isinstance(raised, CheckpointError), (disk.what, raised)
        if way != "remove_all":
            check(root, 3 if raised else steps.get(way, 3), disk.what)
        elif raised is None:
            assert not CheckpointManager(root).all(), disk.what
        else:
            for each in CheckpointManager(root).all():
                each.verify()
        if raised is None and not killed and way in steps:
            assert not [path for path in disk.lost() if "/ckpt-" in path], disk.what


def test_a_fault_of_reading_never_takes_an_older_checkpoint_in_silence(tmp_path):
    root = tmp_path / "root"
    for read in ("newest_intact", "latest"):
        found, said = [], []

        def work(read=read, found=found, said=said):
            found.clear()
            said.clear()
            options = {"warn": said.append} if read == "newest_intact" else {}
            found.append(getattr(CheckpointManager(root), read)(**options))

        for disk, raised in each_fault(
            work, lambda root: write(root, [None, None, 1]), root, (errno.EIO,)
        ):
            if raised is None:
                assert found[0].manifest.step == 2 or said, disk.what
            else:
                assert isinstance(raised, CheckpointError), (disk.what, raised)


def test_a_power_cut_leaves_what_was_reported_as_saved_or_what_is_newer(tmp_path):
    root, cut = tmp_path / "root" / "a" / "b", tmp_path / "cut"
    (tmp_path / "root").mkdir()
    log, reported = Log(tmp_path / "root"), [(0, -1)]
    with (
        Disk(tmp_path / "root", log=log),
        CheckpointManager(root, keep=2, background=False) as manager,
    ):
        for step in range(4):
            save(manager, step)
            reported.append((len(log), step))
    rng = np.random.default_rng(2)
    for count in range(len(log) + 1):
        for number in range(4):
            shutil.rmtree(cut, ignore_errors=True)
            write_state(log.state(count, rng if number else None), cut)
            saved = max(step for at, step in reported if at <= count)
            newest = CheckpointManager(cut / "a" / "b").newest_intact()
            assert (-1 if newest is None else newest.manifest.step) >= saved
            if newest is not None:
                assert (newest.read("a") == newest.manifest.step).all()


def test_a_lock_of_a_folder_that_was_made_again_is_not_held(tmp_path):
    root = tmp_path / "root"
    with CheckpointManager(root, background=False) as first:
        save(first, 0)
        shutil.rmtree(root)
        with CheckpointManager(root, background=False) as second:
            save(second, 1)
            with pytest.raises(CheckpointError, match="another process writes checkpoints here"):
                save(first, 2)
        save(first, 3)
    assert [c.manifest.step for c in first.all()] == [1, 3]


def test_a_checkpoint_that_is_removed_while_it_is_read_is_not_damaged(tmp_path):
    with CheckpointManager(tmp_path, keep=1, background=False) as writer:
        save(writer, 0)

        def read(checkpoint):
            if writer.latest().manifest.step < 2:
                save(writer, writer.latest().manifest.step + 1)
            checkpoint.verify()

        assert CheckpointManager(tmp_path).newest_intact(read).manifest.step == 2


def test_checkpoints_without_their_base_are_not_kept_in_place_of_whole_ones(tmp_path):
    for remove in (lambda root: prune(root, 1), lambda root: save_next(root)):
        root = tmp_path / "root"
        root.mkdir()
        write(root, [None, None, 1, 2])
        shutil.rmtree(root / "ckpt-00000001-step-1")
        with pytest.warns(RuntimeWarning, match="the older ckpt-00000000-step-0 is used"):
            assert CheckpointManager(root).newest_intact().manifest.step == 0
        keeps = CheckpointManager(root, keep=1)
        keeps.keep_last()
        keeps.close()
        assert [c.manifest.step for c in keeps.all()] == [0]
        remove(root)
        assert CheckpointReader(keeps.all()[-1].folder).read("a") is not None
        shutil.rmtree(root)


def test_a_file_that_cannot_be_closed_is_an_error_of_the_checkpoint(tmp_path):
    class File:
        """A file whose close fails, as that of a network file system does on a full disk."""

        def __init__(self, file):
            self.fileno, self.write, self.really_close = file.fileno, file.write, file.close

        def close(self):
            self.really_close()
            raise OSError(28, "No space left on device")

    for commits in (False, True):
        with (  # noqa: PT012
            pytest.raises((CheckpointError, KeyError)),
            CheckpointWriter(tmp_path / "c") as writer,
        ):
            writer.add("a", "a", [np.zeros(3)])
            writer._file = File(writer._file)
            if not commits:
                raise KeyError
            writer.commit(0, 0, {})
        assert not (tmp_path / "c").exists()
