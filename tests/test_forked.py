"""Forked processes are like new ones."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests import forked

ROOT = Path(__file__).resolve().parents[1]
STATE = """
import gc, json, os, signal, sys, threading, warnings
handlers = {n: str(signal.getsignal(n)) for n in signal.valid_signals() if n not in (9, 19)}
ends = [sys.stdin.read(), sys.stdout.isatty(), sys.stderr.errors, sys.stderr.line_buffering]
meta = sorted({getattr(f, "__name__", type(f).__name__) for f in sys.meta_path})
files = sorted(os.listdir("/proc/self/fd"))
found = {
    "arguments": [sys.argv, os.getcwd(), sys.path, __name__, "conftest" in sys.modules],
    "signals": handlers,
    "streams": ends,
    "environment": {k: v for k, v in os.environ.items() if k not in ("LINES", "COLUMNS")},
    "process": [os.getsid(0) == os.getpid(), os.getpgid(0) == os.getpid()],
    "collector": gc.isenabled(),
    "threads": [threading.current_thread() is threading.main_thread()],
    "files": files,
    "pytest": any("_pytest" in m for m in map(repr, sys.meta_path)),
}
print(json.dumps(found, sort_keys=True))
"""


def in_both(arguments, **options):
    """The same command in a forked process and in a new one."""
    with forked.popen(arguments, **options) as process:
        assert isinstance(process, forked.Forked)
        mine = process.communicate(timeout=600)
    theirs = subprocess.run([sys.executable, *arguments], timeout=600, **options)
    return (process.returncode, *mine), (theirs.returncode, theirs.stdout, theirs.stderr)


PIPES = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}


@pytest.mark.parametrize("session", [False, True])
def test_a_forked_process_begins_as_a_new_one(session, tmp_path, monkeypatch):
    monkeypatch.setenv("OF_THE_TEST", "1")
    script = tmp_path / "script.py"
    script.write_text(STATE)
    (tmp_path / "module.py").write_text(STATE)
    options = {**PIPES, "cwd": tmp_path, "stdin": subprocess.DEVNULL, "start_new_session": session}
    # Without it a new process also has what libraries of C, such as MPI, have put there.
    options["env"] = dict(os.environ)
    for command in (["-c", STATE, "a", "-b"], ["-m", "module", "c"], [str(script), "d"]):
        mine, theirs = in_both(command, **options)
        assert mine[::2] == theirs[::2]
        for key, value in json.loads(theirs[1]).items():
            assert json.loads(mine[1])[key] == value


ENDS = {
    "the end": "print('a'); open(2, 'w', closefd=False).write('b')",
    "a status": "import sys; print('not flushed', end=''); sys.exit(3)",
    "a message": "import sys; sys.exit('what is wrong')",
    "an error": "1 / 0",
    "functions at the end": "import atexit; atexit.register(print, 'last')",
    "a thread": "import threading; threading.Thread(target=print, args=['thread']).start()",
    "a signal": "import os; print('lost', end=''); os.kill(os.getpid(), 15)",
    "a crash": "import os; os.abort()",
    "an interrupt": "import signal; print('kept'); signal.raise_signal(2)",
    "no reader": "import os; os.close(1); print('x')",
}


@pytest.mark.parametrize("end", ENDS)
def test_a_forked_process_ends_as_a_new_one(end):
    mine, theirs = in_both(["-c", ENDS[end]], **PIPES)
    assert mine[:2] == theirs[:2]
    assert mine[2].splitlines()[-1:] == theirs[2].splitlines()[-1:]


def test_a_forked_process_is_killed_and_waited_for():
    waits = "print('begun', flush=True); import sys; sys.stdin.read()"
    pipes = {**PIPES, "stdin": subprocess.PIPE}
    with forked.popen(["-c", waits], **pipes) as process:
        assert process.stdout.readline() == "begun\n"
        assert process.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0)
        os.kill(process.pid, signal.SIGKILL)
        assert process.wait(600) == process.poll() == -signal.SIGKILL
    with forked.popen(["-c", waits], **pipes) as process:
        assert process.communicate("input", timeout=600) == ("begun\n", "")
    with pytest.raises(subprocess.CalledProcessError):
        forked.run(["-c", "raise SystemExit(1)"], check=True)


def test_a_forked_process_trains_with_a_runtime_of_its_own():
    code = (
        "import tensorflow as tf; from twml_ops import ops\n"
        "print(len(tf.config.list_logical_devices('CPU')), int(tf.reduce_sum(tf.range(5))))"
    )
    for _ in range(2):
        assert forked.run(["-c", code], capture_output=True, text=True).stdout == "1 10\n"
    used = forked.cpu_seconds
    forked.run(["-c", "sum(range(3000000))"], check=True)
    assert forked.cpu_seconds > used


@pytest.mark.parametrize("name", ["TF_ENABLE_ONEDNN_OPTS", "PYTHONWARNINGS", "KERAS_BACKEND"])
def test_a_process_with_another_environment_of_imports_is_a_new_one(name):
    environment = {**os.environ, name: "ignore"}
    code = "import sys; print('tensorflow' in sys.modules)"
    done = forked.run(["-c", code], env=environment, capture_output=True, text=True)
    assert done.stdout == "False\n"
    with forked.popen(["-I", "-c", code], **PIPES) as process:
        assert process.communicate() == ("False\n", "")
