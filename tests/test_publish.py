"""What is published appears whole, nothing of anybody else is lost, and no finished work is."""

import os
import stat
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.small_files import small_files
from twml_ops._publish import (
    TargetError,
    exclusive,
    files_in,
    new_file,
    new_folder,
    write_file,
)


def entries(folder):
    return sorted(path.name for path in folder.iterdir())


def listed(folder):
    """The files that the program wrote: those whose names begin with "our"."""
    return [name for name in files_in(folder) if name.startswith("our")]


def a_note(folder):
    folder.mkdir(exist_ok=True)
    (folder / "notes.txt").write_text("mine")


def publish(out, content="new", overwrite=False, **options):
    with new_folder(out, overwrite, written=listed, last="our-mark", **options) as made:
        (made / "our-data").write_text(content)
        (made / "our-mark").write_text(content)


@pytest.mark.parametrize("uri", ["s3://bucket/run", "gs://bucket/run", "s3:/bucket/run"])
@pytest.mark.parametrize("target", [new_file, lambda out: new_folder(out, written=listed)])
def test_a_uri_is_no_target_and_no_folder_is_made_of_it(uri, target, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for out in (uri, Path(uri)):
        with pytest.raises(TargetError, match="://bucket/run: outputs are written on this machine"):
            target(out).__enter__()
    assert entries(tmp_path) == []


def test_a_file_that_cannot_be_written_leaves_the_one_before_and_nothing_else(tmp_path):
    write_file(tmp_path / "a.json", b"first")
    with small_files(100), pytest.raises(OSError, match="too large"):
        write_file(tmp_path / "a.json", b"second" * 100)
    assert (tmp_path / "a.json").read_bytes() == b"first"
    assert entries(tmp_path) == ["a.json"]


def test_a_file_is_replaced_on_request_and_keeps_its_permissions(tmp_path):
    out = tmp_path / "a.txt"
    with new_file(out) as part:
        part.write_text("first")
    out.chmod(0o640)
    with pytest.raises(TargetError, match="exists") as refused, new_file(out):
        pass
    assert refused.value.replaceable
    with new_file(out, overwrite=True) as part:
        part.write_text("second")
        assert out.read_text() == "first"
    assert (out.read_text(), stat.S_IMODE(out.stat().st_mode)) == ("second", 0o640)
    assert entries(tmp_path) == ["a.txt"]


@pytest.mark.parametrize("dangling", [False, True])
def test_a_link_stays_and_what_it_names_is_written(tmp_path, dangling):
    (tmp_path / "there").mkdir()
    link, file = tmp_path / "link", tmp_path / "there" / "file"
    link.symlink_to("there/file")
    if not dangling:
        file.write_text("old")
    with new_file(link, overwrite=not dangling) as part:
        part.write_text("new")
    assert link.is_symlink()
    assert file.read_text() == "new"
    folder = tmp_path / "folder"
    folder.symlink_to("there/empty", target_is_directory=True)
    if not dangling:
        (tmp_path / "there" / "empty").mkdir()
    publish(folder)
    assert folder.is_symlink()
    assert entries(tmp_path / "there") == ["empty", "file"]
    assert entries(folder) == ["our-data", "our-mark"]


@pytest.mark.parametrize("kind", ["fifo", "link", "/dev/null"])
def test_a_stream_gets_the_content_and_stays(tmp_path, kind):
    link, fifo = tmp_path / "out.txt", tmp_path / "fifo"
    os.mkfifo(fifo)
    link.symlink_to(fifo)
    out = {"fifo": fifo, "link": link, "/dev/null": Path("/dev/null")}[kind]
    mode = out.lstat().st_mode
    with pytest.raises(TargetError, match="no process reads"), new_file(fifo):
        pass
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    try:
        with new_file(out) as part:
            part.write_text("0.5")
        assert os.read(reader, 10) == (b"" if kind == "/dev/null" else b"0.5")
    finally:
        os.close(reader)
    assert out.lstat().st_mode == mode


def test_the_standard_output_is_appended_to_whatever_it_is(tmp_path):
    code = "from twml_ops._publish import new_file\n" + (
        "print('first')\nwith new_file('/dev/stdout') as part: part.write_text('second')"
    )
    log = tmp_path / "log"
    with log.open("w") as file:
        subprocess.run([sys.executable, "-c", code], stdout=file, check=True)
    assert log.read_text() == "first\nsecond"


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_what_appears_meanwhile_stays_and_the_result_is_kept(tmp_path, kind):
    out = tmp_path / "out"

    def write():
        if kind == "file":
            with new_file(out) as part:
                part.write_text("new")
                out.write_text("mine")
        else:
            with new_folder(out, written=listed) as made:
                (made / "our-data").write_text("new")
                a_note(out)

    with pytest.raises(TargetError, match="the result is kept in") as refused:
        write()
    kept = refused.value.kept
    mine, new = (out, kept) if kind == "file" else (out / "notes.txt", kept / "our-data")
    assert (mine.read_text(), new.read_text()) == ("mine", "new")
    assert entries(tmp_path) == ["out", "out.kept-1"]


def test_a_file_that_appears_in_what_is_replaced_stays_and_the_result_is_kept(tmp_path):
    out = tmp_path / "out"
    publish(out, "old")

    def write():
        with new_folder(out, overwrite=True, written=listed) as made:
            (made / "our-data").write_text("new")
            a_note(out)

    with pytest.raises(TargetError, match=r"notes\.txt.*the result is kept in"):
        write()
    assert files_in(out) == ["notes.txt", "our-data", "our-mark"]
    assert (out / "our-data").read_text() == "old"
    assert (tmp_path / "out.kept-1" / "our-data").read_text() == "new"


def test_the_second_of_two_at_once_is_refused_and_loses_nothing(tmp_path):
    for out, other in ((tmp_path / "a", new_folder), (tmp_path / "b", new_file)):
        with (
            pytest.raises(TargetError, match="another process is writing it"),
            other(out),
            other(out),
        ):
            pass
    assert entries(tmp_path) == []
    publish(tmp_path / "a")  # the lock has ended
    assert entries(tmp_path) == ["a"]


def test_a_lock_whose_file_is_removed_is_no_lock_of_the_next_one(tmp_path):
    path = tmp_path / ".lock"
    with exclusive(path, remove=True) as first, exclusive(path) as second:
        assert (first, second) == (True, False)
    with exclusive(path) as first, exclusive(path, remove=True) as second:
        assert (first, second) == (True, False)
    assert path.exists()  # it was the lock of the first


def test_work_that_is_worth_it_survives_the_failure_of_what_follows(tmp_path):
    told = []

    def fail(error):
        with new_folder(
            tmp_path / "out",
            is_kept=lambda made: (made / "our-data").exists(),
            on_kept=told.append,
        ) as made:
            (made / "our-data").write_text("hours")
            raise error

    for error in (RuntimeError(), KeyboardInterrupt(), SystemExit()):
        with pytest.raises(type(error)):
            fail(error)
    assert told == [tmp_path / f"out.kept-{i}" for i in (1, 2, 3)]
    assert all((kept / "our-data").read_text() == "hours" for kept in told)
    with pytest.raises(ZeroDivisionError), new_folder(tmp_path / "deep" / "out"):
        1 / 0  # noqa: B018
    assert entries(tmp_path) == ["out.kept-1", "out.kept-2", "out.kept-3"]


def test_a_folder_in_which_the_shell_is_stays_the_same_folder(tmp_path, monkeypatch):
    out = tmp_path / "out"
    out.mkdir(0o750)
    monkeypatch.chdir(out)
    publish(".")
    publish(".", "again", overwrite=True)
    assert sorted(os.listdir()) == ["our-data", "our-mark"]
    assert (out / "our-mark").read_text() == "again"
    assert entries(tmp_path) == ["out"]


def test_a_file_that_is_filled_in_stays_whole_if_another_one_is_in_the_way(tmp_path, monkeypatch):
    out = tmp_path / "out"
    out.mkdir()
    monkeypatch.chdir(out)

    def write():
        with new_folder(out, written=listed, last="our-mark") as made:
            (made / "our-data").write_text("new")
            (made / "our-mark").write_text("new")
            a_note(out)

    with pytest.raises(TargetError, match="the result is kept in"):
        write()
    assert files_in(out) == ["notes.txt", "out.kept-1/our-data", "out.kept-1/our-mark"]


MOUNTS = """
    import errno, os, subprocess, sys
    from pathlib import Path
    from twml_ops import _publish
    from tests.test_publish import listed, publish

    root = Path(sys.argv[1])
    out, bound = root / "out", root / "bound"
    for path in (out, bound, root / "source"):
        path.mkdir()
    for mount in (["-t", "tmpfs", "none", out], ["--bind", root / "source", bound]):
        if subprocess.run(["mount", *mount], capture_output=True).returncode:
            sys.exit(77)
    for path in (out, bound):
        publish(path)
        publish(path, "again", overwrite=True)
        assert _publish.files_in(path) == ["our-data", "our-mark"], _publish.files_in(path)
        assert (path / "our-mark").read_text() == "again"
    assert sorted(p.name for p in root.iterdir()) == ["bound", "out", "source"]

    small = root / "small"
    small.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", small]).returncode:
        sys.exit(77)
    with _publish.new_file(small / "before") as part:
        part.write_text("before")
    try:
        with _publish.new_file(small / "before", overwrite=True) as part:
            part.write_bytes(bytes(1 << 20))
    except OSError as error:
        assert error.errno == errno.ENOSPC
    else:
        raise AssertionError("the disk is full")
    assert _publish.files_in(small) == ["before"]
    assert (small / "before").read_text() == "before"
    subprocess.run(["mount", "-o", "remount,ro", small], check=True)
    for publish in (_publish.new_file, _publish.new_folder):
        try:
            with publish(small / "new"):
                raise AssertionError("the work must not begin")
        except _publish.TargetError as error:
            assert "cannot be written" in str(error)
"""


def test_mounts_are_filled_and_full_or_read_only_disks_are_named(tmp_path):
    code = textwrap.dedent(MOUNTS)
    try:
        done = subprocess.run(
            ["unshare", "-rm", sys.executable, "-c", code, str(tmp_path)],
            capture_output=True,
            text=True,
            check=False,
        )
    except FileNotFoundError:
        pytest.skip("there is no unshare")
    if done.returncode == 77 or "unshare" in done.stderr:
        pytest.skip("mounts are not allowed here")
    assert done.returncode == 0, done.stderr
