"""The folder of a run is complete or does not exist, and files of the user are never deleted."""

import json
import math

import pytest

from twml_ops.training.config import FORMAT
from twml_ops.training.errors import UserError
from twml_ops.training.run_folder import is_run, new_file, new_folder, read_run, write_json


def finish(folder):
    write_json(folder / "run.json", {"twml_ops_run": FORMAT})


def entries(folder):
    return sorted(p.name for p in folder.iterdir())


def test_folder_appears_only_when_finished(tmp_path):
    out = tmp_path / "deep" / "run"
    with new_folder(out) as folder:
        (folder / "x").write_text("1")
        finish(folder)
        assert not out.exists()
        assert folder.parent == out.parent  # the same file system, so the renaming is atomic
    assert is_run(out)
    assert entries(out.parent) == ["run"]


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, SystemExit])
def test_failure_leaves_nothing(tmp_path, error):
    def fail():
        with new_folder(tmp_path / "run") as folder:
            finish(folder)
            raise error

    with pytest.raises(error):
        fail()
    assert entries(tmp_path) == []


def test_finished_run_is_replaced_only_on_request(tmp_path):
    out = tmp_path / "run"
    with new_folder(out) as folder:
        (folder / "old").touch()
        finish(folder)
    with pytest.raises(UserError, match="--overwrite"), new_folder(out):
        pass
    with new_folder(out, overwrite=True) as folder:
        finish(folder)
    assert entries(out) == ["run.json"]
    assert entries(tmp_path) == ["run"]


def test_failed_replacement_keeps_the_old_run(tmp_path):
    out = tmp_path / "run"
    with new_folder(out) as folder:
        finish(folder)
    with pytest.raises(RuntimeError), new_folder(out, overwrite=True):
        raise RuntimeError
    assert is_run(out)
    assert entries(tmp_path) == ["run"]


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_folder_that_is_not_a_run_is_never_replaced(tmp_path, overwrite):
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.txt").write_text("x")
    (tmp_path / "file").write_text("x")
    for out in (mine, tmp_path / "file"):
        with pytest.raises(UserError, match="not a finished run"), new_folder(out, overwrite):
            pass
    assert (mine / "thesis.txt").read_text() == "x"


def test_empty_folder_is_used(tmp_path):
    out = tmp_path / "run"
    out.mkdir()
    with new_folder(out) as folder:
        finish(folder)
    assert is_run(out)


def test_a_folder_with_an_invalid_run_file_is_not_a_run(tmp_path):
    for text in ("", "{", "[" * 100_000, "[]", "{}", '{"twml_ops_run": 99}', '"twml_ops_run"'):
        (tmp_path / "run.json").write_text(text)
        assert not is_run(tmp_path)
        with pytest.raises(UserError, match="not a finished run"):
            read_run(tmp_path)


def test_parent_that_is_a_file_is_one_clear_error(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="cannot be written"), new_folder(tmp_path / "file" / "run"):
        pass


def test_file_appears_only_when_finished(tmp_path):
    out = tmp_path / "p.txt"
    with pytest.raises(RuntimeError), new_file(out):
        raise RuntimeError
    assert entries(tmp_path) == []
    with new_file(out) as path:
        path.write_text("1")
        assert not out.exists()
    assert out.read_text() == "1"


def test_nan_and_infinity_are_null_in_json(tmp_path):
    value = {"a": math.nan, "b": [1.5, math.inf], "c": {"d": -math.inf}, "e": "x"}
    write_json(tmp_path / "v.json", value)
    got = json.loads((tmp_path / "v.json").read_text(), parse_constant=pytest.fail)
    assert got == {"a": None, "b": [1.5, None], "c": {"d": None}, "e": "x"}
