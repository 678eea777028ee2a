"""The places of a Python or C++ text that can be changed to a mutant, and what they change to.

Comments, docstrings, texts of messages, annotations, macros and hints such as prefetching are left
alone. C++ is read by patterns, which rely on the format that clang-format gives it: ` < ` with
spaces is a comparison, and an angle bracket without spaces is one of a template.
"""

from __future__ import annotations

import ast
import copy
import re
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Change:
    """One change of a text.

    Attributes:
        line: the line on which it begins, from 1.
        start: the offset of the first byte that is replaced.
        end: the offset after the last one.
        new: what takes their place.
        kind: what is changed.
    """

    line: int
    start: int
    end: int
    new: str
    kind: str

    def apply(self, text: bytes) -> bytes:
        """The changed text."""
        return text[: self.start] + self.new.encode() + text[self.end :]


SWAPPED: dict[type, type] = {
    **{ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq},
    **{ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn},
    **{ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And, ast.Add: ast.Sub, ast.Sub: ast.Add},
    **{ast.Mult: ast.FloorDiv, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult, ast.Mod: ast.FloorDiv},
}
NAMES = {"min": "max", "minimum": "maximum", "reduce_min": "reduce_max", "any": "all"}
NAMES |= {"floor": "ceil", "reduce_any": "reduce_all", "argmin": "argmax"}
NAMES |= {new: old for old, new in NAMES.items()}
SAYS_SOMETHING = re.compile(r"(^|\.)(warn|debug|info|warning|_?log\w*|overload|TypeVar)$")


def python_changes(text: bytes) -> list[Change]:
    """The changes of a Python module."""
    starts = [0]
    for row in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(row))
    found = []
    for node, new, kind in _changed_nodes(ast.parse(text)):
        start = starts[node.lineno - 1] + node.col_offset
        end = starts[node.end_lineno - 1] + node.end_col_offset
        found.append(Change(node.lineno, start, end, new, kind))
    return found


def _changed_nodes(node: ast.AST) -> Iterator[tuple[ast.AST, str, str]]:
    """Yields the nodes below a node that can be replaced, the new text, and the kind of change."""
    if isinstance(node, ast.Raise | ast.Assert):
        yield node, "pass", "removed raise"
        return
    if isinstance(node, ast.If) and re.search("TYPE_CHECKING|__name__", ast.unparse(node.test)):
        return
    if isinstance(node, ast.Call) and SAYS_SOMETHING.search(ast.unparse(node.func)):
        return
    if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
        return
    if isinstance(node, ast.JoinedStr):
        return
    yield from _changes_of(node)
    for name, value in ast.iter_fields(node):
        if name not in ("annotation", "returns"):
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from _changed_nodes(child)


def _changes_of(node: ast.AST) -> Iterator[tuple[ast.AST, str, str]]:
    """Yields the changes of one node alone."""

    def having(kind: str, **fields: object) -> tuple[ast.AST, str, str]:
        changed = copy.copy(node)
        for name, value in fields.items():
            setattr(changed, name, value)
        new = ast.unparse(changed)
        return node, new if isinstance(node, ast.stmt) else f"({new})", kind

    match node:
        case ast.Compare(ops=[op]) if type(op) in SWAPPED:
            yield having("comparison", ops=[SWAPPED[type(op)]()])
        case ast.BoolOp():
            yield having("and, or", op=SWAPPED[type(node.op)]())
        case ast.BinOp() | ast.AugAssign() if type(node.op) in SWAPPED:
            right = node.right if isinstance(node, ast.BinOp) else node.value
            texts = [right] if isinstance(node, ast.AugAssign) else [node.left, right]
            if not any(isinstance(t, ast.JoinedStr) or _is(t, str) for t in texts):
                yield having("arithmetic", op=SWAPPED[type(node.op)]())
        case ast.UnaryOp(op=ast.Not()):
            yield node, f"({ast.unparse(node.operand)})", "negated"
        case ast.Constant(value=bool()):
            yield node, repr(not node.value), "constant"
        case ast.Constant(value=int() | float()):
            yield node, f"({node.value!r} + 1)", "constant"
            yield node, f"({node.value!r} - 1)", "constant"
        case ast.Call(func=ast.Name(id="range")):
            last = f"{ast.unparse(node.args[min(1, len(node.args) - 1)])} - 1"
            index = min(1, len(node.args) - 1)
            args = [*node.args[:index], ast.Name(last), *node.args[index + 1 :]]
            yield having("range", args=args)
        case ast.Call(func=ast.Name(id=name)) if name in NAMES:
            yield having("min, max", func=ast.Name(NAMES[name]))
        case ast.Call(func=ast.Attribute(attr=name)) if name in NAMES:
            yield having("min, max", func=ast.Attribute(node.func.value, NAMES[name]))
        case ast.Return(value=ast.expr()) if not _is(node.value, type(None), bool):
            yield node, "return None", "returned value"
        case ast.Break() | ast.Continue():
            yield node, "continue" if isinstance(node, ast.Break) else "break", "loop"
        case ast.Expr(value=ast.Call()) if not SAYS_SOMETHING.search(ast.unparse(node.value.func)):
            yield node, "pass", "removed statement"
    if isinstance(node, ast.If | ast.IfExp | ast.While):
        yield node.test, f"(not ({ast.unparse(node.test)}))", "negated"
    if isinstance(node, ast.AugAssign) or (
        isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Attribute | ast.Subscript)
    ):
        yield node, "pass", "removed statement"


