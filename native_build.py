"""Builds the native code: writes a ninja file with all compile and link commands and runs it.

Object files are in build/native and are shared: cc/core is compiled once for all TensorFlow
versions for which the op library is built. bazel/targets.bzl has the sources and flags.
"""

from __future__ import annotations

import ast
import fcntl
import importlib.util
import json
import os
import platform
import shlex
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Container, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent


def read_constants(path: Path) -> dict[str, Any]:
    """Reads the constants of a .bzl file. A Starlark literal is a Python literal."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    constants = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            constants[node.targets[0].id] = ast.literal_eval(node.value)
    return constants


# The sources and flags of all native targets, which the BUILD files of Bazel load as well.
TARGETS = read_constants(ROOT / "bazel" / "targets.bzl")


def simd_levels(machine: str | None = None) -> dict[str, list[str]]:
    """The SIMD levels for which cc/core/simd is compiled, and their flags.

    Args:
        machine: the processor; None: that of this machine.
    """
    levels: dict[str, list[str]] = TARGETS["SIMD_COPTS"]
    if (machine or platform.machine()) in ("x86_64", "AMD64"):
        return levels
    return {"baseline": levels["baseline"]}


def sources(root: Path, folder: str, patterns: str) -> list[Path]:
    """The source files in a folder that match the patterns with this name in targets.bzl."""
    found = [path for pattern in TARGETS[patterns] for path in (root / folder).glob(pattern)]
    return sorted(found)


# The flags for each value of TWML_OPS_SANITIZE. A failed check aborts the process.
SANITIZER_FLAGS: dict[str, list[str]] = {
    "address": ["-fsanitize=address,undefined", "-fno-sanitize-recover"],
    "thread": ["-fsanitize=thread"],
}
# The flags of clang for the fuzz targets, and for a report of what they cover. In the first, a
# number that does not fit into the integer that it becomes is an error as well.
FUZZER_FLAGS: dict[str, list[str]] = {
    "fuzzer": [
        "-fsanitize=fuzzer-no-link,address,undefined,float-cast-overflow",
        "-fno-sanitize-recover",
    ],
    "fuzzer-coverage": [
        "-fsanitize=fuzzer-no-link",
        "-fprofile-instr-generate",
        "-fcoverage-mapping",
    ],
}
# With the other checks, gcc rejects some constant expressions of absl.
TENSORFLOW_SANITIZER_FLAGS = ["-fno-sanitize=undefined", "-fsanitize=signed-integer-overflow,shift"]


@dataclass(frozen=True)
class Sanitizer:
    """The sanitizer that objects are compiled with. The default is none.

    Attributes:
        name: a key of SANITIZER_FLAGS or FUZZER_FLAGS, or an empty string for none.
    """

    name: str = ""

    @property
    def flags(self) -> list[str]:
        """The compile and link flags."""
        # Line numbers suffice for reports, and take a third of the compile time less than -g. The
        # checks of addresses take longer to optimize than the tests take without it.
        known = {**SANITIZER_FLAGS, **FUZZER_FLAGS}
        level = "-O0" if self.name == "address" else "-O1"
        return [level, "-g1", *known[self.name]] if self.name else []

    @property
    def prefix(self) -> str:
        """The folder of the object files, relative to the folder of ordinary object files."""
        return f"{self.name}/" if self.name else ""


NONE = Sanitizer()


def sanitizer() -> Sanitizer:
    """The sanitizer that the environment variable TWML_OPS_SANITIZE names, or none."""
    name = os.environ.get("TWML_OPS_SANITIZE", "")
    if name and name not in SANITIZER_FLAGS:
        known = " or ".join(SANITIZER_FLAGS)
        raise ValueError(f"TWML_OPS_SANITIZE must be {known}, got {name!r}")
    return Sanitizer(name)


@dataclass(frozen=True)
class TensorFlow:
    """A TensorFlow for which the op library is built.

    Attributes:
        version: for example "2.21.0".
        compile_flags: flags for the headers of TensorFlow.
        link_flags: flags for the framework library of TensorFlow.
    """

    version: str
    compile_flags: list[str]
    link_flags: list[str]

    @property
    def tag(self) -> str:
        """The ABI of the minor version in the name of the library, for example `tf2.21`."""
        major, minor = self.version.split(".")[:2]
        return f"tf{major}.{minor}"


def find_tensorflow() -> TensorFlow | None:
    """Finds the TensorFlow in the environment of this interpreter.

    A new interpreter without PYTHONPATH looks for it, because the build isolation of pip would
    otherwise hide it.

    Returns:
        The TensorFlow, or None if it is not installed.

    Raises:
        RuntimeError: TensorFlow is installed but cannot be imported.
    """
    probe = (
        "import json, tensorflow as tf; print(json.dumps({'version': tf.__version__,"
        "'compile_flags': tf.sysconfig.get_compile_flags(),"
        "'link_flags': tf.sysconfig.get_link_flags()}))"
    )
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "PIP_"))}
    env["TF_CPP_MIN_LOG_LEVEL"] = "3"
    done = subprocess.run(
        [sys.executable, "-c", probe], env=env, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        if "No module named 'tensorflow'" not in done.stderr:
            raise RuntimeError(f"TensorFlow is installed but cannot be imported:\n{done.stderr}")
        return None
    return TensorFlow(**json.loads(done.stdout.strip().splitlines()[-1]))


def unpacked_tensorflow(folder: Path) -> TensorFlow:
    """The TensorFlow in a folder that tools/unpack_tensorflow.py wrote.

    It cannot be imported. The flags are the same for all its wheels from 2.15 on.
    """
    package = folder / "tensorflow"
    return TensorFlow(
        version=(folder / "VERSION").read_text().strip(),
        compile_flags=[
            f"-I{package / 'include'}",
            *(f"-D{define}" for define in TARGETS["TENSORFLOW_DEFINES"]),
        ],
        link_flags=[f"-L{package}", "-l:libtensorflow_framework.so.2"],
    )


def tensorflows() -> list[TensorFlow]:
    """The TensorFlows for which the op library is built.

    The environment variable TWML_OPS_TENSORFLOWS has a list of folders of unpacked TensorFlows. If
    it is not set, the TensorFlow of this interpreter is used, if there is one.
    """
    folders = os.environ.get("TWML_OPS_TENSORFLOWS")
    if folders:
        return [unpacked_tensorflow(Path(f)) for f in folders.split(os.pathsep)]
    found = find_tensorflow()
    return [] if found is None else [found]


class NinjaFile:
    """Collects the statements of a ninja file.

    Args:
        root: the root of the repository.
        log_folder: folder of ninja's logs, relative to the ninja file. Files that build different
            objects can be run at the same time only if they have different folders.

    Attributes:
        log_folder: as above.
        units: the generated source files, and the source files that each of them includes.
        links: the symbolic links beside the ninja file, and the folders that they point to.
    """

    def __init__(self, root: Path, log_folder: str = ".") -> None:
        self._root = root
        self.log_folder = log_folder
        self._outputs: set[str] = set()
        self._compiler = os.environ.get("CXX", "g++")
        self._commands: dict[str, tuple[str, str]] = {}  # output -> (rule, command)
        self.units: dict[str, list[Path]] = {}
        self.links: dict[str, Path] = {}
        self._lines = [
            "ninja_required_version = 1.5",
            f"builddir = {log_folder}",
            f"cxx = {self._compiler}",
            "rule compile",
            "  command = $cxx $flags -MMD -MF $out.d -c $in -o $out",
            "  depfile = $out.d",
            "  deps = gcc",
            "  description = compile $out",
            "rule link",
            "  command = $cxx $in -o $out $flags",
            "  description = link $out",
        ]

    def compile(self, source: Path, directory: str, flags: list[str]) -> str:
        """Adds the compilation of a source file and returns its object file."""
        relative = source.relative_to(self._root)
        output = f"{directory}/{relative.with_suffix('.o')}"
        if output not in self._outputs:
            self._outputs.add(output)
            self._statement(output, "compile", [str(source)], flags)
        return output

    def compile_together(
        self, sources: Sequence[Path], name: str, directory: str, flags: list[str], units: int = 1
    ) -> list[str]:
        """Adds the compilation of source files in a few units, and returns their object files.

        The headers of TensorFlow, which take 10 s, and of pybind11 are then compiled once a unit.
        """
        objects = []
        for i in range(units):
            stem = f"{directory}/{name}{i + 1 if units > 1 else ''}"
            self.units[f"{stem}.cc"] = list(sources[i::units])
            self._statement(f"{stem}.o", "compile", [f"{stem}.cc"], flags)
            objects.append(f"{stem}.o")
        return objects

    def write(self, path: Path) -> None:
        """Writes the ninja file, and the generated files and links that have changed."""
        for unit, included in self.units.items():
            file = path.parent / unit
            paths = [
                s.relative_to(self._root) if s.is_relative_to(self._root) else s for s in included
            ]
            text = "".join(f'#include "{path}"\n' for path in paths)
            if not file.exists() or file.read_text() != text:
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(text)
        for name, folder in self.links.items():
            link = path.parent / name
            if not link.is_symlink() or link.readlink() != folder:
                link.unlink(missing_ok=True)
                link.symlink_to(folder)
        path.write_text(self.text())

    def link(self, output: str, objects: list[str], flags: list[str]) -> None:
        """Adds the linking of object files."""
        self._statement(output, "link", objects, flags)

    def run(self, directory: Path) -> None:
        """Runs all commands without ninja, which is not installed everywhere."""

        def run(command: str) -> None:
            subprocess.run(command, shell=True, cwd=directory, check=True)

        for output in self._commands:
            (directory / output).parent.mkdir(parents=True, exist_ok=True)
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            for rule in ("compile", "link"):
                list(pool.map(run, (c for r, c in self._commands.values() if r == rule)))

    def _statement(self, output: str, rule: str, inputs: list[str], flags: list[str]) -> None:
        before, after = (flags, ["-c"]) if rule == "compile" else ([], flags)
        quoted = map(shlex.quote, inputs)
        command = [self._compiler, *before, "-o", output, *quoted, *after]
        self._commands[output] = (rule, " ".join(command))
        escaped = [i.replace(" ", "$ ") for i in inputs]
        self._lines += [
            f"build {output}: {rule} {' '.join(escaped)}",
            f"  flags = {' '.join(flags)}",
        ]

    def text(self) -> str:
        """The content of the ninja file."""
        return "\n".join(self._lines) + "\n"


def core_objects(
    ninja: NinjaFile,
    root: Path,
    checks: Sanitizer = NONE,
    files: Container[Path] | None = None,
    machine: str | None = None,
) -> list[str]:
    """Adds the compilation of cc/core, or of some of its files, and returns the object files.

    Args:
        ninja: the ninja file.
        root: the root of the repository.
        checks: the sanitizer.
        files: the files; None: all.
        machine: the processor that the compiler compiles for; None: that of this machine.
    """
    directory = f"{checks.prefix}core"
    flags = [*TARGETS["COPTS"], f"-I{root}", *checks.flags]
    core, simd = (
        [s for s in sources(root, "cc/core", patterns) if files is None or s in files]
        for patterns in ("CORE_SOURCES", "SIMD_SOURCES")
    )
    objects = [ninja.compile(source, directory, flags) for source in core]
    for level, simd_flags in simd_levels(machine).items():
        level_flags = [*flags, *simd_flags, f"-DTWML_SIMD_LEVEL={level}"]
        objects += [ninja.compile(source, f"{directory}/{level}", level_flags) for source in simd]
    return objects


def serving_objects(ninja: NinjaFile, root: Path, checks: Sanitizer = NONE) -> list[str]:
    """Adds the compilation of cc/serving and returns the object files."""
    flags = [*TARGETS["COPTS"], f"-I{root}", *checks.flags]
    return [
        ninja.compile(source, f"{checks.prefix}serving", flags)
        for source in sources(root, "cc/serving", "SERVING_SOURCES")
    ]


def plan(
    root: Path, found: Sequence[TensorFlow], checks: Sanitizer = NONE
) -> tuple[NinjaFile, list[str]]:
    """Plans the build of the libraries.

    Returns:
        The ninja file, and the libraries that it links, relative to build/native.
    """
    import pybind11

    ninja = NinjaFile(root, checks.name or ".")
    core = core_objects(ninja, root, checks)
    serving = serving_objects(ninja, root, checks)

    headers = f"pybind11-{pybind11.__version__}"  # the same path for all environments that have it
    ninja.links[headers] = Path(pybind11.get_include())
    include = [f"-isystem{headers}", f"-isystem{sysconfig.get_paths()['include']}"]
    link_flags = ["-shared", *TARGETS["LINKOPTS"], *checks.flags]
    flags = [*TARGETS["COPTS"], f"-I{root}", *include, *checks.flags]
    tag = f"{checks.prefix}python{sys.version_info.major}.{sys.version_info.minor}"
    found_sources = sources(root, "python", "BINDING_SOURCES")
    bindings = ninja.compile_together(found_sources, "bindings", tag, flags, units=4)
    libraries = [f"{checks.prefix}_core" + sysconfig.get_config_var("EXT_SUFFIX")]
    ninja.link(libraries[0], [*bindings, *serving, *core], link_flags)
    libraries.append(f"{checks.prefix}libtwml_ops_scorer.so")
    ninja.link(libraries[1], [*serving, *core], link_flags)

    for tensorflow in found:
        # The compiler does not report warnings in system headers.
        headers = [f.replace("-I", "-isystem", 1) for f in tensorflow.compile_flags]
        flags = [*TARGETS["COPTS"], f"-I{root}", *headers, *TARGETS["OPS_COPTS"], *checks.flags]
        if checks.name == "address":
            flags += TENSORFLOW_SANITIZER_FLAGS
        directory = f"{checks.prefix}{tensorflow.tag}"
        ops = ninja.compile_together(sources(root, "cc/tf", "OP_SOURCES"), "ops", directory, flags)
        kernel_sources = sources(root, "cc/tf", "KERNEL_SOURCES")
        kernels = ninja.compile_together(kernel_sources, "kernels", directory, flags, units=4)
        libraries.append(f"{checks.prefix}_twml_ops.{tensorflow.tag}.so")
        ninja.link(libraries[-1], [*ops, *kernels, *core], [*link_flags, *tensorflow.link_flags])
    return ninja, libraries


def build(
    root: Path, checks: Sanitizer = NONE, found: Sequence[TensorFlow] | None = None
) -> list[Path]:
    """Builds the libraries incrementally and returns their paths.

    Args:
        root: the root of the repository.
        checks: the sanitizer.
        found: the TensorFlows to build for; None: those of `tensorflows`.
    """
    if found is None and not (found := tensorflows()):
        print("TensorFlow is not installed: building twml_ops.core only", file=sys.stderr)
    ninja, libraries = plan(root, found, checks)
    name = "-".join([*([checks.name] if checks.name else []), *(t.tag for t in found)])
    return run_ninja(root, ninja, name or "core", libraries)


def build_sanitized_package(root: Path, checks: Sanitizer) -> Path:
    """Builds a copy of the package with a sanitizer. The ordinary libraries do not change.

    Returns:
        The folder that has the copy, from which it can be imported.
    """
    libraries = build(root, checks)
    folder = root / "build" / checks.name
    shutil.rmtree(folder, ignore_errors=True)
    ignored = shutil.ignore_patterns("*.so", "__pycache__")
    shutil.copytree(root / "twml_ops", folder / "twml_ops", ignore=ignored)
    for library in libraries:
        shutil.copy2(library, folder / "twml_ops")
    return folder


def run_ninja(root: Path, ninja: NinjaFile, name: str, targets: list[str]) -> list[Path]:
    """Runs ninja and returns the paths of the targets.

    A lock lets processes with the same folder of logs run one after another. Where ninja is not
    installed, all commands are run.
    """
    directory = root / "build" / "native"
    logs = directory / ninja.log_folder
    logs.mkdir(parents=True, exist_ok=True)
    script = directory / f"{name}.ninja"
    with open(logs / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        ninja.write(script)
        if importlib.util.find_spec("ninja") is None:
            ninja.run(directory)
            return [directory / target for target in targets]
        import ninja as ninja_package

        executable = Path(ninja_package.BIN_DIR) / "ninja"
        # Ninja would try, with a message of an error, to share the jobs of a make that started it.
        environment = {k: v for k, v in os.environ.items() if k != "MAKEFLAGS"}
        command = [str(executable), "-f", script.name, *targets]
        subprocess.run(command, cwd=directory, env=environment, check=True)
    return [directory / target for target in targets]


def build_tests(root: Path, checks: Sanitizer = NONE) -> Path | None:
    """Builds the C++ tests.

    Returns:
        The test binary, or None if GoogleTest is not installed.
    """
    if shutil.which("pkg-config") is None:
        return None
    query = ["pkg-config", "--cflags", "--libs", "gtest_main"]
    found = subprocess.run(query, capture_output=True, text=True, check=False)
    if found.returncode != 0:
        return None
    ninja = NinjaFile(root, checks.name or ".")
    core = [*core_objects(ninja, root, checks), *serving_objects(ninja, root, checks)]
    flags = [*TARGETS["COPTS"], *TARGETS["TEST_COPTS"], f"-I{root}", *checks.flags]
    if checks.name:  # which takes longer to optimize the tests than to run them as they are
        flags.append("-O0")
    name = f"{checks.prefix}core_tests"
    found_sources = sources(root, "tests/cc", "TEST_SOURCES")
    tests = ninja.compile_together(found_sources, "tests", name, flags, units=4)
    # Of an inline function that both have, the linker takes the first one: as users have it.
    ninja.link(f"{name}/run", [*core, *tests], ["-pthread", *checks.flags, *found.stdout.split()])
    return run_ninja(root, ninja, name.replace("/", "-"), [f"{name}/run"])[0]


def build_fuzzer(root: Path, name: str = "fuzzer") -> Path:
    """Builds the program of tests/fuzz, which has all targets, with clang.

    Args:
        root: the root of the repository.
        name: a key of FUZZER_FLAGS.

    Raises:
        RuntimeError: the compiler is not clang.
    """
    compiler = os.environ.setdefault("CXX", "clang++")
    if "clang" not in compiler or shutil.which(compiler.split()[-1]) is None:
        raise RuntimeError(
            f"libFuzzer needs clang, got CXX={compiler!r}; on Debian or Ubuntu: apt-get install "
            "clang"
        )
    checks = Sanitizer(name)
    ninja = NinjaFile(root, checks.name)
    core = core_objects(ninja, root, checks)
    flags = [*TARGETS["COPTS"], f"-I{root}", *checks.flags]
    found = sorted((root / "tests" / "fuzz").glob("*.cc"))
    targets = [ninja.compile(source, f"{name}/targets", flags) for source in found]
    link_flags = ["-pthread", *checks.flags, "-fsanitize=fuzzer"]
    ninja.link(f"{name}/run", [*targets, *core], link_flags)
    return run_ninja(root, ninja, name, [f"{name}/run"])[0]


def main(arguments: list[str]) -> int:
    """Builds the libraries, or those without TensorFlow, or the fuzz targets; or tests the core."""
    if arguments not in ([], ["core"], ["test"], *([name] for name in FUZZER_FLAGS)):
        known = " | ".join(("core", *FUZZER_FLAGS, "test"))
        print(f"usage: python native_build.py [{known}]", file=sys.stderr)
        return 2
    if arguments and arguments[0] in FUZZER_FLAGS:
        print(build_fuzzer(ROOT, arguments[0]))
        return 0
    checks = sanitizer()
    if arguments == ["core"]:
        build(ROOT, checks, [])
        return 0
    if not arguments:
        if checks.name:
            print(build_sanitized_package(ROOT, checks))
        else:
            build(ROOT)
        return 0
    tests = build_tests(ROOT, checks)
    if tests is None:
        print(
            "C++ tests skipped: GoogleTest is not installed (pkg-config does not find gtest_main); "
            "on Debian or Ubuntu: apt-get install libgtest-dev pkg-config"
        )
        return 0
    return subprocess.run([str(tests), "--gtest_brief=1"], check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
