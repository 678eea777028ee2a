"""The compile and link plan of the native code, written as a ninja file and run.

Objects live in build/native and are shared: cc/core is compiled once, whatever the number of
TensorFlow versions the op library is then built against.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

CORE_FLAGS = ["-std=c++17", "-O3", "-fPIC", "-fno-math-errno", "-fvisibility=hidden"]
WARNING_FLAGS = ["-Wall", "-Wextra", "-Werror"]
LINK_FLAGS = ["-shared", "-pthread", "-Wl,--as-needed"]

# cc/core/simd/*.cc is compiled once for each level; run-time dispatch picks one (cc/core/simd.h).
SIMD_FLAGS: dict[str, list[str]] = {"baseline": []}
if platform.machine() in ("x86_64", "AMD64"):
    SIMD_FLAGS["avx2"] = ["-mavx2", "-mfma", "-mf16c"]
    SIMD_FLAGS["avx512"] = [
        *("-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl"),
        *("-mavx2", "-mfma", "-mf16c", "-mprefer-vector-width=512"),
    ]

# By the value of TWML_OPS_SANITIZE. A check that fails ends the process.
SANITIZER_FLAGS: dict[str, list[str]] = {
    "address": ["-fsanitize=address,undefined", "-fno-sanitize-recover"],
    "thread": ["-fsanitize=thread"],
}
# gcc finds constant expressions of absl not constant under the other checks.
TENSORFLOW_SANITIZER_FLAGS = ["-fno-sanitize=undefined", "-fsanitize=signed-integer-overflow,shift"]


@dataclass(frozen=True)
class Sanitizer:
    """The checks that objects are compiled with, or none, and the folder these objects go to."""

    name: str = ""

    @property
    def flags(self) -> list[str]:
        return ["-O1", "-g", *SANITIZER_FLAGS[self.name]] if self.name else []

    @property
    def prefix(self) -> str:
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
    """What the op library needs to know of the TensorFlow it is built against."""

    version: str
    compile_flags: list[str]
    link_flags: list[str]

    @property
    def tag(self) -> str:
        """`tf2.21` for 2.21.0: the ABI of a minor version, in the library's file name."""
        major, minor = self.version.split(".")[:2]
        return f"tf{major}.{minor}"


