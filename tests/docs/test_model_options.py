"""docs/models.md has every packaged model with all of its options, and lines that use them.

The models are built with the options of these lines, but training is left to tests/models.
"""

import re
import shlex
from pathlib import Path

import pytest

from twml_ops import models
from twml_ops.data import open_source
from twml_ops.training.config import format_value
from twml_ops.training.model_options import options_of, parse_options

pytestmark = pytest.mark.one_tf

GUIDE = (Path(__file__).resolve().parents[2] / "docs" / "models.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^## `(.*?)`\n(.*?)(?=^## |\Z)", GUIDE, re.M | re.S))
DATA = {"flights": "flights[0:2000]", "libsvm:clicks.txt": "libsvm:clicks.txt"}


def lines_of(name):
    """The options of each command: the data, and the texts of `--set`."""
    lines = re.findall(
        rf"^    twml-ops train --data (\S+) --model {name}(.*)$", SECTIONS[name], re.M
    )
    for data, rest in lines:
        words = shlex.split(rest)
        yield data, [words[i + 1] for i, word in enumerate(words) if word == "--set"]


def test_the_guide_has_every_model_and_no_other():
    assert list(SECTIONS) == list(models.names())


@pytest.mark.parametrize("name", models.names())
def test_the_options_are_those_of_the_model(name):
    options = options_of(models.get(name)).values()
    rows = [f"| `{o.name}` | `{format_value(o.default)}` | {o.help} |" for o in options]
    assert re.findall(r"^\| `.*$", SECTIONS[name], re.M) == rows


@pytest.mark.parametrize("name", models.names())
def test_a_line_uses_every_option(name):
    used = {text.partition("=")[0] for _, texts in lines_of(name) for text in texts}
    assert used == {*options_of(models.get(name))}


@pytest.mark.parametrize("name", models.names())
def test_the_options_of_the_lines_build_the_model(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("clicks.txt").write_text("".join(f"{i % 2} {i % 7 + 1}:1 400:2\n" for i in range(64)))
    build = models.get(name)
    for data, texts in lines_of(name):
        given = parse_options(name, build, texts)
        if given.pop("learned_hash", None):
            assert not given  # its file is written by a command that takes minutes
            continue
        source = open_source(DATA[data])
        source.num_examples()
        dataset = source.dataset(500, layout=models.layout_of(build, given))
        assert build(source.schema, dataset, **given).count_params()
