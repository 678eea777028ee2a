"""A training that is stopped as a process, and what others may do to its files meanwhile."""

import os
import shutil
import signal
import subprocess
import sys

import pytest

from tests.training.test_checkpoints import (
    MODEL,
    OPTIONS,
    check_equal,
    libsvm,
    run_here,
    undisturbed,
)
from twml_ops.cli import main

__all__ = ["libsvm", "undisturbed"]
pytestmark = [pytest.mark.slow, pytest.mark.one_tf, pytest.mark.usefixtures("bare_runs")]


def start(libsvm, out, *options):
    """A command that stops itself in its second training, which has checkpoints; it has stopped."""
    code = "import sys; from twml_ops.cli import main; main(sys.argv[1:])"
    arguments = ["--data", libsvm, "--out", str(out), *OPTIONS, "--model", f"{MODEL}:build"]
    process = subprocess.Popen(
        [sys.executable, "-c", code, "train", *arguments, "--checkpoint-every", "3", *options],
        env={**os.environ, "SIGNALS": "62:SIGSTOP", "PYTHONPATH": str(MODEL.parents[2])},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    _, status = os.waitpid(process.pid, os.WUNTRACED)
    if not os.WIFSTOPPED(status):
        pytest.fail(process.stdout.read())
    return process


def resume(process):
    """The status and the output of the training, which goes on to its end."""
    os.kill(process.pid, signal.SIGCONT)
    output, _ = process.communicate()
    return process.returncode, output


def content(folder):
    return {p: p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def refused(capsys, *words):
    with pytest.raises(SystemExit) as ended:
        main(list(words))
    assert ended.value.code == 1
    return capsys.readouterr().err


def test_what_others_try_while_a_training_is_stopped_is_refused(
    libsvm, tmp_path, undisturbed, capsys
):
    out = tmp_path / "run"
    process = start(libsvm, out)
    saved = tmp_path / "run.checkpoints"
    before = content(saved)
    assert before
    for options in ([], ["--resume"], ["--overwrite"]):
        status, errors = run_here(libsvm, out, "", *options)
        assert status == 1
        assert "another process" in errors
    errors = refused(capsys, "checkpoints", "prune", str(saved), "--keep", "1")
    assert "another process writes checkpoints here" in errors
    assert content(saved) == before
    status, output = resume(process)
    assert status == 0, output
    check_equal(out, undisturbed)


def test_a_training_whose_checkpoints_were_deleted_while_it_was_stopped_goes_on(
    libsvm, tmp_path, undisturbed
):
    process = start(libsvm, tmp_path / "run")
    shutil.rmtree(tmp_path / "run.checkpoints")
    status, output = resume(process)
    assert status == 0, output
    check_equal(tmp_path / "run", undisturbed)