def find_tensorflow() -> TensorFlow | None:
    """The TensorFlow of this interpreter's environment, or None.

    Asked of a fresh interpreter without PYTHONPATH, so pip's build isolation does not hide it.
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
            raise RuntimeError(f"TensorFlow is installed but does not import:\n{done.stderr}")
        return None
    return TensorFlow(**json.loads(done.stdout.strip().splitlines()[-1]))


def unpacked_tensorflow(folder: Path) -> TensorFlow:
    """A TensorFlow that tools/unpack_tensorflow.py laid out.

    It cannot be imported to be asked for its flags: these are those of all its wheels since 2.15.
    """
    package = folder / "tensorflow"
    return TensorFlow(
        version=(folder / "VERSION").read_text().strip(),
        compile_flags=[
            f"-I{package / 'include'}",
            "-D_GLIBCXX_USE_CXX11_ABI=1",
            "--std=c++17",
            "-DEIGEN_MAX_ALIGN_BYTES=64",
        ],
        link_flags=[f"-L{package}", "-l:libtensorflow_framework.so.2"],
    )


def tensorflows() -> list[TensorFlow]:
    """Those named in TWML_OPS_TENSORFLOWS, or else that of this interpreter, if it has one."""
    folders = os.environ.get("TWML_OPS_TENSORFLOWS")
    if folders:
        return [unpacked_tensorflow(Path(f)) for f in folders.split(os.pathsep)]
    found = find_tensorflow()
    return [] if found is None else [found]


class NinjaFile:
    """Collects build statements and the objects they make."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._seen: set[str] = set()
        self._lines = [
            "ninja_required_version = 1.5",
            f"cxx = {os.environ.get('CXX', 'g++')}",
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
        relative = source.relative_to(self._root)
        output = f"{directory}/{relative.with_suffix('.o')}"
        if output not in self._seen:
            self._seen.add(output)
            self._statement(output, "compile", [str(source)], flags)
        return output

    def link(self, output: str, objects: list[str], flags: list[str]) -> None:
        self._statement(output, "link", objects, flags)

    def _statement(self, output: str, rule: str, inputs: list[str], flags: list[str]) -> None:
        escaped = [i.replace(" ", "$ ") for i in inputs]
        self._lines += [
            f"build {output}: {rule} {' '.join(escaped)}",
            f"  flags = {' '.join(flags)}",
        ]

    def text(self) -> str:
        return "\n".join(self._lines) + "\n"


def core_objects(ninja: NinjaFile, root: Path, checks: Sanitizer = NONE) -> list[str]:
    directory = f"{checks.prefix}core"
    flags = [*CORE_FLAGS, *WARNING_FLAGS, f"-I{root}", *checks.flags]
    objects = [ninja.compile(s, directory, flags) for s in sorted(root.glob("cc/core/*.cc"))]
    for level, simd_flags in SIMD_FLAGS.items():
        level_flags = [*flags, *simd_flags, f"-DTWML_SIMD_LEVEL={level}"]
        sources = sorted(root.glob("cc/core/simd/*.cc"))
        objects += [ninja.compile(s, f"{directory}/{level}", level_flags) for s in sources]
    return objects


def plan(
    root: Path, found: Sequence[TensorFlow], checks: Sanitizer = NONE
) -> tuple[NinjaFile, list[str]]:
    """The ninja file, and the libraries it links, relative to build/native."""
    import pybind11

    ninja = NinjaFile(root)
    core = core_objects(ninja, root, checks)

    include = [f"-isystem{pybind11.get_include()}", f"-isystem{sysconfig.get_paths()['include']}"]
    flags = [*CORE_FLAGS, *WARNING_FLAGS, f"-I{root}", *include, *checks.flags]
    tag = f"{checks.prefix}python{sys.version_info.major}.{sys.version_info.minor}"
    bindings = [ninja.compile(s, tag, flags) for s in sorted(root.glob("python/*.cc"))]
    libraries = [f"{checks.prefix}_core" + sysconfig.get_config_var("EXT_SUFFIX")]
    ninja.link(libraries[0], [*bindings, *core], [*LINK_FLAGS, *checks.flags])

    for tensorflow in found:
        quiet = [f.replace("-I", "-isystem", 1) for f in tensorflow.compile_flags]
        flags = [*CORE_FLAGS, *WARNING_FLAGS, f"-I{root}", *quiet]
        # TF deprecates between minor versions what the older ones still need.
        flags += ["-DEIGEN_USE_THREADS", "-DNDEBUG", "-Wno-deprecated-declarations", *checks.flags]
        if checks.name == "address":
            flags += TENSORFLOW_SANITIZER_FLAGS
        sources = sorted([*root.glob("cc/tf/ops/*.cc"), *root.glob("cc/tf/kernels/*.cc")])
        ops = [ninja.compile(s, f"{checks.prefix}{tensorflow.tag}", flags) for s in sources]
        libraries.append(f"{checks.prefix}_twml_ops.{tensorflow.tag}.so")
        link_flags = [*LINK_FLAGS, *tensorflow.link_flags, *checks.flags]
        ninja.link(libraries[-1], [*ops, *core], link_flags)
    return ninja, libraries


def build(root: Path, checks: Sanitizer = NONE) -> list[Path]:
    """Compiles what changed and returns the linked libraries."""
    found = tensorflows()
    if not found:
        print("TensorFlow is not installed: building twml_ops.core only", file=sys.stderr)
    ninja, libraries = plan(root, found, checks)
    name = "-".join([*([checks.name] if checks.name else []), *(t.tag for t in found)])
    return run_ninja(root, ninja, name or "core", libraries)


def build_sanitized_package(root: Path, checks: Sanitizer) -> Path:
    """A folder to import from: a copy of the package with libraries under a sanitizer.

    The ordinary libraries stay as they are.
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
    """Compiles what changed and returns the targets' paths."""
    import ninja as ninja_package

    directory = root / "build" / "native"
    directory.mkdir(parents=True, exist_ok=True)
    script = directory / f"{name}.ninja"
    script.write_text(ninja.text())
    executable = Path(ninja_package.BIN_DIR) / "ninja"
    subprocess.run([str(executable), "-f", script.name, *targets], cwd=directory, check=True)
    return [directory / target for target in targets]


def build_tests(root: Path, checks: Sanitizer = NONE) -> Path | None:
    """The binary of tests/cc/*_test.cc, or None where GoogleTest is not installed."""
    if shutil.which("pkg-config") is None:
        return None
    query = ["pkg-config", "--cflags", "--libs", "gtest_main"]
    found = subprocess.run(query, capture_output=True, text=True, check=False)
    if found.returncode != 0:
        return None
    ninja = NinjaFile(root)
    core = core_objects(ninja, root, checks)
    flags = [*CORE_FLAGS, *WARNING_FLAGS, f"-I{root}", *checks.flags]
    name = f"{checks.prefix}core_tests"
    tests = [ninja.compile(s, name, flags) for s in sorted(root.glob("tests/cc/*_test.cc"))]
    ninja.link(f"{name}/run", [*tests, *core], ["-pthread", *checks.flags, *found.stdout.split()])
    return run_ninja(root, ninja, name.replace("/", "-"), [f"{name}/run"])[0]


def main(arguments: list[str]) -> int:
    root = Path(__file__).resolve().parent
    if arguments not in ([], ["test"]):
        print("usage: python native_build.py [test]", file=sys.stderr)
        return 2
    checks = sanitizer()
    if not arguments:
        if checks.name:
            print(build_sanitized_package(root, checks))
        else:
            build(root)
        return 0
    tests = build_tests(root, checks)
    if tests is None:
        print(
            "C++ tests skipped: GoogleTest is not installed (pkg-config finds no gtest_main); "
            "on Debian or Ubuntu: apt-get install libgtest-dev pkg-config"
        )
        return 0
    return subprocess.run([str(tests), "--gtest_brief=1"], check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
