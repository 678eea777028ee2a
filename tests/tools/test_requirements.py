"""The pins of requirements/ agree with each other and with the ranges of pyproject.toml."""

from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

tomllib = pytest.importorskip("tomllib")  # Python 3.11

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "requirements"
FILES = sorted(p.name for p in FOLDER.glob("*.txt"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
INSTALL_THE_PACKAGE = (
    *("tf-2.15.txt", "tf-2.21.txt"),
    *("bench.txt", "gpu.txt", "gpu-check.txt", "quality.txt", "tpu.txt"),
)
INSTALLED_WITH_TENSORFLOW = {"numpy", "tensorboard"}


def ranges():
    """All requirements in pyproject.toml, with their version ranges."""
    project = PROJECT["project"]
    extras = project["optional-dependencies"].values()
    lists = (PROJECT["build-system"]["requires"], project["dependencies"], *extras)
    return [Requirement(line) for lines in lists for line in lines]


def lines_of(path):
    lines = (line.partition("#")[0].strip() for line in path.read_text().splitlines())
    return [line for line in lines if line]


def requirements(path):
    """The requirements of a file and of the constraints that it includes."""
    found = []
    for line in lines_of(path):
        if line.startswith("-"):
            option, included = line.split()
            assert option == "-c", f"{path.name} has {line}: only -c is used here"
            found += requirements(path.parent / included)
        else:
            found.append(Requirement(line))
    return found


def pins(path):
    """Canonical name → version of the packages that a file and its constraints pin."""
    found = {}
    for r in requirements(path):
        if not r.specifier:
            continue
        (specifier,) = r.specifier
        assert specifier.operator == "==", f"{path.name}: {r} is a range; ranges are pyproject's"
        name = canonicalize_name(r.name)
        assert name not in found, f"{path.name}: {name} is pinned twice"
        found[name] = specifier.version
    return found


def out_of_range(path):
    """The pins of an environment that are outside the ranges of pyproject.toml."""
    pinned = pins(path)
    return [
        f"{r.name}=={version} is not {r.specifier}"
        for r in ranges()
        if (version := pinned.get(canonicalize_name(r.name))) and version not in r.specifier
    ]


@pytest.mark.parametrize("name", FILES)
def test_every_pin_is_in_the_ranges_of_the_package(name):
    assert out_of_range(FOLDER / name) == []


@pytest.mark.parametrize("name", FILES)
def test_all_packages_of_an_environment_are_pinned(name):
    wanted = {canonicalize_name(r.name) for r in requirements(FOLDER / name)}
    if name in INSTALL_THE_PACKAGE:
        wanted |= {
            canonicalize_name(Requirement(line).name) for line in PROJECT["project"]["dependencies"]
        }
    # The smoke suite uses the versions that a TensorFlow installs, so TensorFlow is not pinned.
    assert sorted(wanted - pins(FOLDER / name).keys()) == []


def test_a_package_is_pinned_either_in_pins_or_for_each_tensorflow():
    shared = pins(FOLDER / "pins.txt").keys()
    for name in FILES:
        own = [line for line in lines_of(FOLDER / name) if "==" in line]
        if name not in ("pins.txt", "tf-2.15.txt", "tf-2.21.txt", "tfra.txt"):
            assert own == [], f"{name} pins {own}: pins.txt or a TensorFlow's file does that"
        elif name != "pins.txt":
            assert not shared & {canonicalize_name(Requirement(line).name) for line in own}


def test_the_smoke_suite_installs_what_the_package_needs():
    needed = {
        canonicalize_name(Requirement(line).name) for line in PROJECT["project"]["dependencies"]
    }
    installed = {
        canonicalize_name(line)
        for line in lines_of(FOLDER / "smoke.txt")
        if not line.startswith("-")
    }
    assert needed - INSTALLED_WITH_TENSORFLOW <= installed


def test_a_pin_out_of_range_is_found(tmp_path):
    (tmp_path / "shared.txt").write_text("libtpu==0.0.1\nnumpy==2.4.6\n")
    (tmp_path / "env.txt").write_text("# constraints\n-c shared.txt\ntorch\n")
    assert out_of_range(tmp_path / "env.txt") == ["libtpu==0.0.1 is not >=0.0.40"]
