"""No command destroys what it did not write: all options with an output, all kinds of targets."""

import hashlib
import json
import os
import socket
import stat
from pathlib import Path
from typing import get_args, get_type_hints

import pytest

from twml_ops._publish import exclusive
from twml_ops.cli import main
from twml_ops.cli.app import app
from twml_ops.training.config import FORMAT
from twml_ops.training.run_folder import new_folder, write_json

# Parameters with a path that are read, or that name a folder of which a command removes only what
# it wrote: --storage has files with locks of their own, checkpoints are named one by one.
NO_OUTPUTS = {
    *(
        "run",
        "config",
        "from_run",
        "storage",
        "folder",
        "base",
        "costs",
        "models",
        "publish",
        "tables",
        "warmup",
    ),
}
# The shortest valid command line before the output. {run} is a folder with run.json.
FILES = {
    ("predict", "out"): ["predict", "{run}", "--data", "csv:no.csv", "--out"],
    ("explain", "out"): ["explain", "{run}", "--out"],
    ("learn-hash", "out"): ["learn-hash", "--data", "csv:no.csv", "--out"],
    ("tune", "out"): ["tune", "--data", "csv:no.csv", "--model", "dcn", "--out"],
    ("search", "out"): ["search", "--data", "csv:no.csv", "--out"],
    ("plan", "out"): ["plan", "--table", "64x2", "--out"],
    ("plan", "out_costs"): ["plan", "--table", "64x2", "--measure", "--out-costs"],
    ("plan", "out_plan"): ["plan", "--tables", "{run}/../tables.json", "--out-plan"],
    ("tables", "out"): ["tables", "csv:no.csv", "--out"],
}
FOLDERS = {
    ("train", "out"): ["train", "--data", "csv:no.csv", "--out"],
    ("calibrate", "out"): ["calibrate", "{run}", "--out"],
    ("export", "out"): ["export", "{run}"],
}
OUTPUTS = FILES | FOLDERS
REPLACES = [key for key in OUTPUTS if key[0] != "export"]


def parameters(group, path=()):
    """(the words of a command, a parameter of it, its type), for all commands."""
    for command in group.registered_commands:
        name = command.name or command.callback.__name__.replace("_", "-")
        for parameter, kind in get_type_hints(command.callback).items():
            yield " ".join((*path, name)), parameter, kind
    for sub in group.registered_groups:
        yield from parameters(sub.typer_instance, (*path, sub.typer_instance.info.name))


def test_every_option_with_a_path_is_known():
    """A new command that writes is added to the list above, and so to the laws below."""
    found = {
        (command, parameter)
        for command, parameter, kind in parameters(app)
        if Path in (kind, *get_args(kind)) and parameter not in NO_OUTPUTS
    }
    assert found == set(OUTPUTS)


def state(folder):
    """Kind, permissions and content of everything in a folder, without what a lock leaves."""
    found = {}
    for path in sorted(folder.rglob("*")):
        mode = path.lstat().st_mode
        content = os.readlink(path) if stat.S_ISLNK(mode) else ""
        if stat.S_ISREG(mode):
            content = hashlib.sha256(path.read_bytes()).hexdigest()
        found[str(path.relative_to(folder))] = (mode, content)
    return found


def a_file(path):
    path.write_text("mine")


def a_folder(path):
    path.mkdir()
    (path / "notes.txt").write_text("mine")


def a_link_to_a_file(path):
    path.with_name("other.txt").write_text("mine")
    path.symlink_to(path.with_name("other.txt"))


def a_link_to_a_folder(path):
    a_folder(path.with_name("other"))
    path.symlink_to(path.with_name("other"))


def a_socket(path):
    folder = os.open(path.parent, os.O_RDONLY)  # the path itself may be too long for an address
    try:
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind(f"/proc/self/fd/{folder}/{path.name}")
    finally:
        os.close(folder)


def a_path_below_a_file(path):
    path.parent.rmdir()
    path.parent.write_text("mine")


def a_run(folder):
    with new_folder(folder) as made:
        write_json(made / "run.json", {"twml_ops_run": FORMAT})


