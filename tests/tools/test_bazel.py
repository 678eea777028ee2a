"""Bazel and native_build.py build the same targets, because both read bazel/targets.bzl.

A BUILD file is valid Python except for Bazel's functions, so these tests run it with substitutes
for the functions and compare the targets that it declares with the ninja file.
"""

import importlib.util
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("", "cc/core", "cc/serving", "cc/tf", "python", "tests/cc")


def _load():
    spec = importlib.util.spec_from_file_location("native_build", ROOT / "native_build.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # the dataclasses decorator looks it up
    spec.loader.exec_module(module)
    return module


native_build = _load()
NAMES = {"CORE_LIBRARY": "_core.so", "OPS_LIBRARY": "_twml_ops.so"}  # written by python_packages


@dataclass
class BuildFile:
    """The targets of a BUILD file, and the constants that it loads from targets.bzl."""

    package: str
    targets: dict = field(default_factory=dict)
    loaded: set = field(default_factory=set)

    def __post_init__(self):
        functions = {"load": self._load, "package": lambda **_: None, "glob": self._glob}
        for rule in ("cc_library", "cc_binary", "cc_test", "alias"):
            functions[rule] = self._declare
        self._globals = functions
        path = ROOT / self.package / "BUILD"
        exec(compile(path.read_text(encoding="utf-8"), str(path), "exec"), functions)

    def _load(self, label, *names):
        if label == "//bazel:targets.bzl":
            constants = native_build.TARGETS
            self.loaded |= set(names)
        else:
            assert label == "@python_packages//:names.bzl"
            constants = NAMES
        self._globals.update({name: constants[name] for name in names})

    def _glob(self, patterns):
        return [path for p in patterns for path in (ROOT / self.package).glob(p)]

    def _declare(self, name, **attributes):
        self.targets[name] = attributes

    def compiled(self):
        """(source, sorted flags) of every compilation."""
        return {
            (source, tuple(sorted(target["copts"])))
            for target in self.targets.values()
            for source in target.get("srcs", ())
            if source.suffix == ".cc"
        }


def planned(ninja):
    """(source, sorted flags) of every compilation in a ninja file, without include folders."""
    return {
        (source, tuple(sorted(f for f in flags.split() if not f.startswith(("-I", "-isys")))))
        for file, flags in re.findall(r"build \S+: compile (\S+)\n  flags = (.*)", ninja.text())
        for source in ninja.units.get(file, [Path(file)])
    }


@pytest.fixture
def x86(monkeypatch):
    monkeypatch.setattr(native_build.platform, "machine", lambda: "x86_64")


@pytest.mark.usefixtures("x86")
def test_bazel_and_ninja_compile_the_same_files_with_the_same_flags():
    fake = native_build.TensorFlow("2.21.0", ["-Iinclude"], ["-Llib"])
    ninja, _ = native_build.plan(ROOT, [fake])
    bazel = set().union(
        *(BuildFile(p).compiled() for p in ("cc/core", "cc/serving", "cc/tf", "python"))
    )
    assert bazel == planned(ninja)
    assert {s for s, _ in bazel} == {*ROOT.glob("cc/**/*.cc"), *ROOT.glob("python/*.cc")}


def test_bazel_and_ninja_link_with_the_same_flags():
    fake = native_build.TensorFlow("2.21.0", [], [])
    ninja, libraries = native_build.plan(ROOT, [fake])
    linked = re.findall(r"build \S+: link .*\n  flags = (.*)", ninja.text())
    assert len(linked) == len(libraries) == 3
    binaries = [
        t
        for p in ("cc/tf", "cc/serving", "python")
        for t in BuildFile(p).targets.values()
        if "linkshared" in t
    ]
    for flags, binary in zip(linked, binaries, strict=True):
        assert flags.split() == ["-shared", *binary["linkopts"]]


@pytest.mark.usefixtures("x86")
def test_bazel_and_ninja_compile_the_same_tests(monkeypatch):
    plans = []

    def record(root, ninja, name, targets):
        plans.append(ninja)
        return [Path(t) for t in targets]

    class Found:
        returncode = 0
        stdout = ""

    monkeypatch.setattr(native_build, "run_ninja", record)
    monkeypatch.setattr(native_build.shutil, "which", lambda name: name)
    monkeypatch.setattr(native_build.subprocess, "run", lambda *_, **__: Found)
    native_build.build_tests(ROOT)
    tests = BuildFile("tests/cc").compiled()
    tested = BuildFile("cc/core").compiled() | BuildFile("cc/serving").compiled()
    assert planned(plans[0]) == tests | tested
    assert {s for s, _ in tests} == set(ROOT.glob("tests/cc/*_test.cc"))


def test_another_machine_compiles_the_baseline_only(monkeypatch):
    monkeypatch.setattr(native_build.platform, "machine", lambda: "aarch64")
    assert native_build.simd_levels() == {"baseline": []}


def test_every_constant_is_used_by_bazel():
    loaded = set().union(*(BuildFile(p).loaded for p in PACKAGES))
    packages = (ROOT / "bazel" / "python_packages.bzl").read_text(encoding="utf-8")
    (names,) = re.findall(r'^load\("//bazel:targets\.bzl", (.*)\)$', packages, re.MULTILINE)
    loaded |= set(re.findall(r'"(\w+)"', names))
    assert loaded == set(native_build.TARGETS)


@pytest.mark.parametrize("package", PACKAGES)
def test_no_build_file_has_compile_flags_of_its_own(package):
    text = (ROOT / package / "BUILD").read_text(encoding="utf-8")
    assert set(re.findall(r'"(-[^"]*)"', text)) <= {
        *("-DTWML_SIMD_LEVEL=", "-pthread", "-lgtest_main", "-lgtest")
    }


def test_an_unpacked_tensorflow_is_compiled_with_its_defines(tmp_path):
    (tmp_path / "VERSION").write_text("2.21.0")
    flags = native_build.unpacked_tensorflow(tmp_path).compile_flags
    defines = {f"-D{d}" for d in native_build.TARGETS["TENSORFLOW_DEFINES"]}
    assert defines == {f for f in flags if f.startswith("-D")}
    packages = (ROOT / "bazel" / "python_packages.bzl").read_text(encoding="utf-8")
    assert "defines = %r" in packages
    assert "_BUILD % TENSORFLOW_DEFINES" in packages
