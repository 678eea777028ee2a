"""The Bazel files build from the same sources, with the same flags, as native_build.py."""

import ast
import importlib.util
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def _load():
    spec = importlib.util.spec_from_file_location("native_build", ROOT / "native_build.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look for their module
    spec.loader.exec_module(module)
    return module


native_build = _load()


def constants(path):
    """The assignments of literals in a .bzl file, which is Python as far as they go."""
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    return {
        node.targets[0].id: ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign)
    }


def sources(package):
    """The .cc files that the globs of a BUILD file's srcs name."""
    folder = ROOT / package
    calls = [
        node
        for node in ast.walk(ast.parse((folder / "BUILD").read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and getattr(node.func, "id", "").startswith("cc_")
    ]
    patterns = [
        pattern
        for call in calls
        for keyword in call.keywords
        if keyword.arg == "srcs"
        for pattern in ast.literal_eval(keyword.value.args[0])
    ]
    return {f for pattern in patterns for f in folder.glob(pattern) if f.suffix == ".cc"}


def compiled():
    """source → list of flags, of every compilation native_build plans."""
    fake = native_build.TensorFlow("2.21.0", ["-Iinclude"], ["-Llib"])
    ninja, _ = native_build.plan(ROOT, [fake])
    found = re.findall(r"build \S+: compile (\S+)\n  flags = (.*)", ninja.text())
    plan = {}
    for source, flags in found:
        plan.setdefault(Path(source), []).append(flags.split())
    return plan


def own(flags):
    """Without the paths of packages, which Bazel asks for by itself."""
    return {f for f in flags if not f.startswith(("-I", "-isystem"))}


def test_the_sources_are_the_same():
    found = set().union(*(sources(p) for p in ("cc/core", "cc/tf", "python")))
    assert found == set(compiled())
    assert sources("tests/cc") == set(ROOT.glob("tests/cc/*_test.cc"))


def test_the_flags_are_the_same():
    bazel = constants("bazel/flags.bzl")
    common = set(bazel["COPTS"])
    levels = {
        frozenset(common | set(flags) | {f"-DTWML_SIMD_LEVEL={level}"})
        for level, flags in bazel["SIMD_COPTS"].items()
    }
    for source, all_flags in compiled().items():
        if source.parent.name == "simd":
            assert {frozenset(own(f)) for f in all_flags} == levels
        else:
            tensorflow = "tf" in source.relative_to(ROOT).parts
            want = common | (set(bazel["TF_COPTS"]) if tensorflow else set())
            assert [own(f) for f in all_flags] == [want], source
    assert {"-shared", *bazel["LINKOPTS"]} == set(native_build.LINK_FLAGS)


def test_bazel_defines_what_tensorflow_asks_for(tmp_path):
    text = (ROOT / "bazel" / "python_packages.bzl").read_text(encoding="utf-8")
    (defines,) = re.findall(r"defines = (\[.*?\])", text)
    (tmp_path / "VERSION").write_text("2.21.0")
    flags = native_build.unpacked_tensorflow(tmp_path).compile_flags
    assert {f"-D{d}" for d in ast.literal_eval(defines)} == {f for f in flags if f[:2] == "-D"}
