"""Every Python block of the guides runs, in a folder of its own."""

import re
from pathlib import Path

import pytest
import tensorflow as tf

DOCS = Path(__file__).resolve().parents[2] / "docs"
BLOCKS = [
    pytest.param(code, id=f"{guide.stem}-{i}")
    for guide in sorted(DOCS.glob("*.md"))
    for i, code in enumerate(re.findall(r"^```python\n(.*?)^```", guide.read_text(), re.S | re.M))
    if hasattr(tf, "estimator") or guide.stem != "estimator"
]


@pytest.mark.parametrize("code", BLOCKS)
def test_every_python_block_of_the_guides_runs(code, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(code, {})
