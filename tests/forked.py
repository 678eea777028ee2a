"""Python processes that are forked from one that has imported TensorFlow, instead of new ones.

A new process takes 3 to 4 s of processor time to import TensorFlow. `start_server`, which
tests/conftest.py calls right after its own import, forks a server, before TensorFlow has threads
or a runtime. The server forks a process for each `popen`, which begins as a new one does: with its
own arguments, folder, environment, streams, signals and main module, and without what pytest has
changed. Where the environment differs in a variable that matters to an import, or Python has
options, a new process is started. So it is for tests of what a process imports, when, and how
much memory it has then.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import fcntl
import functools
import gc
import importlib
import io
import json
import os
import random
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import traceback
import types
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

# Variables that libraries read while they are imported. The server computes the path of modules
# anew, TF_CONFIG is read when a training begins, the CUDA library for the first table on a GPU.
AT_IMPORT = ("TF_", "TWML_", "KERAS", "PYTHON", "LD_", "CUDA_", "XLA_", "OMP_", "MKL_", "OPENBLAS_")
NOT_AT_IMPORT = ("TF_CONFIG", "PYTHONPATH", "TWML_OPS_CUDA_LIBRARY")
# What nearly all programs of tests import.
IMPORTS = ("twml_ops.layers", "twml_ops.optimizers", "twml_ops.cli", "twml_ops.training.run")

cpu_seconds = 0.0  # of the processes that have ended; they are no children of this process
_connection: socket.socket | None = None
_environment: dict[str, str] = {}


def _at_import(environment: Mapping[str, str]) -> dict[str, str]:
    return {
        k: v for k, v in environment.items() if k.startswith(AT_IMPORT) and k not in NOT_AT_IMPORT
    }


def start_server() -> None:
    """Forks the server, which ends with this process."""
    global _connection, _environment
    if _connection is not None or sys.platform != "linux":
        return
    _environment = _at_import(os.environ)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with warnings.catch_warnings():  # Python 3.12 warns if the process has threads
        warnings.simplefilter("ignore")
        pid = os.fork()
    if pid == 0:
        try:
            _serve(theirs)
        finally:
            os._exit(1)
    theirs.close()
    _connection = ours


def popen(arguments: Sequence[Any], **options: Any) -> Forked | subprocess.Popen[Any]:
    """Starts `python *arguments` in a forked process if possible; else as `subprocess.Popen`.

    Args:
        arguments: `-c CODE`, `-m MODULE` or a file, and what follows.
        options: See `Forked`; `subprocess.Popen` has them as well.
    """
    words = [str(a) for a in arguments]
    options["env"] = dict(options.get("env") or os.environ)
    plain = words[0] in ("-c", "-m") or not words[0].startswith("-")
    if _connection is None or not plain or _at_import(options["env"]) != _environment:
        return subprocess.Popen([sys.executable, *words], **options)
    return Forked(words, **options)


def run(
    arguments: Sequence[Any],
    capture_output: bool = False,
    check: bool = False,
    timeout: float | None = None,
    **options: Any,
) -> subprocess.CompletedProcess[Any]:
    """The same as `subprocess.run([sys.executable, *arguments], ...)`."""
    if capture_output:
        options |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with popen(arguments, **options) as process:
        try:
            out, err = process.communicate(timeout=timeout)
        except BaseException:
            process.kill()
            raise
    done = subprocess.CompletedProcess(process.args, process.returncode, out, err)
    if check:
        done.check_returncode()
    return done


class Forked:
    """A forked process, with the attributes and methods of `subprocess.Popen`.

    Args:
        arguments: `-c CODE`, `-m MODULE` or a file, and what follows.
        env: Its environment.
        cwd: Its folder; None: that of this process.
        stdin, stdout, stderr: None, a file, or constants of `subprocess`.
        text: Whether the pipes have text.
        pass_fds: Further file descriptors that it gets.
        start_new_session: Whether it leads a new session.
    """

    def __init__(
        self,
        arguments: list[str],
        env: dict[str, str],
        cwd: Any = None,
        stdin: Any = None,
        stdout: Any = None,
        stderr: Any = None,
        text: bool = False,
        pass_fds: Sequence[int] = (),
        start_new_session: bool = False,
    ) -> None:
        assert _connection is not None
        self.args, self.returncode = [sys.executable, *arguments], None
        with contextlib.ExitStack() as theirs:

            def stream(given: Any, number: int) -> tuple[int, Any]:
                if given == subprocess.PIPE:
                    ends = os.pipe()
                    reads = number == 0
                    theirs.callback(os.close, ends[not reads])
                    kind = ("w" if reads else "r") + ("" if text else "b")
                    return ends[not reads], open(ends[reads], kind, -1 if reads or text else 0)
                if given == subprocess.DEVNULL:
                    return theirs.enter_context(open(os.devnull, "r+b")).fileno(), None
                if given is None:
                    return number, None
                return (given if isinstance(given, int) else given.fileno()), None

            first, self.stdin = stream(stdin, 0)
            second, self.stdout = stream(stdout, 1)
            third, self.stderr = (
                (second, None) if stderr == subprocess.STDOUT else stream(stderr, 2)
            )
            self._status, reports = socket.socketpair()
            theirs.enter_context(reports)
            request = {
                "arguments": arguments,
                "env": env,
                "cwd": os.path.abspath(cwd or os.getcwd()),
                "session": start_new_session,
                "numbers": [0, 1, 2, *pass_fds],
            }
            descriptors = [reports.fileno(), first, second, third, *pass_fds]
            socket.send_fds(_connection, [json.dumps(request).encode()], descriptors)
        self._reports = self._status.makefile("r")
        self.pid = int(self._reports.readline())

    def __enter__(self) -> Forked:
        return self

    def __exit__(self, *_: object) -> None:
        for file in (self.stdin, self.stdout, self.stderr):
            if file is not None:
                file.close()
        self.wait()

    def poll(self) -> int | None:
        """The exit status, or None if the process has not ended."""
        if self.returncode is None and select.select([self._status], [], [], 0)[0]:
            self.wait()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Waits for the end, and returns the exit status."""
        global cpu_seconds
        if self.returncode is None:
            if not select.select([self._status], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self.args, timeout or 0)
            status, seconds = self._reports.readline().split()
            self.returncode = int(status)
            cpu_seconds += float(seconds)
            self._reports.close()
            self._status.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Sends a signal, unless the process has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Sends SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        """Sends SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def communicate(self, input: Any = None, timeout: float | None = None) -> tuple[Any, Any]:
        """Writes the input, reads the pipes until their ends, and waits for the process."""
        errors: list[Any] = []
        reader = threading.Thread(target=lambda: errors.append(self.stderr.read()))
        late = threading.Timer(threading.TIMEOUT_MAX if timeout is None else timeout, self.kill)
        late.daemon = True
        late.start()
        if self.stderr is not None:
            reader.start()
        if self.stdin is not None:
            with contextlib.suppress(BrokenPipeError), self.stdin:
                if input is not None:
                    self.stdin.write(input)
        output = None if self.stdout is None else self.stdout.read()
        if self.stderr is not None:
            reader.join()
        self.wait()
        if late.finished.is_set():
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        late.cancel()
        return output, errors[0] if errors else None


def _serve(connection: socket.socket) -> None:
    """The server: forks a process that keeps the process of each request."""
    _forget_pytest(connection)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # keepers are not waited for
    while True:
        message, descriptors, *_ = socket.recv_fds(connection, 1 << 20, 32)
        if not message:
            os._exit(0)
        for name in IMPORTS:  # at the first request
            importlib.import_module(name)
        gc.collect()
        gc.freeze()
        if os.fork() == 0:
            _keep(json.loads(message), descriptors)
        for number in descriptors:
            os.close(number)


def _forget_pytest(connection: socket.socket) -> None:
    """Removes what a new process has not: files, hooks, modules, handlers, filters."""
    keep = connection.fileno()
    null = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(null, number)
    for number in sorted(int(n) for n in os.listdir("/proc/self/fd")):
        if number > 2 and number != keep:
            with contextlib.suppress(OSError):
                os.close(number)
    faulthandler.disable()
    gc.enable()
    # A new process inherits what is ignored, as SIGINT is in the background of a shell.
    ignored = {n for n in signal.valid_signals() if signal.getsignal(n) is signal.SIG_IGN}
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, *ignored}:
        with contextlib.suppress(OSError, ValueError):
            signal.signal(number, signal.SIG_DFL)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_IGN)
    if signal.SIGINT not in ignored:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.meta_path[:] = [f for f in sys.meta_path if not type(f).__module__.startswith("_pytest")]
    for name in [n for n in sys.modules if n.partition(".")[2].startswith("conftest")]:
        del sys.modules[name]
    importlib.reload(warnings)
    warnings.resetwarnings()
    for category in (ResourceWarning, ImportWarning, PendingDeprecationWarning, DeprecationWarning):
        warnings.simplefilter("ignore", category)
    warnings.filterwarnings("default", category=DeprecationWarning, module="__main__")


def _keep(request: dict[str, Any], descriptors: list[int]) -> None:
    """Starts the process, reports its id, waits for its end and reports that."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    reports = socket.socket(fileno=descriptors[0])
    path = _path_of_modules(request["env"], request["cwd"])
    pid = os.fork()
    if pid == 0:
        _begin(request, descriptors[1:], path)
    for number in descriptors[1:]:
        os.close(number)
    with contextlib.suppress(OSError):
        reports.sendall(f"{pid}\n".encode())
        _, status, used = os.wait4(pid, 0)
        seconds = used.ru_utime + used.ru_stime
        reports.sendall(f"{os.waitstatus_to_exitcode(status)} {seconds}\n".encode())
    os._exit(0)


