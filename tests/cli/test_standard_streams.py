"""Output that cannot be written does not end a command before its work is done."""

import os
import subprocess
import sys

import pytest

from twml_ops.cli import main, standard_streams

pytestmark = pytest.mark.usefixtures("bare_runs")


class Broken:
    """A text stream of which no write succeeds."""

    encoding = "utf-8"

    def __init__(self, error):
        self.error = error

    def write(self, text):
        raise self.error

    def flush(self):
        raise self.error

    def isatty(self):
        return False

    def fileno(self):
        raise ValueError("no descriptor")


@pytest.mark.one_tf
@pytest.mark.parametrize(
    "error", [BrokenPipeError(32, "Broken pipe"), OSError(28, "No space left")]
)
def test_a_training_whose_output_cannot_be_written_is_saved_and_fails_at_its_end(
    libsvm, tmp_path, monkeypatch, capfd, error
):
    monkeypatch.setattr(sys, "stdout", Broken(error))
    with pytest.raises(SystemExit) as exit_:
        main(["train", "--data", libsvm, "--out", str(tmp_path / "run"), "--epochs", "1"])
    assert exit_.value.code == 1
    assert {"model.keras", "metrics.json", "report.html"} <= set(os.listdir(tmp_path / "run"))
    lines = [] if isinstance(error, BrokenPipeError) else ["twml-ops: <stdout>: No space left"]
    found = capfd.readouterr().err.splitlines()
    assert [line for line in found if line.startswith("twml-ops: ")] == lines


def test_the_first_error_is_the_one_that_is_reported(monkeypatch):
    broken = Broken(OSError(28, "No space left"))
    monkeypatch.setattr(sys, "stdout", broken)
    with standard_streams.tolerated() as streams:
        print("a")
        broken.error = OSError(5, "Input/output error")
        print("b")
        with pytest.raises(OSError, match="No space left"):
            streams.check()
    assert sys.stdout is broken


def test_no_file_gets_the_descriptor_of_a_closed_standard_stream():
    program = (
        "import os, sys; from twml_ops.cli import standard_streams\n"
        "with standard_streams.tolerated() as streams:\n"
        "    print('text', flush=True); print('text', file=sys.stderr, flush=True)\n"
        "    number = os.open(os.devnull, os.O_RDONLY)\n"
        "    streams.check()\n"
        "sys.exit(number if number > 2 else 1)"
    )
    done = subprocess.run(["sh", "-c", 'exec "$@" <&- >&- 2>&-', "", sys.executable, "-c", program])
    assert done.returncode >= 3


def test_an_interrupt_of_an_import_is_an_interrupt(capsys):
    from twml_ops.cli.errors import INTERRUPTED, report

    error = RuntimeError("Error calling __set_name__ on 'cached_property' instance")
    error.__cause__ = KeyboardInterrupt()
    with pytest.raises(SystemExit) as exit_:
        report(error)
    assert exit_.value.code == INTERRUPTED
    assert capsys.readouterr().err == "twml-ops: interrupted\n"
