"""Checkpoints on the disk: written atomically, kept, and rejected when they are damaged."""

import contextlib
import dataclasses
import errno
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.disk import each_fault
from twml_ops.checkpoint import (
    CheckpointDamaged,
    CheckpointError,
    CheckpointManager,
    CheckpointReader,
    CheckpointWriter,
    Manifest,
)

ROOT = Path(__file__).resolve().parents[2]


@dataclasses.dataclass
class Value:
    """A value with a name, as the manager saves it."""

    name: str
    value: np.ndarray

    @property
    def label(self):
        return f"label of {self.name}"

    def view(self):
        return self.value


def values(seed=0):
    rng = np.random.default_rng(seed)
    return [
        Value("table", rng.normal(size=[100, 7]).astype(np.float32)),
        Value("empty", np.zeros([0, 3], np.int64)),
        Value("step", np.array(seed, np.int64)),
        Value("turned", rng.normal(size=[4, 6]).astype(np.float32).T),
        Value("flags", rng.normal(size=13) > 0),
    ]


def check_equal(checkpoint, expected):
    assert list(checkpoint.entries) == [v.name for v in expected]
    for v in expected:
        got = checkpoint.read(v.name)
        assert got.dtype == v.value.dtype
        np.testing.assert_array_equal(got, v.value)


@pytest.mark.parametrize("background", [False, True])
def test_what_was_saved_is_read(tmp_path, background):
    with CheckpointManager(tmp_path / "a" / "b", background=background) as manager:
        manager.save(7, values(), {"position": {"epoch": 1}})
        manager.wait()
        checkpoint = manager.latest()
    checkpoint.verify()
    check_equal(checkpoint, values())
    assert checkpoint.manifest.step == 7
    assert checkpoint.manifest.values == {"position": {"epoch": 1}}
    assert checkpoint.entries["table"].label == "label of table"


def test_the_copy_is_of_the_moment_of_save(tmp_path):
    changing = values()
    with CheckpointManager(tmp_path) as manager:
        for seed in range(3):
            for mine, new in zip(changing, values(seed), strict=True):
                mine.value[...] = new.value
            manager.save(seed, changing, {})
            for mine in changing:
                mine.value[...] = 0
    check_equal(manager.all()[0], values(0))
    check_equal(manager.all()[2], values(2))


def test_the_last_ones_are_kept(tmp_path):
    with CheckpointManager(tmp_path, keep=2) as manager:
        for step in (5, 10, 15, 20):
            manager.save(step, values(step), {})
    assert [c.manifest.step for c in manager.all()] == [15, 20]
    check_equal(manager.latest(), values(20))


def test_a_new_manager_continues_the_numbers(tmp_path):
    for step in (30, 20, 10):  # the number decides, not the step
        with CheckpointManager(tmp_path) as manager:
            manager.save(step, values(), {})
    assert [c.manifest.step for c in manager.all()] == [30, 20, 10]
    assert [c.manifest.sequence for c in manager.all()] == [0, 1, 2]


def test_a_checkpoint_that_others_need_is_kept(tmp_path):
    for number, base in enumerate([None, "ckpt-00000000-step-0", None]):
        with CheckpointWriter(tmp_path / f"ckpt-{number:08d}-step-0") as writer:
            writer.commit(number, 0, {}, base)
    with CheckpointManager(tmp_path, keep=3) as manager:
        manager.save(0, values(), {})
    assert [c.manifest.sequence for c in manager.all()] == [0, 1, 2, 3]
    with CheckpointManager(tmp_path, keep=2) as manager:
        manager.save(0, values(), {})
    assert [c.manifest.sequence for c in manager.all()] == [3, 4]


def test_a_fault_while_old_checkpoints_are_removed_leaves_the_kept_ones_whole(tmp_path):
    root = tmp_path / "root"
    bases = [None, None, "ckpt-00000001-step-1", "ckpt-00000002-step-2"]

    def prepare(root):
        for step, base in enumerate(bases):
            with CheckpointWriter(root / f"ckpt-{step:08d}-step-{step}") as writer:
                writer.add(f"a{step}", "a", [np.arange(3.0)])
                writer.commit(step, step, {}, base)

    def work():
        with CheckpointManager(root, keep=1) as manager:
            manager.keep_last()

    for disk, raised in each_fault(work, prepare, root):
        assert raised is None or isinstance(raised, (CheckpointError, OSError)), disk.what
        found = CheckpointManager(root).all()
        assert [c.manifest.step for c in found][-3:] == [1, 2, 3], disk.what
        for each in found:
            each.verify()


