"""Runs the fuzz targets of the C++ core one after the other, each for some seconds.

The inputs that reach new code are kept in build/fuzz/corpus, so that a later run continues. Exits
with 1 if a target found a fault, whose input is in build/fuzz/faults.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
OPTIONS = {
    # Sizes that no machine has are an error of the core, not of its caller.
    "ASAN_OPTIONS": "allocator_may_return_null=1",
    "UBSAN_OPTIONS": "print_stacktrace=1",
}


def run_target(program: Path, folder: Path, target: str, seconds: int, runs: int) -> bool:
    """Runs one target, prints a line, and returns whether it found nothing."""
    kept, faults = folder / "corpus" / target, folder / "faults" / target
    for made in (kept, faults):
        made.mkdir(parents=True, exist_ok=True)
    command = [
        *("nice", "-n", "10", program, kept, folder / "seeds" / target),
        *(f"-max_total_time={seconds}", f"-runs={runs}", f"-artifact_prefix={faults}/"),
        *("-timeout=10", "-rss_limit_mb=3000", "-malloc_limit_mb=16000", "-print_final_stats=1"),
        *("-max_len=20000", "-close_fd_mask=1"),
    ]
    env = {**os.environ, **OPTIONS, "TWML_FUZZ_TARGET": target}
    done = subprocess.run(
        list(map(str, command)), env=env, capture_output=True, text=True, errors="replace"
    )
    counts = re.findall(r"number_of_executed_units:\s+(\d+)", done.stderr)
    coverage = re.findall(r"cov: (\d+) .*corp: (\d+)", done.stderr)
    edges, inputs = coverage[-1] if coverage else ("?", "?")
    result = "no fault" if done.returncode == 0 else f"FAULT, input in {faults}"
    print(
        f"{target:24}{counts[-1] if counts else '?':>12}{edges:>8}{inputs:>8}  {result}", flush=True
    )
    if done.returncode != 0:
        print(done.stderr[-4000:])
    return done.returncode == 0


def report_coverage(folder: Path, targets: list[str]) -> None:
    """Runs the seeds and the kept inputs once, and prints what they reach in cc/core."""
    program = ROOT / "build" / "native" / "fuzzer-coverage" / "run"
    profiles = []
    for target in targets:
        profiles.append(folder / f"{target}.profraw")
        env = {**os.environ, "TWML_FUZZ_TARGET": target, "LLVM_PROFILE_FILE": str(profiles[-1])}
        command = [program, "-runs=0", folder / "seeds" / target, folder / "corpus" / target]
        subprocess.run(command, env=env, check=True, capture_output=True)
    merged = folder / "merged.profdata"
    tools = [t for t in ("llvm-profdata", "llvm-profdata-14") if shutil.which(t)]
    if not tools:
        raise SystemExit("llvm-profdata is missing; on Debian or Ubuntu: apt-get install llvm")
    subprocess.run([tools[0], "merge", "-sparse", *profiles, "-o", merged], check=True)
    report = [tools[0].replace("profdata", "cov"), "report", program, f"-instr-profile={merged}"]
    subprocess.run([*report, "-ignore-filename-regex=tests/"], check=True)


def main(arguments: list[str]) -> int:
    """Runs the targets that were asked for, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=10, help="of each target")
    parser.add_argument("--runs", type=int, default=-1, help="at most so many executions of each")
    parser.add_argument("--coverage", action="store_true", help="report what inputs reach")
    parser.add_argument("targets", nargs="*", help="default: all")
    options = parser.parse_args(arguments)
    kind = "fuzzer-coverage" if options.coverage else "fuzzer"
    program = ROOT / "build" / "native" / kind / "run"
    folder = ROOT / "build" / "fuzz"
    os.environ["LLVM_PROFILE_FILE"] = os.devnull  # of the two calls that are no run of a target
    listed = subprocess.run([program, "list"], check=True, capture_output=True, text=True)
    known = listed.stdout.split()
    if unknown := set(options.targets) - set(known):
        parser.error(f"unknown targets {sorted(unknown)}; the targets are {' '.join(known)}")
    subprocess.run([program, "seeds", folder / "seeds"], check=True)
    if options.coverage:
        report_coverage(folder, options.targets or known)
        return 0
    print(f"{'target':24}{'executions':>12}{'edges':>8}{'inputs':>8}")
    passed = [
        run_target(program, folder, target, options.seconds, options.runs)
        for target in options.targets or known
    ]
    return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