def refused(key, out, tmp_path, capsys, *options):
    """The message of a command that must fail and change nothing."""
    before = state(tmp_path)
    with pytest.raises(SystemExit) as end:
        main([a.format(run=tmp_path / "run") for a in OUTPUTS[key]] + [str(out), *options])
    assert end.value.code == 1
    assert state(tmp_path) == before
    (line,) = capsys.readouterr().err.splitlines()
    assert str(out) in line
    return line


@pytest.fixture
def place(tmp_path):
    a_run(tmp_path / "run")
    tables = [{"name": "a", "rows": 64, "units": 2}]
    (tmp_path / "tables.json").write_text(json.dumps({"tables": tables}))
    (tmp_path / "here").mkdir()
    return tmp_path / "here"


def target(place, key):
    return place / ("out.png" if key[0] in ("plan", "tables") else "out")


@pytest.mark.parametrize("make", [a_file, a_link_to_a_file, a_folder, a_link_to_a_folder, a_socket])
@pytest.mark.parametrize("key", OUTPUTS, ids=" ".join)
def test_what_exists_is_not_touched(key, make, place, tmp_path, capsys):
    out = target(place, key)
    make(out)
    message = refused(key, out, tmp_path, capsys)
    may_replace = key in FILES and make in (a_file, a_link_to_a_file)
    assert ("--overwrite" in message) == may_replace


@pytest.mark.parametrize("make", [a_folder, a_link_to_a_folder, a_socket])
@pytest.mark.parametrize("key", REPLACES, ids=" ".join)
def test_what_is_no_output_is_not_replaced_on_request_either(key, make, place, tmp_path, capsys):
    out = target(place, key)
    make(out)
    refused(key, out, tmp_path, capsys, "--overwrite")


@pytest.mark.parametrize("key", [key for key in FOLDERS if key in REPLACES], ids=" ".join)
@pytest.mark.parametrize("name", ["notes.txt", "saved_model/notes.txt", "link"])
def test_a_run_with_a_file_of_the_user_is_not_replaced(key, name, place, tmp_path, capsys):
    a_run(place / "out")
    file = place / "out" / name
    file.parent.mkdir(exist_ok=True)
    if name == "link":
        file.symlink_to(tmp_path / "run")
    else:
        file.write_text("mine")
    assert name in refused(key, place / "out", tmp_path, capsys, "--overwrite")


@pytest.mark.parametrize("key", OUTPUTS, ids=" ".join)
def test_a_place_that_cannot_be_written_is_named_before_the_work(key, place, tmp_path, capsys):
    out = target(place, key)
    a_path_below_a_file(out)
    assert "cannot be written" in refused(key, out, tmp_path, capsys)


@pytest.mark.parametrize("key", OUTPUTS, ids=" ".join)
def test_two_processes_do_not_write_one_output(key, place, tmp_path, capsys):
    out = target(place, key)
    with exclusive(out.with_name(f".{out.name}.lock")) as alone:  # as another process has it
        assert alone
        assert "another process is writing it" in refused(key, out, tmp_path, capsys)


@pytest.mark.parametrize("key", FILES, ids=" ".join)
def test_a_fifo_without_a_reader_is_refused_and_stays(key, place, tmp_path, capsys):
    out = target(place, key)
    os.mkfifo(out)
    assert "no process reads" in refused(key, out, tmp_path, capsys)


def test_a_run_is_replaced_with_all_of_its_files_and_nothing_else(place):
    out = place / "out"
    with new_folder(out) as made:
        (made / "tensorboard").mkdir()
        (made / "tensorboard" / "events.out.tfevents.17.host.1").write_text("1")
        write_json(made / "run.json", {"twml_ops_run": FORMAT})
    assert json.loads((out / "run.json").read_text())["files"] == [
        "run.json",
        "tensorboard/events.out.tfevents.*",
    ]
    with new_folder(out, overwrite=True) as made:
        write_json(made / "run.json", {"twml_ops_run": FORMAT, "again": 1})
    assert [p.name for p in out.iterdir()] == ["run.json"]
    assert [p.name for p in place.iterdir()] == ["out"]
