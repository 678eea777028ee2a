"""The generated tables in the repository."""

import json
import shutil
from pathlib import Path

from benchmarks import run, tables
from benchmarks.quality import page as quality_page

ROOT = Path(__file__).parents[2]


def test_the_generated_tables_are_those_of_the_raw_results(tmp_path):
    docs = tmp_path / "docs"
    docs.mkdir()
    shutil.copy(ROOT / "README.md", tmp_path)
    shutil.copy(ROOT / "docs/performance.md", docs)
    file = tables.results_file(ROOT / "docs", "performance.json")
    run.write(json.loads(file.read_text()), docs)
    for page in ("README.md", "docs/performance.md"):
        assert (tmp_path / page).read_text() == (ROOT / page).read_text(), page


def test_the_tables_of_quality_are_those_of_the_raw_results(tmp_path):
    copy = Path(shutil.copy(ROOT / "docs/quality.md", tmp_path))
    content = json.loads(tables.results_file(ROOT / "docs", "quality.json").read_text())
    for name, text in (
        ("summary", quality_page.summary(content)),
        ("tables", quality_page.page(content)),
    ):
        tables.insert(copy, name, text, "python -m benchmarks.quality")
    assert copy.read_text() == (ROOT / "docs/quality.md").read_text()