def _is(node: ast.AST, *types: type) -> bool:
    """Whether a node is a constant of one of the types."""
    return isinstance(node, ast.Constant) and isinstance(node.value, types)


PAIRS = [
    ("<", "<="),
    (">", ">="),
    ("==", "!="),
    ("+", "-"),
    ("&&", "||"),
    ("+=", "-="),
    ("|=", "&="),
]
# Pattern in C++, what takes its place, and the kind of change.
PATTERNS = [
    *((f" {re.escape(a)} ", f" {b} ", "operator") for a, b in PAIRS),
    *((f" {re.escape(b)} ", f" {a} ", "operator") for a, b in PAIRS),
    *(
        (rf"(?<=[\w)\]]) {re.escape(a)} (?=[\w(~-])", f" {b} ", "operator")
        for a, b in ("*/", "&|", "|&")
    ),
    *((f" {a} ", f" {b} ", "operator") for a, b in ("/*", "%*", "^|", ("<<", ">>"), (">>", "<<"))),
    (r"std::min\b", "std::max", "min, max"),
    (r"std::max\b", "std::min", "min, max"),
    (r"\btrue\b", "false", "constant"),
    (r"\bfalse\b", "true", "constant"),
    (r"\bbreak;", "continue;", "loop"),
    (r"\bcontinue;", "break;", "loop"),
    (r"(?<=[ (!])!(?=[\w(])", " ", "negated"),
    (r"(?<![\w.'<])\d+(?![\w.'>])", r"(\g<0> + 1)", "constant"),
    (r"(?<![\w.'<])[1-9]\d*(?![\w.'>])", r"(\g<0> - 1)", "constant"),
    (r"(?<![\w.])\d+\.\d*f?\b", r"(\g<0> + 1)", "constant"),
    (r"\breturn (?!Status\(\);|\{\};)[^;{}]+;", "return {};", "returned value"),
    # A statement that is one call, assignment or step and declares nothing.
    (
        r"(?<=[;{})\n])\s+(?!return\b|delete\b)(?:[\w:.>\[\]*-]+\([^;{}]*\)"
        r"|[\w:.>\[\]()*-]+ [-+*/|&^]?= [^;{}]+|(?:\+\+|--)[\w.>\[\]()-]+);",
        ";",
        "removed statement",
    ),
]
NOT_CODE = re.compile(
    r"//[^\n]*|^[ ]*#(?:[^\n]*\\\n)*[^\n]*|\"(?:\\.|[^\"\\])*\"|(?<!\w)'(?:\\.|[^'\\])+'"
    r"|^template <.*?>\n|^(?:using|namespace|extern)\b[^\n]*|\b__attribute__[^\n]*"
    r"|^[^\n]*(?:[Pp]refetch|\breserve\(|static_assert|memory_order|madvise|likely\()[^\n]*",
    re.M,
)


def _closing(text: str, start: int) -> int:
    """The offset of the bracket that closes the one at `start`."""
    depth = 0
    for i in range(start, len(text)):
        depth += (text[i] == "(") - (text[i] == ")")
        if depth == 0:
            return i
    return len(text)


def cc_changes(text: bytes) -> list[Change]:
    """The changes of a C++ file."""
    code = NOT_CODE.sub(lambda m: re.sub(r"[^\n]", " ", m[0]), text.decode("latin-1"))
    # The parts of a message, and the costs by which work is divided among threads.
    for call in list(re.finditer(r"\b(?:Invalid|FileStatus)\(", code)):
        end = _closing(code, call.end() - 1)
        code = code[: call.end()] + re.sub(r"[^\n]", " ", code[call.end() : end]) + code[end:]
    code = re.sub(r"(parallel_for\([^,;]+, )([^,;\[]+)", lambda m: m[1] + " " * len(m[2]), code)
    found = []

    def add(start: int, end: int, new: str, kind: str) -> None:
        first = start + len(code[start:end]) - len(code[start:end].lstrip())
        found.append(Change(code.count("\n", 0, first) + 1, start, end, new, kind))

    for pattern, new, kind in PATTERNS:
        for place in re.finditer(pattern, code):
            add(place.start(), place.end(), place.expand(new), kind)
    for place in re.finditer(r"\bif (?:constexpr )?\(", code):
        end = _closing(code, place.end() - 1)
        start = max(place.end(), code.rfind(";", place.end(), end) + 1)
        condition = text[start:end].decode("latin-1")
        add(start, end, f" !({condition})", "negated")
        add(start, end, f" false && ({condition})", "removed check")
    return sorted(found, key=lambda change: (change.start, change.end, change.new))