def test_a_base_that_was_deleted_does_not_keep_older_checkpoints(tmp_path):
    for number, base in enumerate([None, None, "ckpt-00000001-step-0", None, None]):
        with CheckpointWriter(tmp_path / f"ckpt-{number:08d}-step-0") as writer:
            writer.commit(number, 0, {}, base)
    shutil.rmtree(tmp_path / "ckpt-00000001-step-0")
    with CheckpointManager(tmp_path, keep=2) as manager:
        manager.keep_last()
    assert [c.manifest.sequence for c in manager.all()] == [3, 4]


def test_an_incomplete_checkpoint_is_none_and_is_removed(tmp_path):
    with CheckpointManager(tmp_path) as manager:
        manager.save(1, values(), {})
    partial = tmp_path / "ckpt-00000001-step-2"
    partial.mkdir()
    (partial / "data-00000").write_bytes(b"some")
    (tmp_path / "notes.txt").write_text("not a checkpoint")
    (tmp_path / "ckpt-x").mkdir()
    assert manager.latest().manifest.step == 1
    with CheckpointManager(tmp_path) as manager:
        manager.save(3, values(), {})
    assert not partial.exists()
    assert {p.name for p in tmp_path.iterdir()} >= {"notes.txt", "ckpt-x"}
    assert [c.manifest.step for c in manager.all()] == [1, 3]


def saved(folder):
    with CheckpointManager(folder) as manager:
        manager.save(1, values(), {"a": [1, None, "x"]})
    return manager.latest().folder


