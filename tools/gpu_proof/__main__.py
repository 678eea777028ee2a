"""Proves the CUDA library on the GPU of this machine, and measures it. TensorFlow is not needed.

    python -m tools.gpu_proof                  # all that 8 minutes allow
    python -m tools.gpu_proof --quick          # the same for a minute
    python -m tools.gpu_proof --emulated       # without a GPU: kernels on the CPU, tiny sizes
    python -m tools.gpu_proof --pack FOLDER    # copy what it needs to a folder for another machine

It needs g++, Python and NumPy, and the driver and nvcc of CUDA, and installs nothing. It compiles
the kernels for this GPU and the CPU's kernels as their reference, checks every law of
tests/cuda/laws.py, runs some of them under compute-sanitizer, and measures, beside PyTorch, CuPy
and FBGEMM where they are installed. results.json and results.md are written after each result, so
nothing is lost at the end of the time. The command fails if a law is broken or nothing was checked.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from tests.cuda.battery import SETS
from tools.gpu_proof import device, pack, report, stage
from tools.gpu_proof.measure import BANDWIDTH

ROOT = pack.ROOT
EMULATED, REFERENCE = (
    ROOT / "build" / "native" / "cuda" / f"libtwml_{name}.so"
    for name in ("cuda_emulated", "core_reference")
)
SECONDS, QUICK_SECONDS = 480, 60
# The parts of the time after the builds at which the stages end, at the latest.
LAWS_END, SANITIZER_END = 0.5, 0.62
LAST = 2  # seconds for the end of the last process and the files
TOOLS = ("memcheck", "racecheck", "synccheck")  # of compute-sanitizer


def version(compiler: str) -> str | None:
    """What a compiler says about its version, in one line; None if it is not installed."""
    if shutil.which(compiler) is None:
        return None
    _, text = stage.call([compiler, "--version"], ROOT, time.monotonic() + 10)
    lines = [line for line in text.splitlines() if re.search(r"\d+\.\d+", line)]
    return f"{Path(compiler).name}: {lines[0].strip()}" if lines else None


class Proof:
    """A run of the proof.

    Args:
        options: The command line.
    """

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.begin = self.built = time.monotonic()
        self.total = options.seconds or (QUICK_SECONDS if options.quick else SECONDS)
        self.out: Path = options.out
        self.out.mkdir(parents=True, exist_ok=True)
        found = device.EMULATED if options.emulated else device.describe()
        if found is None:
            raise SystemExit(
                "expected a GPU and its driver (libcuda.so.1), found none: "
                "--emulated runs the kernels on the CPU"
            )
        self.results: dict[str, Any] = {
            "verdict": "unfinished",
            "command": " ".join(["python -m tools.gpu_proof", *sys.argv[1:]]),
            "started": datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
            "python": platform.python_version(),
            "cpus": os.cpu_count(),
            "device": found,
            "compilers": [c for c in map(version, ("g++", options.nvcc or "nvcc")) if c],
            "builds": {},
            "laws": {"checked": [], "complete": False},
            "sanitizer": {},
            "bandwidth": None,
            "cells": [],
            "all_cells": False,
        }

    def deadline(self, part: float = 1) -> float:
        """When a stage ends, at a part of the time after the builds."""
        end = self.begin + self.total - LAST
        return self.built + part * (end - self.built)

    def run(self) -> int:
        """Runs all stages.

        Returns:
            The exit status.
        """
        with ThreadPoolExecutor(2) as pool:
            library, reference = pool.map(lambda build: build(), (self.library, self.reference))
        self.built = time.monotonic()
        if library is not None and reference is not None:
            self.check(library, reference)
            self.sanitize(library, reference)
            self.measure(library, reference)
        broken = self.broken()
        checked = self.results["laws"]["checked"]
        self.results["verdict"] = (
            "could not be built"
            if library is None or reference is None
            else f"{broken} broken"
            if broken
            else f"{len(checked)} laws hold"
            if checked
            else "nothing was checked"
        )
        self.save()
        print(report.render(self.results))
        return 0 if checked and not broken else 1

    def broken(self) -> int:
        """How many laws and tools have found an error."""
        broken = sum(w["why"] is not None for w in self.results["laws"]["checked"])
        return broken + sum(why.startswith("errors") for why in self.results["sanitizer"].values())

    def save(self) -> None:
        """Writes the results so far. A file is replaced as a whole, never in part."""
        self.results["seconds"] = round(time.monotonic() - self.begin, 1)
        for name, text in (
            ("results.json", json.dumps(self.results, indent=1)),
            ("results.md", report.render(self.results)),
        ):
            partial = self.out / f"{name}.partial"
            partial.write_text(text, encoding="utf-8")
            partial.replace(self.out / name)

    def library(self) -> Path | None:
        """Compiles the kernels, or finds a library that was compiled elsewhere."""
        if self.options.emulated and self.options.library is None:
            return self.build("emulated kernels", self.function("emulated_library"), EMULATED)
        given = self.options.library or next(
            (f for f in (ROOT / pack.PREBUILT, ROOT / "twml_ops" / pack.PREBUILT) if f.exists()),
            None,
        )
        nvcc = self.options.nvcc or shutil.which("nvcc")
        if self.options.library is not None or (nvcc is None and given is not None):
            self.results["builds"]["CUDA kernels"] = {"result": f"given: {given}", "seconds": 0}
            return Path(given).resolve()
        architecture = self.results["device"]["architecture"]
        output = ROOT / "build" / f"libtwml_cuda_{architecture}.so"
        output.parent.mkdir(exist_ok=True)
        program = ROOT / "tools" / "cuda_library.py"
        command = [sys.executable, program, output, "--nvcc", nvcc or "nvcc"]
        command += ["--arch", architecture]
        return self.build("CUDA kernels", command, output)

    def reference(self) -> Path | None:
        """Compiles the CPU's kernels."""
        return self.build("CPU's kernels", self.function("reference_library"), REFERENCE)

    @staticmethod
    def function(name: str) -> list[Any]:
        """A command that calls a function of tests/cuda/build.py."""
        return [sys.executable, "-c", f"from tests.cuda import build; build.{name}()"]

    def build(self, name: str, command: list[Any], output: Path) -> Path | None:
        """Runs a build, unless it was run after the last change of a file."""
        begin, newest = time.monotonic(), max((ROOT / f).stat().st_mtime for f in pack.files())
        if output.exists() and output.stat().st_mtime > newest:
            self.results["builds"][name] = {"result": "built before", "seconds": 0}
            return output
        code, text = stage.call(command, ROOT, self.deadline())
        result = "built" if code == 0 else f"failed with {code}: {text[-3000:]}"
        if code is None:
            result = f"not finished: {text[-3000:]}"
        seconds = round(time.monotonic() - begin, 1)
        self.results["builds"][name] = {"result": result, "seconds": seconds}
        return output if code == 0 else None

    def check(self, library: Path, reference: Path) -> None:
        """Checks the laws."""

        def add(line: dict[str, Any]) -> None:
            self.results["laws"]["checked"].append(line)
            self.save()

        chosen = self.options.laws or ("quick" if self.options.quick else "all")
        self.results["laws"]["complete"] = stage.run(
            [sys.executable, "-m", "tests.cuda.battery", library, reference, "--set", chosen],
            ROOT,
            self.deadline(LAWS_END),
            120,
            add,
        )

    def sanitize(self, library: Path, reference: Path) -> None:
        """Runs some laws under compute-sanitizer."""
        program = shutil.which("compute-sanitizer")
        if self.options.emulated or program is None:
            why = "not run: there is no GPU" if self.options.emulated else "is not installed"
            self.results["sanitizer"] = {"": why}
            return
        battery = [sys.executable, "-m", "tests.cuda.battery", library, reference]
        for tool in TOOLS:
            command = [program, "--tool", tool, "--error-exitcode", "9", *battery]
            code, text = stage.call(command, ROOT, self.deadline(SANITIZER_END))
            found = {0: "no errors", 9: f"errors: {text[-3000:]}", None: "not finished"}
            if code == 1 and "SUMMARY: 0 " in text:  # the exit status of the battery
                found[1] = "no errors, but a law is broken"
            self.results["sanitizer"][tool] = found.get(code, f"failed with {code}: {text[-500:]}")
            self.save()

    def measure(self, library: Path, reference: Path) -> None:
        """Measures the cells."""

        def add(line: dict[str, Any]) -> None:
            if line["done"] == BANDWIDTH and line["why"] is None:
                self.results["bandwidth"] = line["found"]["bytes_per_second"]
            else:
                self.results["cells"].append(line)
            self.save()

        command = [sys.executable, "-m", "tools.gpu_proof.measure", library, reference]
        command += ["--no-peers"] if self.options.no_peers else []
        command += ["--seconds", "0.05" if self.options.quick else "0.3"]
        self.results["all_cells"] = stage.run(command, ROOT, self.deadline(), 120, add)


def main() -> int:
    """Parses the command line and runs the proof."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.gpu_proof",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--quick", action="store_true", help="fewer laws, and a minute")
    parser.add_argument("--seconds", type=float, help=f"the time for all ({SECONDS})")
    parser.add_argument(
        "--laws", choices=SETS, help="which laws; by default as many as --quick says"
    )
    parser.add_argument("--out", type=Path, default=Path("out/gpu_proof"), help="%(default)s")
    parser.add_argument("--emulated", action="store_true", help="run the kernels on the CPU")
    parser.add_argument("--library", type=Path, help="a CUDA library instead of the sources")
    parser.add_argument("--nvcc", help="the compiler; by default the one in PATH")
    parser.add_argument("--no-peers", action="store_true", help="measure no other packages")
    parser.add_argument("--pack", type=Path, metavar="FOLDER", help="only copy what is needed")
    options = parser.parse_args()
    if options.pack is not None:
        size = pack.write(options.pack, options.library)
        print(f"{options.pack}: {size / 2**20:.1f} MiB; run `python -m tools.gpu_proof` there")
        return 0
    # An exception ends the children, which are processes of other sessions.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    return Proof(options).run()


if __name__ == "__main__":
    sys.exit(main())
