"""Notebooks of the documents become pages of the site."""

import json
from types import SimpleNamespace

from tools import notebook_pages


def test_a_page_has_the_cells_of_the_notebook_and_a_link_to_it(tmp_path):
    cells = [("markdown", "# Title\n\nText"), ("code", "!ls"), ("code", "x = 1\nx")]
    notebook = {"cells": [{"cell_type": k, "source": [s]} for k, s in cells]}
    path = tmp_path / "a.ipynb"
    path.write_text(json.dumps(notebook))
    page = notebook_pages.as_markdown(path)
    assert page.startswith("# Title\n\n[The notebook](a.ipynb)")
    assert page.rstrip().endswith("Text\n\n```sh\nls\n```\n\n```python\nx = 1\nx\n```")


def test_other_pages_link_to_the_page():
    files = [SimpleNamespace(src_uri="a.ipynb"), SimpleNamespace(src_uri="b.md")]

    def text_of(name):
        page = SimpleNamespace(file=SimpleNamespace(src_uri=name))
        return notebook_pages.on_page_markdown("[x](a.ipynb)", page, None, files)

    assert text_of("b.md") == "[x](a.md)"
    assert text_of("a.md") == "[x](a.ipynb)"
