"""The reference has a page for every module of the package, and the menu has every page."""

import importlib
from pathlib import Path

import pytest
import yaml

import twml_ops

ROOT = Path(__file__).resolve().parents[2]
PAGES = ROOT / "docs" / "api"


def test_every_module_has_a_page_in_the_reference():
    modules = set(twml_ops.__all__) - {"cli", "__version__"}  # commands explain themselves
    modules.add("serving")  # `import *` must not load it: it needs an extra
    modules = modules - {"Classifier"} | {"classifier"}  # a class, and its module
    assert {p.stem for p in PAGES.glob("*.md")} == modules
    for module in modules:
        assert f"::: twml_ops.{module}\n" in (PAGES / f"{module}.md").read_text()


def pages_of(menu):
    """The files that a part of the menu names."""
    if isinstance(menu, str):
        return [menu]
    parts = menu.values() if isinstance(menu, dict) else menu
    return [page for part in parts for page in pages_of(part)]


def test_the_menu_has_every_page_once():
    config = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    docs = ROOT / "docs"
    pages = [str(p.relative_to(docs)) for p in docs.rglob("*.md")]
    pages += [str(p.relative_to(docs).with_suffix(".md")) for p in docs.rglob("*.ipynb")]
    assert sorted(pages_of(config["nav"])) == sorted(pages)


@pytest.mark.parametrize("name", ["data", "layers", "metrics", "models", "optimizers"])
def test_completion_shows_the_public_names_of_a_package_only(name):
    package = importlib.import_module(f"twml_ops.{name}")
    assert dir(package) == sorted(package.__all__)
