"""Installs the wheels with each Python and TensorFlow, trains a small model, and prints a table.

    make wheel OTHER_PYTHONS="python3.10 python3.12"
    python tools/wheel_matrix.py dist --python python3.11 --python python3.12 --page docs/install.md

Each pair gets a new virtual environment, one at a time, which is deleted again: the wheel with the
extra `cpu`, the self-check, which must find the op library, and a training on a click log. A pair
for which TensorFlow or NumPy has no wheel is named in the table. `--first-model` measures the time
from the downloaded packages to a trained model instead.
"""

from __future__ import annotations

import argparse
import itertools
import os
import platform
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TENSORFLOWS = ("2.15", "2.16", "2.17", "2.18", "2.19", "2.20", "2.21")
TRAIN = ("train", "--data", "clicks.csv", "--label", "clicked", "--out")
NO_PACKAGE = re.compile(r"No matching distribution found for (\S+)")
BEGIN, END = "<!-- begin wheel matrix", "<!-- end wheel matrix -->"


def environment() -> dict[str, str]:
    """The environment of all commands, in which nothing of a checkout is found."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    return kept | {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}


def run(*command: str | Path, folder: Path) -> str:
    """The output of a command, which must succeed."""
    done = subprocess.run(
        [str(c) for c in command], cwd=folder, env=environment(), capture_output=True, text=True
    )
    if done.returncode:
        tail = (done.stdout + done.stderr)[-3000:]
        raise RuntimeError(f"{' '.join(map(str, command))}: exit status {done.returncode}\n{tail}")
    return done.stdout


def wheel_of(python: str, folder: Path) -> Path | None:
    """The wheel for an interpreter in a folder, or None."""
    code = "import sys; print('cp%d%d' % sys.version_info[:2])"
    tag = run(python, "-c", code, folder=folder).strip()
    return next(iter(sorted(folder.glob(f"twml_ops-*-{tag}-{tag}-*.whl"))), None)


def write_clicks(folder: Path, rows: int) -> None:
    """Writes clicks.csv with the example of this checkout."""
    script = ROOT / "examples" / "click_log.py"
    run(folder / "bin" / "python", script, "clicks.csv", "--rows", str(rows), folder=folder)


def check(python: str, wheel: Path, version: str) -> str:
    """Installs a wheel with one TensorFlow, and trains; what to say in the table."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run(python, "-m", "venv", ".", folder=folder)
        install = [folder / "bin" / "python", "-m", "pip", "install", "-q", "--no-cache-dir"]
        try:
            run(*install, f"tensorflow-cpu=={version}.*", f"{wheel}[cpu]", folder=folder)
        except RuntimeError as error:
            missing = NO_PACKAGE.search(str(error))
            return f"no package of {missing[1]}" if missing else "pip finds no set of versions"
        command = folder / "bin" / "twml-ops"
        try:
            run(command, "selfcheck", "--require-library", folder=folder)
            write_clicks(folder, 2000)
            trained = run(command, *TRAIN, "out", "--epochs", "2", folder=folder)
        except RuntimeError as error:
            print(error, file=sys.stderr)
            return "**fails**"
        auc = re.search(r"ROC AUC +([\d.]+)", trained)
        return "trains" if auc else "**no metrics**"


def matrix(pythons: list[str], tensorflows: list[str], dist: Path) -> str:
    """The table of all pairs, in Markdown."""
    rows = ["| Python | " + " | ".join(tensorflows) + " |", "|---" * (len(tensorflows) + 1) + "|"]
    for python in pythons:
        version = run(python, "-c", "import platform as p; print(p.python_version())", folder=dist)
        wheel = wheel_of(python, dist)
        cells = []
        for tensorflow in tensorflows:
            start = time.monotonic()
            cells.append(check(python, wheel, tensorflow) if wheel else "no wheel")
            seconds = time.monotonic() - start
            print(f"{python}, TensorFlow {tensorflow}: {cells[-1]}, {seconds:.0f} s", flush=True)
        rows.append(f"| {version.strip()} | " + " | ".join(cells) + " |")
    return "\n".join(rows)


def first_model(python: str, wheel: Path, rows: int) -> str:
    """The seconds from a download to the first model, in words: wall time and CPU time."""
    marks: list[tuple[float, float]] = []

    def mark() -> None:
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        marks.append((time.monotonic(), used.ru_utime + used.ru_stime))

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run(python, "-m", "venv", ".", folder=folder)
        pip = [folder / "bin" / "python", "-m", "pip"]
        mark()
        run(*pip, "download", "-q", "-d", "packages", f"{wheel}[cpu]", folder=folder)
        mark()
        offline = ["--no-index", "--find-links", "packages"]
        run(*pip, "install", "-q", *offline, f"{wheel}[cpu]", folder=folder)
        mark()
        write_clicks(folder, rows)
        mark()
        trained = run(folder / "bin" / "twml-ops", *TRAIN, "out", folder=folder)
        mark()
    steps = itertools.pairwise(marks)
    download, install, _, train = ((b[0] - a[0], b[1] - a[1]) for a, b in steps)
    both = (install[0] + train[0], install[1] + train[1])

    def seconds(pair: tuple[float, float]) -> str:
        return f"{pair[0]:.0f} s ({pair[1]:.0f} s of CPU time)"

    return (
        f"{trained}\ndownload of `twml_ops[cpu]` {seconds(download)}; from then on to a trained "
        f"and evaluated model of {rows:,} clicks {seconds(both)}: pip {seconds(install)}, "
        f"`twml-ops train` {seconds(train)}"
    )


def machine() -> str:
    """The machine and the command, for the page."""
    text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    found = re.search(r"^model name\s*: (.*)$", text, re.M)
    libc = "".join(platform.libc_ver())
    load = os.getloadavg()[0]
    command = " ".join(["python", *map(str, sys.argv)])
    return (
        f"{found[1] if found else platform.machine()}, {os.cpu_count()} cores, "
        f"{platform.freedesktop_os_release()['PRETTY_NAME']}, {libc}; "
        f"{time.strftime('%Y-%m-%d')}, load average {load:.1f}. `{command}`"
    )


def main() -> None:
    """Tries the pairs of Python and TensorFlow that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("dist", type=Path, help="folder of the wheels")
    parser.add_argument("--python", action="append", help="interpreter; can be repeated")
    parser.add_argument("--tensorflow", action="append", help="2.15, …; can be repeated")
    parser.add_argument("--first-model", type=int, metavar="ROWS", help="measure this instead")
    parser.add_argument("--page", type=Path, help="document whose table is replaced")
    arguments = parser.parse_args()
    pythons = arguments.python or [shutil.which("python3") or sys.executable]
    dist = arguments.dist.resolve()
    if arguments.first_model:
        wheel = wheel_of(pythons[0], dist)
        if wheel is None:
            parser.error(f"{dist} has no wheel for {pythons[0]}")
        print(first_model(pythons[0], wheel, arguments.first_model))
        print(machine())
        return
    text = f"{matrix(pythons, arguments.tensorflow or list(TENSORFLOWS), dist)}\n\n{machine()}"
    print(text)
    if arguments.page:
        page = arguments.page.read_text(encoding="utf-8")
        head, begin, rest = page.partition(BEGIN)
        comment, tail = rest.split("\n", 1)[0], rest.partition(END)[2]
        new = f"{head}{begin}{comment}\n{text}\n{END}{tail}"
        arguments.page.write_text(new, encoding="utf-8")


if __name__ == "__main__":
    main()
