"""The files and headings to which the documents link are there."""

import functools
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *ROOT.glob("docs/design/*.md")])


def text_of(page):
    """The text of a page without its fenced blocks."""
    return re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.S | re.M)


@functools.cache
def anchors(page):
    """The anchors of the headings of a page, as MkDocs and GitHub make them."""
    titles = re.findall(r"^#+ (.*)$", text_of(page), re.M)
    plain = (re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title).lower() for title in titles)
    return {re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", title).strip()) for title in plain}


def dead_links(page, text):
    """Yields the links in the text of a page whose file or heading does not exist."""
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"https?:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        to_heading = anchor and target.suffix == ".md"
        if not target.exists() or (to_heading and anchor not in anchors(target)):
            yield link


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_the_files_and_headings_that_a_page_links_to_are_there(page):
    assert list(dead_links(page, text_of(page))) == []


def test_a_dead_link_would_be_found():
    dead = "[a](none.md#a) [b](train.md#no-such-heading) [c](#no-such-heading)"
    live = "[a](train.md) [b](train.md#how-many-epochs) [c](#from-c-c-rust-and-other-languages)"
    page = ROOT / "docs" / "serving.md"
    assert list(dead_links(page, dead)) == re.findall(r"\((.*?)\)", dead)
    assert list(dead_links(page, live)) == []