def _path_of_modules(environment: dict[str, str], folder: str) -> list[str]:
    """The path that a new process has, without its first entry."""
    code = "import json, sys; print(json.dumps(sys.path[1:]))"
    command = [sys.executable, "-c", code]
    return json.loads(subprocess.check_output(command, env=environment, cwd=folder))


def _open_streams() -> None:
    unbuffered = bool(os.environ.get("PYTHONUNBUFFERED"))
    size = 0 if unbuffered else -1
    sys.stdin = sys.__stdin__ = open(0, closefd=False)  # noqa: SIM115
    for number, name, errors in ((1, "stdout", "strict"), (2, "stderr", "backslashreplace")):
        file = open(number, "wb", size, closefd=False)  # noqa: SIM115
        lines = not unbuffered and (number == 2 or file.isatty())
        text = io.TextIOWrapper(file, errors=errors, line_buffering=lines, write_through=unbuffered)
        setattr(sys, name, text)
        setattr(sys, f"__{name}__", text)


def _begin(request: dict[str, Any], descriptors: list[int], path: list[str]) -> None:
    """Becomes the process of the request, and ends it."""
    if request["session"]:
        os.setsid()
    high = [fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, 500) for number in descriptors]
    for number in sorted(int(n) for n in os.listdir("/proc/self/fd")):
        if number > 2 and number not in high:
            with contextlib.suppress(OSError):
                os.close(number)
    for number, target in zip(high, request["numbers"], strict=True):
        os.dup2(number, target)
        os.close(number)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    _open_streams()
    random.seed()
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed()
    kind, *rest = request["arguments"]
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    if kind == "-c":
        sys.argv, sys.path[:] = ["-c", *rest[1:]], ["", *path]
        program = lambda: exec(compile(rest[0], "<string>", "exec"), main.__dict__)  # noqa: E731
    elif kind == "-m":
        sys.argv, sys.path[:] = rest, [request["cwd"], *path]
        program = functools.partial(runpy.run_module, rest[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv, sys.path[:] = request["arguments"], [os.path.dirname(kind), *path]
        program = functools.partial(runpy.run_path, kind, run_name="__main__")
    status = 0
    try:
        program()
    except SystemExit as ended:
        if not isinstance(ended.code, int | None):
            print(ended.code, file=sys.stderr)
        status = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except KeyboardInterrupt:
        traceback.print_exc()
        sys.stdout.flush()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        status = 1
    ctypes.pythonapi.Py_Exit(status & 255)  # waits for threads, calls atexit, flushes
