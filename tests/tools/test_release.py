"""What is checked before a release, and what a wheel says about itself."""

import ast
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
import tomllib

from tools import release

ROOT = Path(__file__).resolve().parents[2]
PROJECT = '[project]\nversion = "1.2.3"\n'
CHANGELOG = (
    "# Changelog\n\n## 1.2.3 (2026-01-02)\n\n- A change.\n\n## 1.2.2 (2026-01-01)\n\n- One.\n"
)
METADATA = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_a_version_with_a_dated_section_can_be_released():
    release.check_version("1.2.3", PROJECT, CHANGELOG)


@pytest.mark.parametrize(
    ("version", "project", "changelog", "message"),
    [
        ("1.2", PROJECT, CHANGELOG, "three numbers"),
        ("1.2.4", PROJECT, CHANGELOG, "pyproject.toml: expected the version 1.2.4, got 1.2.3"),
        ("1.2.3", PROJECT, CHANGELOG.replace("2026-01-02", "unreleased"), "got 'unreleased'"),
        ("1.2.3", PROJECT, CHANGELOG.replace("## 1.2.3", "## 1.2.30"), "got none"),
        ("1.2.3", PROJECT, CHANGELOG.replace("- A change.", ""), "is empty"),
    ],
)
def test_a_version_that_is_not_written_down_is_refused(version, project, changelog, message):
    with pytest.raises(release.ReleaseError, match=re.escape(message)):
        release.check_version(version, project, changelog)


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    monkeypatch.setattr(release, "ROOT", tmp_path)
    name = ["-c", "user.name=a", "-c", "user.email=a@b"]
    for command in (["init", "-q"], [*name, "commit", "-q", "--allow-empty", "-m", "first"]):
        subprocess.run(["git", *command], cwd=tmp_path, check=True)
    return tmp_path


def test_a_tree_with_a_file_that_git_does_not_know_is_refused(checkout):
    release.check_tree("1.2.3")
    (checkout / "new.txt").touch()
    with pytest.raises(release.ReleaseError, match=r"new\.txt"):
        release.check_tree("1.2.3")


def test_a_version_that_has_a_tag_is_refused(checkout):
    subprocess.run(["git", "tag", "v1.2.3"], cwd=checkout, check=True)
    release.check_tree("1.2.4")
    with pytest.raises(release.ReleaseError, match="tag v1.2.3 exists"):
        release.check_tree("1.2.3")


