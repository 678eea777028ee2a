import re
from pathlib import Path

import pytest

README = Path(__file__).resolve().parents[2] / "README.md"
BLOCKS = re.findall(
    r"^```python\n(.*?)^```", README.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
)


def test_there_is_an_example():
    assert BLOCKS


@pytest.mark.parametrize("code", BLOCKS)
def test_every_python_block_of_the_readme_runs_and_learns(code):
    scope = {}
    exec(code, scope)  # the reader's own copy and paste
    history = scope["model"].history.history["loss"]
    assert history[-1] < history[0]
