"""Changes the sources at random places, one at a time, and counts the changes that tests notice.

    python -m tests.mutation.run --language python --count 100 --seed 1

A mutant is a copy of the repository, in a temporary folder, with one change. The line is drawn
from all lines that can be changed, and then the change on it. The tests of the file run until one
fails. Mutants of C++ run the C++ tests, the closest ones first, and if these pass, tests of
Python with the changed libraries. A mutant that does not compile, or that compiles to the same
program, is not counted, and another one is drawn. A test that fails without the change as well is
left out.
"""

from __future__ import annotations

import argparse
import ast
import collections
import contextlib
import functools
import hashlib
import json
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import native_build
from tests.mutation.operators import Change, cc_changes, python_changes

ROOT = Path(__file__).resolve().parents[2]
LANGUAGES = {
    "python": ("twml_ops", (".py",), python_changes),
    "cc": ("cc/core", (".cc", ".h"), cc_changes),
}
# Without tests in the environment of the other tests: they compile for TPUs.
LEFT_OUT = ("twml_ops/tpu/",)
TESTS_OF_CC = ("core", "ops", "data", "layers", "optimizers", "placement", "serving", "export")
# The numbers of test files that run one after the other.
PHASES = {"python": (2, 4, 6), "cc": (2, 3)}
# More seconds of one test of Python, or CPU seconds of the C++ tests, are a mutant without an end.
SECONDS, CPU_SECONDS = 300, 200
WORD = re.compile(r"[A-Za-z_]\w+")