def test_the_command_names_what_is_missing_and_publishes_nothing():
    done = subprocess.run(
        [sys.executable, "tools/release.py", "999.0.0"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 1
    assert "expected the version 999.0.0" in done.stderr
    called = re.findall(r'run\("git", "([\w-]+)"', (ROOT / "tools" / "release.py").read_text())
    assert sorted(called) == ["ls-files", "status", "tag"]


def report(policy, *libraries):
    return {"sym_tag": policy, "external_libs": dict.fromkeys(libraries)}


WHEEL = Path("twml_ops-1.2.3-cp311-cp311-manylinux_2_34_x86_64.whl")


def test_a_wheel_keeps_what_its_tag_promises():
    release.check_platform(WHEEL, report("manylinux_2_34_x86_64", release.FROM_TENSORFLOW))
    with pytest.raises(release.ReleaseError, match="the symbols need manylinux_2_35"):
        release.check_platform(WHEEL, report("manylinux_2_35_x86_64"))
    with pytest.raises(release.ReleaseError, match=r"needs the libraries libfoo\.so"):
        release.check_platform(WHEEL, report("manylinux_2_34_x86_64", "libfoo.so"))


def test_the_source_distribution_has_all_that_the_build_needs(tmp_path):
    found = [p for name in release.SOURCES for p in (ROOT / name, *(ROOT / name).rglob("*"))]
    tracked = [  # also where the tree is no checkout of git
        str(path.relative_to(ROOT))
        for path in found
        if path.is_file() and path.suffix not in (".so", ".pyc")
    ]
    code = f"from setuptools.build_meta import build_sdist as b; b({str(tmp_path)!r})"
    copy = tmp_path / "copy"
    needed = ("bazel/targets.bzl", "README.md", *METADATA["license-files"])
    for name in [*tracked, *needed, "MANIFEST.in"]:
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        (copy / name).write_bytes((ROOT / name).read_bytes())
    subprocess.run([sys.executable, "-c", code], cwd=copy, check=True, capture_output=True)
    (sdist,) = tmp_path.glob("*.tar.gz")
    assert release.missing_sources(sdist, tracked) == []
    with tarfile.open(sdist) as archive:
        names = {n.partition("/")[2] for n in archive.getnames()}
    assert {"bazel/targets.bzl", *METADATA["license-files"]} <= names
    assert not [n for n in names if n.endswith(".so")]


# Roots of #include of other projects, and their names in THIRD_PARTY_LICENSES.
INCLUDED = {
    "absl": "Abseil",
    "cub": "CUB",
    "cuda_runtime.h": "CUDA runtime",
    "pybind11": "pybind11",
    "tensorflow": "TensorFlow",
    "thrust": "Thrust",
    "xla": "TensorFlow with tsl and xla",
}


def test_every_project_whose_headers_are_compiled_in_is_in_the_list_of_licences():
    sources = [p for folder in ("cc", "python") for p in (ROOT / folder).rglob("*.*")]
    found = set()
    for path in sources:
        included = re.findall(r'^#include [<"]([^>"]+)[>"]', path.read_text("utf-8"), re.M)
        found |= {name.partition("/")[0] for name in included if "/" in name or "cuda" in name}
    ours = {"cc", "python", "twml_ops", "sys", "arpa", "netinet", "linux"}
    assert found - ours == set(INCLUDED)
    licences = (ROOT / "THIRD_PARTY_LICENSES").read_text(encoding="utf-8")
    assert [name for name in INCLUDED.values() if f"| {name}" not in licences] == []


def test_the_documents_and_the_metadata_name_the_same_pythons():
    oldest, newest = "3.10", "3.13"
    assert METADATA["requires-python"] == f">={oldest}"
    classified = [c.rpartition(" ")[2] for c in METADATA["classifiers"] if "Python :: 3." in c]
    assert (classified[0], classified[-1]) == (oldest, newest)
    for page in ("README.md", "docs/install.md"):
        text = (ROOT / page).read_text(encoding="utf-8")
        assert set(re.findall(r"Python (3\.\d+ to 3\.\d+)", text)) == {f"{oldest} to {newest}"}, (
            page
        )


# What came with Python 3.11 and later, by module.
NEWER = {
    "asyncio": {"Barrier", "Runner", "TaskGroup", "timeout"},
    "contextlib": {"chdir"},
    "datetime": {"UTC"},
    "enum": {"EnumCheck", "ReprEnum", "StrEnum", "member", "nonmember", "verify"},
    "hashlib": {"file_digest"},
    "inspect": {"getmembers_static"},
    "itertools": {"batched"},
    "math": {"cbrt", "exp2", "sumprod"},
    "operator": {"call"},
    "os": {"process_cpu_count"},
    "sys": {"exception"},
    "tomllib": {"load", "loads"},
    "typing": {"LiteralString", "Never", "NotRequired", "Required", "Self", "TypeVarTuple"}
    | {"Unpack", "assert_never", "assert_type", "override", "reveal_type"},
}


def newer_names(path):
    """What a file uses that the oldest Python of the metadata lacks."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), feature_version=(3, 10))):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            used = [(node.value.id, node.attr)]
        elif isinstance(node, ast.ImportFrom):
            used = [(node.module, alias.name) for alias in node.names]
        elif isinstance(node, ast.Import):
            used = [(alias.name, "load") for alias in node.names]
        else:
            continue
        yield from (f"{path.name}: {m}.{n}" for m, n in used if n in NEWER.get(m, ()))


def test_the_package_uses_nothing_that_the_oldest_python_lacks(tmp_path):
    files = [*(ROOT / "twml_ops").rglob("*.py"), ROOT / "native_build.py", ROOT / "setup.py"]
    assert [name for path in files for name in newer_names(path)] == []
    (tmp_path / "a.py").write_text("import datetime, tomllib\nx = datetime.UTC\n")
    assert len(list(newer_names(tmp_path / "a.py"))) == 2


def test_the_documents_and_the_metadata_name_the_same_tensorflows():
    limits = re.search(
        r"tensorflow-cpu>=([\d.]+),<2\.(\d+)", METADATA["optional-dependencies"]["cpu"][0]
    )
    first, last = limits[1], f"2.{int(limits[2]) - 1}"
    text = (ROOT / "docs" / "install.md").read_text(encoding="utf-8")
    assert f"TensorFlow | {first} to {last}" in text
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    built = re.search(r"^WHEEL_TFS \?= (.*)$", makefile, re.M)[1].split()
    assert (built[0], built[-1]) == (first, last)


@pytest.mark.parametrize("name", ["bug", "performance", "question"])
def test_an_issue_form_asks_for_what_answers_need(name):
    text = (ROOT / ".github" / "ISSUE_TEMPLATE" / f"{name}.md").read_text(encoding="utf-8")
    assert re.match(r"---\nname: .+\nabout: .+\nlabels: .+\n---\n", text)
    assert "twml-ops selfcheck" in text or name == "question"
