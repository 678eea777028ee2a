"""Builds and checks a release, and prints the commands that publish it. Nothing is published.

    make release VERSION=0.1.0

The steps, each of which must succeed before the next one begins:

1. No file of the checkout is changed or unknown to git, and no tag `vVERSION` exists.
2. pyproject.toml has this version, and CHANGELOG.md a section `## VERSION (YYYY-MM-DD)` with text.
3. `make wheel` builds the wheel, and setuptools the source distribution, which has all sources.
4. auditwheel finds no library or symbol that the manylinux tag of the wheel does not allow.
5. The wheel is installed in new environments, and trains there (tools/test_wheel.py).
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tarfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# TensorFlow loads it before it loads the op library.
FROM_TENSORFLOW = "libtensorflow_framework.so.2"
SOURCES = ("cc", "python", "twml_ops", "native_build.py", "setup.py", "pyproject.toml")


class ReleaseError(Exception):
    """Something that is missing for a release."""


def run(*command: str | Path) -> str:
    """The output of a command in the checkout, which must succeed."""
    done = subprocess.run(
        [str(c) for c in command], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True
    )
    return done.stdout


def check_version(version: str, project: str, changelog: str) -> None:
    """Checks the version in pyproject.toml and the section of the changelog.

    Args:
        version: the version to release.
        project: the text of pyproject.toml.
        changelog: the text of CHANGELOG.md.

    Raises:
        ReleaseError: they do not fit.
    """
    if not re.fullmatch(r"\d+\.\d+\.\d+", version):
        raise ReleaseError(f"VERSION must be three numbers such as 0.1.0, got {version!r}")
    found = re.search(r'^version = "(.+)"', project, re.M)
    if found is None or found[1] != version:
        raise ReleaseError(
            f"pyproject.toml: expected the version {version}, got {found[1] if found else None}"
        )
    pattern = rf"^## {re.escape(version)} \(([^)\n]*)\)\n(.*?)(?=^## |\Z)"
    section = re.search(pattern, changelog, re.M | re.S)
    if section is None or not re.fullmatch(r"\d{4}-\d\d-\d\d", section[1]):
        raise ReleaseError(
            f"CHANGELOG.md: expected a section `## {version} (YYYY-MM-DD)`, got "
            f"{'none' if section is None else repr(section[1])}"
        )
    if not section[2].strip():
        raise ReleaseError(f"CHANGELOG.md: the section of {version} is empty")


def check_tree(version: str) -> None:
    """Checks that the checkout is what git has, and that the tag is new.

    Raises:
        ReleaseError: it is not.
    """
    changed = run("git", "status", "--porcelain")
    if changed:
        raise ReleaseError(f"files are changed or unknown to git:\n{changed}")
    if run("git", "tag", "--list", f"v{version}"):
        raise ReleaseError(f"the tag v{version} exists")


def missing_sources(sdist: Path, tracked: list[str]) -> list[str]:
    """The tracked files that building needs and that a source distribution does not have."""
    with tarfile.open(sdist) as archive:
        packed = {name.partition("/")[2] for name in archive.getnames()}
    needed = [f for f in tracked if f.split("/")[0] in SOURCES and Path(f).name != "BUILD"]
    return sorted(set(needed) - packed)


def check_platform(wheel: Path, report: dict[str, object]) -> None:
    """Checks what auditwheel says about a wheel against the tag in its name.

    auditwheel counts a library of TensorFlow as foreign, with which no policy can be fulfilled; the
    symbols that the libraries need of the system decide.

    Args:
        wheel: the wheel.
        report: the output of `auditwheel show --json`.

    Raises:
        ReleaseError: the tag promises more than the libraries keep.
    """
    promised = wheel.stem.rsplit("-", 1)[1]
    by_symbols = str(report["sym_tag"])
    if _glibc(by_symbols) > _glibc(promised):
        raise ReleaseError(f"{wheel.name}: the symbols need {by_symbols}")
    foreign = set(map(str, report["external_libs"])) - {FROM_TENSORFLOW}
    if foreign:
        raise ReleaseError(f"{wheel.name}: needs the libraries {', '.join(sorted(foreign))}")


def _glibc(policy: str) -> tuple[int, ...]:
    found = re.match(r"manylinux_(\d+)_(\d+)", policy)
    if found is None:
        raise ReleaseError(f"expected a policy manylinux_2_…, got {policy}")
    return tuple(map(int, found.groups()))


def main() -> int:
    """Runs the steps."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("version", help="such as 0.1.0")
    version = parser.parse_args().version
    try:
        check_version(
            version,
            (ROOT / "pyproject.toml").read_text(encoding="utf-8"),
            (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"),
        )
        check_tree(version)
        run("make", "wheel")
        (wheel,) = (ROOT / "dist").glob(f"twml_ops-{version}-*.whl")
        python = ROOT / ".venv" / "wheel" / "bin" / "python"
        run(python, "-c", "from setuptools.build_meta import build_sdist as b; b('dist')")
        sdist = ROOT / "dist" / f"twml_ops-{version}.tar.gz"
        missing = missing_sources(sdist, run("git", "ls-files").splitlines())
        if missing:
            raise ReleaseError(f"{sdist.name} has not: {', '.join(missing)}")
        run(python, "-m", "pip", "install", "-q", "auditwheel")
        check_platform(wheel, json.loads(run(python, "-m", "auditwheel", "show", "--json", wheel)))
        print(run(python, ROOT / "tools" / "test_wheel.py", wheel, "2.15", "2.21"), end="")
    except (ReleaseError, subprocess.CalledProcessError) as error:
        print(f"release: {error}", file=sys.stderr)
        return 1
    print(f"{wheel.name} and {sdist.name} are in dist. To publish them:")
    print(f"    git tag -a v{version} -m 'twml_ops {version}'")
    print(f"    git push origin v{version}")
    print(f"    twine upload dist/{wheel.name} dist/{sdist.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