def copy_of_checkout(folder: Path) -> None:
    """Copies what git has or does not ignore, and the libraries."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    libraries = [str(p.relative_to(ROOT)) for p in (ROOT / "twml_ops").glob("*.so")]
    for name in [*listed.split("\0")[:-1], *libraries]:
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    (folder / ".venv").symlink_to(ROOT / ".venv")


@functools.cache
def places(language: str) -> dict[tuple[str, int], list[Change]]:
    """The changes of each file and line."""
    folder, suffixes, changes_of = LANGUAGES[language]
    found = collections.defaultdict(list)
    for path in sorted((ROOT / folder).rglob("*")):
        name = str(path.relative_to(ROOT))
        if path.suffix in suffixes and not name.startswith(LEFT_OUT):
            for change in changes_of(path.read_bytes()):
                found[name, change.line].append(change)
    return found


def drawn(language: str, seed: int) -> Iterator[tuple[str, Change]]:
    """Yields the files and changes in the order of the seed, at most one of a line."""
    changes, generator = places(language), random.Random(seed)
    for place in generator.sample(sorted(changes), len(changes)):
        yield place[0], generator.choice(changes[place])


class TestFiles:
    """Ranks the test files by how much each has to do with a source file.

    A name that a source file defines counts more the fewer test files have it. The files that
    import a module of Python count for it, a little less.
    """

    def __init__(self) -> None:
        paths = sorted((ROOT / "tests").rglob("test_*.py"))
        self._texts = {p: p.read_text(encoding="utf-8") for p in paths}
        self._words = {p: set(WORD.findall(text)) for p, text in self._texts.items()}
        self._files_with = collections.Counter(w for words in self._words.values() for w in words)
        folders = [(ROOT / folder).rglob("*") for folder in ("twml_ops", "cc", "python")]
        sources = [p for paths in folders for p in paths if p.suffix in (".py", ".cc", ".h")]
        self._sources = {p: p.read_text(encoding="utf-8") for p in sources}

    def rank(self, name: str) -> list[str]:
        """The test files of a source file, the closest first."""
        scores = self._scores(name)
        stem, package = re.escape(Path(name).stem), re.escape(Path(name).parent.name)
        imports = re.compile(
            rf"\b(?:import|from) .*\b{package}.*\b{stem}\b|from \.+ import .*\b{stem}\b"
            rf"|from \.+{stem} import|#include \".*\b{package}/{stem}\.h\""
        )
        for path, text in self._sources.items():
            if imports.search(text) and path.stem != "__init__":
                for test, score in self._scores(str(path.relative_to(ROOT))).items():
                    scores[test] += score / 4
        ranked = scores.most_common()
        return [str(p.relative_to(ROOT)) for p, score in ranked if score > ranked[0][1] / 20]

    def _scores(self, name: str) -> collections.Counter[Path]:
        path, text = Path(name), (ROOT / name).read_text(encoding="utf-8")
        stem = path.stem.strip("_")
        names = {stem}
        if path.suffix == ".py":
            nodes = ast.parse(text).body
            names |= {n.name for n in nodes if isinstance(n, ast.FunctionDef | ast.ClassDef)}
        else:
            called = re.findall(r"^[\w:<>*& ]* \*?(?:\w+::)?([A-Z]\w+)\(", text, re.M)
            names |= {re.sub(r"(?<!^)(?=[A-Z])", "_", c).lower() for c in called} | set(called)
        scores: collections.Counter[Path] = collections.Counter()
        for test, words in self._words.items():
            folder = test.relative_to(ROOT / "tests").parts[0]
            if path.suffix != ".py" and folder not in TESTS_OF_CC:
                continue
            known = (self._files_with[n] for n in names & words)
            scores[test] = sum(1 / count for count in known if count <= 20)
            if test.stem.removeprefix("test_").strip("_") == stem or (
                f"{path.parent.name}.{path.stem}" in self._texts[test]
            ):
                scores[test] += 3
            for above in list(path.parents)[:-2]:  # a folder of the same name
                if above.name in test.relative_to(ROOT).parts:
                    scores[test] = 1.5 * scores[test] + 0.05
        return scores


def limited(start: Callable[[], int], log: Path) -> tuple[int, str]:
    """Calls a function in a process of its own.

    A fork of this process has imported TensorFlow, which takes 4 CPU seconds.

    Returns:
        The status and the output.
    """
    process = os.fork()
    if process == 0:
        os.setsid()
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(output, 1)
        os.dup2(output, 2)
        status = 70
        try:
            status = start()
        finally:
            sys.stdout.flush()
            os._exit(status)
    status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    with contextlib.suppress(ProcessLookupError):  # what the tests have started and left
        os.killpg(process, signal.SIGKILL)
    return status, log.read_text(errors="replace")


class Runner:
    """Tests mutants in one copy of the repository."""

    def __init__(self, folder: Path, language: str) -> None:
        self._folder, self._files = folder, TestFiles()
        self._passes: set[str] = set()
        self._left_out: set[str] = set()
        self._log = folder / "build" / "mutant.log"
        self._log.parent.mkdir()
        self._tensorflows = native_build.tensorflows() if language == "cc" else []
        copy_of_checkout(folder)
        os.environ.update(PYTHONPATH=str(folder), CCACHE_BASEDIR=str(folder))
        if language == "cc":
            self._build_cc()
            status, output = self._gtest("*")
            if status != 0:
                raise SystemExit(f"the C++ tests fail without a change:\n{output[-3000:]}")
            self._program = self._hash()

    def result(self, name: str, change: Change) -> tuple[str, str]:
        """What happens to a mutant, and the test that noticed it."""
        path = self._folder / name
        text = path.read_bytes()
        path.write_bytes(change.apply(text))
        try:
            if name.endswith(".py"):
                return self._python(name, path, text)
            return self._cc(name, path, text)
        except subprocess.CalledProcessError:
            return "did not compile", ""
        finally:
            path.write_bytes(text)

    def _python(self, name: str, path: Path, text: bytes) -> tuple[str, str]:
        """Runs the tests of Python, phase by phase."""
        files, changed = self._files.rank(name), path.read_bytes()
        for number in PHASES["python" if name.endswith(".py") else "cc"]:
            phase, files = files[:number], files[number:]
            while phase:
                status, failed, output = self._pytest(phase)
                if status in (0, 5):
                    break
                if not failed and "Timeout (" in output:
                    return "timed out", " ".join(phase)
                # The same test without the change, unless it is known to pass.
                if failed not in self._passes:
                    path.write_bytes(text)
                    self._restored(name)
                    if self._pytest([failed or phase[0]])[0] not in (0, 5):
                        self._left_out.add(failed or phase[0])
                        print(f"    left out, it fails without a mutant: {failed or phase[0]}")
                        path.write_bytes(changed)
                        self._restored(name)
                        continue
                    self._passes.add(failed)
                return "killed", failed or phase[0]
        return "survived", ""

    def _restored(self, name: str) -> None:
        if not name.endswith(".py"):
            self._build_libraries()

    def _pytest(self, tests: list[str]) -> tuple[int, str, str]:
        """Runs tests in a new process until one fails: the status, the test and the output."""
        without = [f"--deselect={test}" for test in self._left_out]
        options = ["-x", "-m", "not slow", "-p", "no:cacheprovider", "--tb=no", "-rfE"]
        options += ["-o", f"faulthandler_timeout={SECONDS}"]

        def start() -> int:
            os.chdir(self._folder)
            sys.path[:] = [str(self._folder), *(p for p in sys.path if p not in ("", str(ROOT)))]
            for module in [m for m in sys.modules if m.partition(".")[0] in ("tests", "twml_ops")]:
                del sys.modules[module]
            return int(pytest.main([*options, *without, *tests]))

        status, output = limited(start, self._log)
        failed = re.findall(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", output, re.M)
        return status, failed[0] if failed else "", output

    def _cc(self, name: str, path: Path, text: bytes) -> tuple[str, str]:
        """Builds and runs the C++ tests, and if these pass, tests of Python."""
        self._build_cc()
        if self._hash() == self._program:
            return "same program", ""
        stem = Path(name).stem
        first = []
        for test in (self._folder / "tests" / "cc").glob("*_test.cc"):
            content = test.read_text(encoding="utf-8")
            if stem in test.stem or f"/{stem}.h" in content:
                first += re.findall(r"^(?:TEST\w*|INSTANTIATE\w+)\((\w+)", content, re.M)
        chosen = ":".join(f"*{suite}.*" for suite in sorted(set(first))) or "none"
        for selected in (chosen, f"-{chosen}"):
            status, output = self._gtest(selected)
            if status == -signal.SIGXCPU:
                return "timed out", "C++"
            if status != 0:
                failed = re.findall(r"\[  FAILED  \] ([\w/.]+)", output)
                return "killed", failed[0] if failed else f"C++, status {status}"
        self._build_libraries()
        return self._python(name, path, text)

    def _gtest(self, selected: str) -> tuple[int, str]:
        """Runs C++ tests until one fails."""
        command = [str(self._tests), "--gtest_brief=1", "--gtest_fail_fast"]

        def start() -> int:
            resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS + 5))
            os.execv(command[0], [*command, f"--gtest_filter={selected}"])

        return limited(start, self._log)

    def _build_cc(self) -> None:
        """Compiles what has changed for the C++ tests, with the ordinary flags."""
        tests = native_build.build_tests(self._folder)
        if tests is None:
            raise SystemExit(
                "the C++ tests need GoogleTest: apt-get install libgtest-dev pkg-config"
            )
        self._tests = tests

    def _build_libraries(self) -> None:
        """Builds the libraries that the tests of Python load."""
        for library in native_build.build(self._folder, found=self._tensorflows):
            shutil.copy2(library, self._folder / "twml_ops")

    def _hash(self) -> str:
        return hashlib.sha256(self._tests.read_bytes()).hexdigest()


def main(arguments: list[str]) -> int:
    """Draws mutants, tests them, and prints and writes what happened."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--language", choices=sorted(LANGUAGES), required=True)
    parser.add_argument("--count", type=int, default=100, help="mutants that are tested")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--skip", type=int, default=0, help="do not test so many of the first")
    parser.add_argument("--minutes", type=float, default=1e6, help="draw no more after this time")
    parser.add_argument("--numbers", type=int, nargs="*", help="only the ones with these numbers")
    parser.add_argument("--out", type=Path, help="write the results to this JSON file")
    options = parser.parse_args(arguments)
    with contextlib.suppress(ImportError):
        import tensorflow  # noqa: F401, for the forks
    end = time.monotonic() + 60 * options.minutes
    counts: collections.Counter[str] = collections.Counter()
    rows = []
    # Not a TemporaryDirectory, which processes that tests fork would remove when they end.
    folder = Path(tempfile.mkdtemp())
    try:
        runner = Runner(folder, options.language)
        for number, (name, change) in enumerate(drawn(options.language, options.seed)):
            if number < options.skip or (options.numbers and number not in options.numbers):
                continue
            tested = counts["killed"] + counts["timed out"] + counts["survived"]
            if tested == options.count or time.monotonic() > end:
                break
            before = time.monotonic()
            result, by = runner.result(name, change)
            counts[result] += 1
            old = (ROOT / name).read_bytes()[change.start : change.end].decode().strip()
            rows.append(
                {
                    **{"number": number, "place": f"{name}:{change.line}", "kind": change.kind},
                    **{"old": old, "new": change.new.strip(), "result": result, "by": by},
                    "seconds": round(time.monotonic() - before),
                }
            )
            print(" | ".join(" ".join(str(v).split()) for v in rows[-1].values()), flush=True)
            if options.out is not None:
                options.out.write_text(json.dumps(rows, indent=1) + "\n")
    finally:
        shutil.rmtree(folder)
    print(f"seed {options.seed}:", ", ".join(f"{n} {what}" for what, n in sorted(counts.items())))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