def test_every_changed_byte_of_the_data_is_found(tmp_path):
    folder = saved(tmp_path)
    data = folder / "data-00000"
    whole = data.read_bytes()
    entries = CheckpointReader(folder).entries.values()
    used = [i for e in entries for i in range(e.offset, e.offset + e.bytes)]
    for i in used[:: max(1, len(used) // 50)]:
        changed = bytearray(whole)
        changed[i] ^= 1 << i % 8
        data.write_bytes(changed)
        with pytest.raises(CheckpointError, match=f"{data}.* is damaged: its checksum differs"):
            CheckpointReader(folder).verify()
    data.write_bytes(whole[:-1])
    with pytest.raises(CheckpointError, match="1 bytes too short"):
        CheckpointReader(folder).verify()
    data.unlink()
    with pytest.raises(CheckpointError, match="damaged: No such file"):
        CheckpointReader(folder).read("table")


def test_a_manifest_cut_or_changed_anywhere_is_rejected(tmp_path):
    path = saved(tmp_path) / "manifest.json"
    whole = path.read_bytes()
    rng = np.random.default_rng(0)
    for _ in range(300):
        cut = int(rng.integers(len(whole)))
        path.write_bytes(whole[:cut])
        assert CheckpointManager(tmp_path).latest() is None
        changed = bytearray(whole)
        changed[cut] ^= 1 << int(rng.integers(8))
        path.write_bytes(changed)
        with contextlib.suppress(CheckpointError):  # a change of white space changes nothing
            assert Manifest.read(path.parent) == original(whole, tmp_path)


def original(whole, tmp_path):
    folder = tmp_path / "original"
    folder.mkdir(exist_ok=True)
    (folder / "manifest.json").write_bytes(whole)
    return Manifest.read(folder)


@pytest.mark.parametrize(
    ("where", "value", "message"),
    [
        (("version",), 99, "version 99, and this version of twml_ops reads .* up to version 1"),
        (("format",), "other", "format 'other'"),
        (("entries",), None, "no manifest"),
        (("entries", 0, "file"), "../../etc/passwd", "plain name"),
        (("entries", 0, "offset"), -1, "at least 0"),
        (("entries", 0, "bytes"), 1 << 60, "bytes are not float32"),
        (("entries", 0, "dtype"), "float33", "unknown type"),
        (("entries", 0, "shape"), [1, "x"], "no manifest"),
        (("entries", 0, "details"), 3, "details must be an object"),
        (("entries", 0, "details"), {"data_bytes": "9"}, "at least 0"),
        (("step",), "5", "step must be"),
        (("values",), [1], "values must be"),
        (("base",), 1, "base must be"),
        (("unknown",), 1, "unexpected keyword"),
    ],
)
def test_a_manifest_with_wrong_fields_is_rejected(tmp_path, where, value, message):
    path = saved(tmp_path) / "manifest.json"
    content = json.loads(path.read_text())["content"]
    inner = content
    for key in where[:-1]:
        inner = inner[key]
    inner[where[-1]] = value
    text = json.dumps(content, sort_keys=True, separators=(",", ":")).encode()
    from twml_ops.checkpoint.manifest import checksum

    path.write_text(json.dumps({"checksum": checksum(text), "content": content}))
    with pytest.raises(CheckpointError, match=message):
        Manifest.read(path.parent)


def test_an_unknown_encoding_is_named(tmp_path):
    with CheckpointWriter(tmp_path / "c") as writer:
        piece = np.zeros(3, np.uint8)
        writer.add("t", "table", [piece], dtype="float32", shape=[4, 2], encoding="later")
        writer.commit(0, 0, {})
    with pytest.raises(CheckpointError, match="table has the encoding 'later'"):
        CheckpointReader(tmp_path / "c").read("t")


def damage(folder, name="data-00000"):
    content = bytearray((folder / name).read_bytes())
    content[len(content) // 2] ^= 1
    (folder / name).write_bytes(content)


def test_the_older_checkpoint_is_used_where_the_newest_is_damaged_in_any_file(tmp_path):
    for name in ("data-00000", "manifest.json"):
        folder = tmp_path / name
        with CheckpointManager(folder, background=False) as manager:
            for step in (1, 2):
                manager.save(step, values(), {})
        damage(manager.all()[-1].folder, name)
        said = []
        with CheckpointManager(folder, keep=1, background=False) as manager:
            assert manager.newest_intact(warn=said.append).manifest.step == 1
            assert "is damaged" in said[0]
            assert said[0].endswith("the older ckpt-00000000-step-1 is used instead")
            manager.save(3, values(), {})
            assert [c.manifest.step for c in manager.all()] == [3]  # not 2, which is no use


def test_a_folder_whose_checkpoints_are_all_damaged_is_not_one_without_checkpoints(tmp_path):
    for name in ("data-00000", "manifest.json"):
        path = saved(tmp_path / name)
        damage(path, name)
        manager = CheckpointManager(path.parent)
        assert not manager.is_empty
        with pytest.raises(CheckpointDamaged, match="none of its checkpoints can be used"):
            manager.newest_intact()


def test_json_that_is_no_manifest_is_an_error_that_names_it(tmp_path):
    path = saved(tmp_path)
    for text in ("{}", "[]", "null", "[" * 100_000 + "]" * 100_000):
        (path / "manifest.json").write_text(text)
        with pytest.raises(CheckpointError, match="manifest.json: is no manifest of a checkpoint"):
            CheckpointManager(path.parent).newest_intact()


def test_a_checkpoint_whose_base_is_damaged_is_damaged(tmp_path):
    for step in (0, 1, 2):
        with CheckpointWriter(tmp_path / f"ckpt-{step:08d}-step-{step}") as writer:
            writer.add("a", "a", [np.arange(3.0)])
            writer.commit(step, step, {}, "ckpt-00000001-step-1" if step == 2 else None)
    damage(tmp_path / "ckpt-00000001-step-1")
    with pytest.warns(RuntimeWarning, match="the older ckpt-00000000-step-0 is used"):
        assert CheckpointManager(tmp_path).newest_intact().manifest.step == 0


def test_checkpoints_in_a_file_system_of_tensorflow_are_like_those_in_a_folder(tmp_path):
    address = f"ram://{tmp_path.name}/checkpoints"
    with CheckpointManager(address, keep=2, background=False) as manager:
        for step in (1, 2, 3):
            manager.save(step, values(), {"step": step})
        assert [c.manifest.step for c in manager.all()] == [2, 3]
        check_equal(manager.newest_intact(), values())
        manager.remove_all()
    assert CheckpointManager(address).is_empty


def test_two_writers_do_not_share_a_folder(tmp_path):
    with CheckpointManager(tmp_path) as manager:
        manager.save(1, values(), {})
        with pytest.raises(CheckpointError, match="another process writes checkpoints here"):
            CheckpointManager(tmp_path).save(2, values(), {})
    CheckpointManager(tmp_path).save(2, values(), {})


@pytest.mark.parametrize("fails", [False, True])
def test_a_writer_whose_folder_was_replaced_leaves_the_other_one_as_it_is(tmp_path, fails):
    """As a process that was stopped while the folder was deleted and used by another one."""
    folder = tmp_path / "c"

    def write(writer, sequence):
        writer.add("w", "w", [np.zeros(3)])
        shutil.rmtree(folder)
        with CheckpointManager(folder, background=False) as other:
            other.save(1, values(), {})
        if fails:
            raise KeyboardInterrupt
        return writer.commit(sequence, 1, {})

    manager = CheckpointManager(folder, background=False)
    with pytest.raises(KeyboardInterrupt if fails else CheckpointError, match="|deleted"):
        manager.add(write, 1)
    (left,) = CheckpointManager(folder).all()
    left.verify()
    check_equal(left, values())


def test_a_file_system_without_atomic_rename_works(tmp_path, monkeypatch):
    def replace(source, target):
        raise OSError(errno.ENOTSUP, "Operation not supported")

    monkeypatch.setattr(os, "replace", replace)
    with CheckpointManager(tmp_path) as manager:
        manager.save(1, values(), {})
    check_equal(manager.latest(), values())
    assert sorted(p.name for p in manager.latest().folder.iterdir()) == [
        "data-00000",
        "manifest.json",
    ]


def run_limited(code, folder):
    """Runs code in a process whose files can have at most 100 KB."""

    def limit():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))

    return subprocess.run(
        [sys.executable, "-c", code, str(folder)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        preexec_fn=limit,
        capture_output=True,
        text=True,
    )


@pytest.mark.one_tf
@pytest.mark.parametrize("background", [False, True])
def test_a_full_disk_leaves_the_previous_checkpoint(tmp_path, background):
    code = f"""
import sys, numpy as np
from tests.checkpoint.test_manager import Value, values
from twml_ops.checkpoint import CheckpointError, CheckpointManager
manager = CheckpointManager(sys.argv[1], background={background})
manager.save(1, values(), {{}})
manager.wait()
for step in (2, 3):
    try:
        manager.save(step, [Value("large", np.ones(1 << 20))], {{}})
        manager.wait()
    except CheckpointError as e:
        print(e)
print([c.manifest.step for c in manager.all()])
manager.save(4, values(), {{}})
manager.close()
print([c.manifest.step for c in manager.all()])
"""
    result = run_limited(code, tmp_path)
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    for line in lines[:2]:
        assert "cannot be written: File too large; earlier checkpoints are unchanged" in line
    assert lines[2:] == ["[1]", "[1, 4]"]
    assert len(list(tmp_path.glob("ckpt-*"))) == 2
    check_equal(CheckpointManager(tmp_path).latest(), values())


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 256 KB, and a function that makes it read-only."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = shutil.which("mount")
    if os.geteuid() != 0 or mount is None:
        pytest.skip("only root can mount a file system")
    made = subprocess.run([mount, "-t", "tmpfs", "-o", "size=256k", "tmpfs", folder], check=False)
    if made.returncode:
        pytest.skip("no file system can be mounted here")

    def make_read_only():
        subprocess.run([mount, "-o", "remount,ro", folder], check=True)

    yield folder, make_read_only
    subprocess.run(["umount", folder], check=True)


def test_a_disk_that_is_full_or_read_only_leaves_the_previous_checkpoint(small_disk):
    folder, make_read_only = small_disk
    with CheckpointManager(folder) as manager:
        manager.save(1, values(), {})
        manager.save(2, [Value("large", np.ones(1 << 17))], {})
        with pytest.raises(CheckpointError, match="No space left on device; earlier checkpoints"):
            manager.wait()
        manager.save(3, values(), {})
    make_read_only()
    with pytest.raises(CheckpointError, match="Read-only file system"):
        CheckpointManager(folder).save(4, values(), {})
    assert [c.manifest.step for c in CheckpointManager(folder).all()] == [1, 3]
    check_equal(CheckpointManager(folder).latest(), values())


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    manager = CheckpointManager(tmp_path / "file" / "ckpt")
    with pytest.raises(CheckpointError, match="file/ckpt: no checkpoints can be written here"):
        manager.save(1, values(), {})
    if os.geteuid() != 0:
        tmp_path.chmod(0o500)
        with pytest.raises(CheckpointError, match="Permission denied"):
            CheckpointManager(tmp_path / "new").save(1, values(), {})
        tmp_path.chmod(0o700)


def test_all_checkpoints_can_be_removed(tmp_path):
    folder = tmp_path / "ckpt"
    with CheckpointManager(folder) as manager:
        manager.save(1, values(), {})
        manager.remove_all()
    assert not folder.exists()
    manager.remove_all()


def test_keep_is_checked():
    with pytest.raises(ValueError, match="keep must be at least 1, got 0"):
        CheckpointManager("x", keep=0)
