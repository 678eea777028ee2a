"""The shell blocks of the documents: which lines are commands, and why a block is not run.

A shell block is a fenced block of bash, sh or console, or an indented one whose first line begins
with a program. Where output is shown as well, commands begin with `$`. A block that cannot run
here has the comment `<!-- not run: REASON -->` before it.
"""

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
_PROGRAMS = (
    "twml-ops",
    "make",
    "python",
    "python3",
    "pip",
    "pytest",
    "docker",
    "mpirun",
    "nice",
    "export",
)
_STARTS_PROGRAM = re.compile(rf"(?:[A-Z_]+=\S* )*(?:{'|'.join(map(re.escape, _PROGRAMS))})(?= |$)")
_TAG = re.compile(r"<!-- not run: (.+) -->")
_FENCES = ("bash", "sh", "console")


@dataclass(frozen=True)
class Block:
    """One shell block.

    Attributes:
        page: the file.
        line: number of the first line of the block.
        commands: the lines to type, without `$` and with continued lines joined.
        strange: lines that are neither a command, a comment nor output.
        reason: of the comment before the block, or None if it is to be run.
    """

    page: Path
    line: int
    commands: tuple[str, ...]
    strange: tuple[str, ...]
    reason: str | None

    @property
    def name(self) -> str:
        """For messages and ids of tests."""
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks(page: Path, text: str | None = None) -> list[Block]:
    """The shell blocks of a page, in order; `text` takes the place of its content."""
    lines = (page.read_text(encoding="utf-8") if text is None else text).splitlines()
    found, i, reason = [], 0, None
    while i < len(lines):
        start = i
        if fence := re.match(r"```(\w*)", lines[i]):
            i += 1
            while i < len(lines) and not lines[i].startswith("```"):
                i += 1
            if fence[1] in _FENCES:
                found.append(_block(page, start + 2, lines[start + 1 : i], reason))
            i, reason = i + 1, None
        elif lines[i].startswith("    ") and (i == 0 or not lines[i - 1].strip()):
            while i < len(lines) and (lines[i].startswith("    ") or not lines[i].strip()):
                i += 1
            body = [line[4:] for line in lines[start:i]]
            if _STARTS_PROGRAM.match(body[0].removeprefix("$ ")):
                found.append(_block(page, start + 1, body, reason))
            reason = None
        else:
            if tag := _TAG.fullmatch(lines[i].strip()):
                reason = tag[1]
            elif lines[i].strip():
                reason = None
            i += 1
    return found


def _block(page: Path, line: int, body: list[str], reason: str | None) -> Block:
    joined = re.sub(r" *\\\n\s*", " ", "\n".join(body)).split("\n")
    with_output = any(text.startswith("$ ") for text in joined)
    commands, strange = [], []
    for text in joined:
        if with_output:
            commands += [text[2:]] if text.startswith("$ ") else []
        elif _STARTS_PROGRAM.match(text):
            commands.append(text)
        elif text.strip() and not text.startswith("#"):
            strange.append(text)
    return Block(page, line, tuple(commands), tuple(strange), reason)


def words(command: str) -> list[str]:
    """A command line as the shell divides it; without comment, variables, nice and output file."""
    split = shlex.split(command, comments=True)
    while re.fullmatch(r"[A-Z_]+=.*", split[0]):
        split = split[1:]
    if split[0] == "nice":
        split = split[3:] if split[1] == "-n" else split[1:]
    return split[: split.index(">")] if ">" in split else split
