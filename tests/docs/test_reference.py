"""The reference has a page for every module of the package."""

from pathlib import Path

import twml_ops

PAGES = Path(__file__).resolve().parents[2] / "docs" / "api"


def test_every_module_has_a_page_in_the_reference():
    modules = set(twml_ops.__all__) - {"cli", "__version__"}  # commands explain themselves
    modules.add("serving")  # `import *` must not load it: it needs an extra
    assert {p.stem for p in PAGES.glob("*.md")} == modules
    for module in modules:
        assert f"::: twml_ops.{module}\n" in (PAGES / f"{module}.md").read_text()
