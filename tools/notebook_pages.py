"""A hook of mkdocs: notebooks of docs are pages of the site, without outputs.

`docs/tutorial.ipynb` becomes `tutorial.md`, to which other pages link, and stays a file as well.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any


def as_markdown(notebook: Path) -> str:
    """The cells of a notebook as Markdown; lines that begin with `!` are commands of a shell."""
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    parts = []
    for cell in cells:
        text = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(text)
        elif text.startswith("!"):
            parts.append("```sh\n" + text.removeprefix("!") + "\n```")
        else:
            parts.append("```python\n" + text + "\n```")
    title, _, rest = "\n\n".join(parts).partition("\n")
    return f"{title}\n\n[The notebook]({notebook.name}) of this page.\n{rest}\n"


def on_files(files: Any, config: Any) -> Any:
    """Adds the page of each notebook.

    Args:
        files: the files of the site.
        config: the configuration of mkdocs.

    Returns:
        The files, with the pages.
    """
    from mkdocs.structure.files import File

    for notebook in [f for f in files if f.src_uri.endswith(".ipynb")]:
        text = as_markdown(Path(notebook.abs_src_path))
        name = notebook.src_uri.removesuffix(".ipynb") + ".md"
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Links to a notebook lead to its page; only the page itself links to the file.

    Args:
        markdown: the text of a page.
        page: the page.
        config: the configuration of mkdocs.
        files: the files of the site.

    Returns:
        The text with such links.
    """
    own = page.file.src_uri.removesuffix(".md") + ".ipynb"
    if any(f.src_uri == own for f in files):
        return markdown
    return re.sub(r"\]\(([\w/.]+)\.ipynb\)", r"](\1.md)", markdown)
