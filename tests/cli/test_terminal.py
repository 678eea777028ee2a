"""Control sequences are written to a terminal only, never to a file, be it through mpirun."""

import contextlib
import os
import pty
import subprocess
import sys

import pytest

SHOW = (
    "from twml_ops.cli.console import make_console, make_error_console\n"
    "for console in (make_console(), make_error_console()):\n"
    "    console.print('[bold]text[/]')\n"
    "    with console.status('reading'):\n"
    "        pass\n"
)
COMMANDS = {
    "progress": ["-c", SHOW],
    "help": ["-m", "twml_ops.cli", "train", "--help"],
    "wrong usage": ["-m", "twml_ops.cli", "train", "--wrong"],
}


def environment(**more):
    known = ("FORCE_COLOR", "NO_COLOR", "PY_COLORS", "GITHUB_ACTIONS", "OMPI_COMM_WORLD_RANK")
    rest = {k: v for k, v in os.environ.items() if k not in (*known, "PMIX_RANK", "PMI_RANK")}
    return {**rest, "TERM": "xterm-256color", **more}


def in_terminal(command, **more):
    """What a process writes that has a terminal."""
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [sys.executable, *command], stdout=theirs, stderr=theirs, env=environment(**more)
    ) as process:
        os.close(theirs)
        written = b""
        with contextlib.suppress(OSError):  # the end of a terminal
            while piece := os.read(ours, 1 << 16):
                written += piece
        process.wait()
    os.close(ours)
    return written


@pytest.mark.parametrize("command", ["progress", "help"])
def test_a_terminal_gets_control_sequences(command):
    assert b"\x1b[" in in_terminal(COMMANDS[command])


@pytest.mark.parametrize("command", COMMANDS)
def test_a_rank_of_mpi_writes_none_though_it_has_a_terminal(command):
    """mpirun gives ranks a terminal, and writes what comes from it to its own output."""
    written = in_terminal(COMMANDS[command], OMPI_COMM_WORLD_RANK="0")
    assert written
    assert b"\x1b" not in written


@pytest.mark.parametrize("command", COMMANDS)
def test_a_file_gets_none_even_if_colors_are_forced(command):
    done = subprocess.run(
        [sys.executable, *COMMANDS[command]], capture_output=True,
        env=environment(FORCE_COLOR="1", GITHUB_ACTIONS="true", TTY_COMPATIBLE="1"),
    )  # fmt: skip
    assert done.stdout or done.stderr
    assert b"\x1b" not in done.stdout + done.stderr
