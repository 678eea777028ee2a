"""The docstrings of all public symbols agree with their signatures.

Public are the symbols in the `__all__` of the package's modules (of `twml_ops.core`: all that it
imports from this package), and the public methods and constructors of public classes. A method that
overrides one of a base class, with the same parameters, need not repeat its Args and Returns.
Sources are read, not imported, by the parser that the reference pages are rendered with.

`docstring_violations.txt` lists the symbols that do not comply yet. A listed symbol that complies
fails the test, so the list only becomes shorter.
"""

import ast
import logging
import re
import textwrap
from pathlib import Path

import griffe
import pytest

ROOT = Path(__file__).resolve().parents[2]
LIST = Path(__file__).with_name("docstring_violations.txt")
COMMANDS = "twml_ops.cli"  # without a page in the reference; its text is in `--help`
INITIALIZERS = ("__init__", "__post_init__")
PARAMETERS = griffe.DocstringSectionKind.parameters
ATTRIBUTES = griffe.DocstringSectionKind.attributes
RAISES = griffe.DocstringSectionKind.raises
RESULTS = {griffe.DocstringSectionKind.returns, griffe.DocstringSectionKind.yields}

# Overrides whose arguments, results and errors are documented by Keras.
KERAS_METHODS = {
    *("build", "build_from_config", "compute_mask", "compute_output_shape", "compute_output_spec"),
    *("from_config", "get_build_config", "get_config", "load_own_variables", "reset_state"),
    *("reset_states", "result", "save_own_variables"),
}


logging.getLogger("griffe").setLevel(logging.ERROR)  # the tests say what is wrong


def load(root=ROOT, name="twml_ops"):
    # An inspected extension module has no parameters; its stub does.
    loader = griffe.GriffeLoader(
        search_paths=[root], docstring_parser="google", allow_inspection=False
    )
    package = loader.load(name)
    loader.resolve_aliases(implicit=True)
    return package


def resolved(symbol):
    """The definition that an imported name stands for; None if it is from another package."""
    try:
        return symbol.final_target if symbol.is_alias else symbol
    except griffe.AliasResolutionError:
        return None


def modules_of(package):
    for module in package.modules.values():
        if not (module.is_alias or module.name.startswith("_") or module.path == COMMANDS):
            yield module
            yield from modules_of(module)


def public_names(module):
    if module.exports is not None:
        return sorted(str(name) for name in module.exports)
    if module.name != "core":
        return []
    return sorted(name for name in module.members if not name.startswith("_"))


def public_symbols(package):
    """Public name -> definition, each definition once, by the first of its public names."""
    found, seen = {}, set()
    for module in sorted(modules_of(package), key=lambda m: m.path):
        for name in public_names(module):
            symbol = resolved(module.members[name])
            if symbol is None or symbol.is_module or symbol.canonical_path in seen:
                continue
            seen.add(symbol.canonical_path)
            found[f"{module.path}.{name}"] = symbol
    for path, symbol in list(found.items()):
        for name, member in (symbol.all_members if symbol.is_class else {}).items():
            method = resolved(member)
            if method is None or not method.is_function or method.canonical_path in seen:
                continue
            if (name == "__call__" or not name.startswith("_")) and name not in KERAS_METHODS:
                seen.add(method.canonical_path)
                found[f"{path}.{name}"] = method
    return dict(sorted(found.items()))


def sections(*symbols):
    """The parsed sections of the docstrings that there are."""
    return [s for x in symbols if x is not None and x.docstring for s in x.docstring.parsed]


def names_in(sections, *kinds):
    """The documented names. One entry may document several: `low, high: Bounds.`"""
    entries = [entry for s in sections if s.kind in kinds for entry in s.value]
    return {name.strip() for entry in entries for name in entry.name.split(",")}


def parameters_of(function):
    """The names of a function's parameters as a docstring writes them."""
    stars = {
        griffe.ParameterKind.var_positional: "*",
        griffe.ParameterKind.var_keyword: "**",
    }
    names = [stars.get(p.kind, "") + p.name.lstrip("*") for p in function.parameters]
    bound = function.parent.is_class and "staticmethod" not in function.labels
    return [n for n in names[1 if bound else 0 :] if not n.startswith("_")]


def statements_of(node):
    """All nodes of a function but the nodes of functions and classes inside it."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, (ast.FunctionDef, ast.ClassDef, ast.Lambda)):
            yield child
            yield from statements_of(child)


def raised_by(function):
    """The exceptions raised in a function's body: class names, or "" where it is a variable."""
    if function is None or not function.source:
        return set()
    (node,) = ast.parse(textwrap.dedent(function.source)).body
    raised = set()
    for statement in statements_of(node):
        if isinstance(statement, ast.Raise) and statement.exc is not None:
            call = statement.exc
            name = ast.unparse(call.func if isinstance(call, ast.Call) else call).rpartition(".")[2]
            raised.add(name if name[0].isupper() else "")
    return raised - {"NotImplementedError"}  # an abstract method


def compare(parameters, documented, what):
    documented = {n for n in documented if not n.startswith("_")}
    missing = [n for n in parameters if n not in documented]
    extra = sorted(documented - set(parameters))
    if missing:
        yield f"{what} not documented: {', '.join(missing)}"
    if extra:
        yield f"documented, but no {what}: {', '.join(extra)}"


def compare_raises(raised, parsed):
    entries = [entry for s in parsed if s.kind is RAISES for entry in s.value]
    documented = {str(entry.annotation).rpartition(".")[2] for entry in entries}
    missing = sorted(raised - documented - {""})
    if missing or (raised and not documented):
        yield f"raises, but not documented: {', '.join(missing) or 'an exception'}"


def overridden_by(method):
    """The method of a base class in this package that a method overrides with equal parameters."""
    for base in method.parent.mro() if method.parent.is_class else ():
        found = base.members.get(method.name)
        if found is not None and found.is_function:
            return found if parameters_of(found) == parameters_of(method) else None
    return None


def function_violations(function):
    parsed = sections(function)
    documented = names_in(parsed, PARAMETERS)
    if documented or overridden_by(function) is None:
        yield from compare(parameters_of(function), documented, "argument")
    returned = str(function.returns).strip("'\"") if function.returns is not None else "None"
    returns = returned not in ("None", "NoReturn", "Never") and overridden_by(function) is None
    if returns and not RESULTS & {s.kind for s in parsed}:
        yield f"returns {returned}, but has no Returns"
    yield from compare_raises(raised_by(function), parsed)


def constructor_violations(cls):
    """A class docstring documents the constructor; a NamedTuple's or dataclass' also as fields."""
    members = cls.all_members
    init, post = (resolved(members[n]) if n in members else None for n in INITIALIZERS)
    parsed = sections(cls, init)
    arguments, fields = (names_in(parsed, kind) for kind in (PARAMETERS, ATTRIBUTES))
    if any(str(base).endswith("NamedTuple") for base in cls.bases):
        parameters = [n for n, m in cls.members.items() if m.is_attribute and m.annotation]
        yield from compare(parameters, arguments | fields, "field")
    elif "dataclass" in cls.labels:
        parameters = parameters_of(init)
        yield from compare(parameters, arguments | (fields & set(parameters)), "argument")
    elif init is not None:
        yield from compare(parameters_of(init), arguments, "argument")
    yield from compare_raises(raised_by(init) | raised_by(post), parsed)


def violations(symbol):
    """What is wrong with the docstring of a symbol."""
    if not symbol.docstring or not symbol.docstring.value.strip():
        return ["no docstring"]
    if symbol.is_class:
        return list(constructor_violations(symbol))
    return list(function_violations(symbol)) if symbol.is_function else []


PACKAGE = load()
SYMBOLS = public_symbols(PACKAGE)
LISTED = {line for line in LIST.read_text(encoding="utf-8").splitlines() if line and line[0] != "#"}


@pytest.mark.parametrize("name", list(SYMBOLS))
def test_docstring_and_signature_agree(name):
    found = violations(SYMBOLS[name])
    if name in LISTED:
        assert found, f"{name} complies: remove it from {LIST.name}"
    else:
        assert found == []


def test_the_list_of_violations_names_public_symbols():
    assert sorted(LISTED - set(SYMBOLS)) == []


def test_public_symbols_of_every_kind_are_found():
    names = set(SYMBOLS)
    assert names >= {
        "twml_ops.ops.csr_from_indices",
        "twml_ops.layers.SparseLinear",
        "twml_ops.layers.SparseLinear.call",
        "twml_ops.core.sum_duplicates",
        "twml_ops.core.QuantileSketch.update",
        "twml_ops.core.Scorer",
    }
    submodules = {p.parent.name for p in (ROOT / "twml_ops").glob("*/__init__.py")}
    without = {"cli", "report"}  # no public names
    assert {n.split(".")[1] for n in names} == submodules - without | {"core"}


SAMPLE = '''
from typing import NamedTuple

__all__ = ["Box", "Pair", "complete", "wrong"]

class Pair(NamedTuple):
    """Two.

    Attributes:
        left: One.
    """
    left: int
    right: int

class Box:
    """A box.

    Args:
        size: Its size.

    Raises:
        ValueError: `size` is negative.
    """
    def __init__(self, size: int, **kwargs):
        if size < 0:
            raise ValueError(size)
        if kwargs:
            raise TypeError(kwargs)

    def open(self, how: str) -> bool:
        """Opens it."""

def complete(a: int, *rest: int, b: int = 1, c: int = 2, **kwargs: int) -> int:
    """Adds.

    Args:
        a: First.
        *rest: More.
        b, c: Last.
        **kwargs: Named.

    Returns:
        The sum.

    Raises:
        ValueError: `a` is 0.
    """
    if not a:
        raise ValueError(a)
    return a

def wrong(a: int, b: int) -> None:
    """Does nothing.

    Args:
        a: First.
        d: Of an older version.
    """
    def inner():
        raise KeyError(a)
    raise error_of(b)
'''


@pytest.fixture(scope="module")
def sample(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sample") / "package"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "part.py").write_text(SAMPLE)
    symbols = public_symbols(load(folder.parent, "package"))
    return {re.sub(r"^package\.part\.", "", n): violations(s) for n, s in symbols.items()}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("complete", []),
        ("Pair", ["field not documented: right"]),
        (
            "Box",
            ["argument not documented: **kwargs", "raises, but not documented: TypeError"],
        ),
        (
            "Box.open",
            ["argument not documented: how", "returns bool, but has no Returns"],
        ),
        (
            "wrong",
            [
                "argument not documented: b",
                "documented, but no argument: d",
                "raises, but not documented: an exception",
            ],
        ),
    ],
)
def test_violations_are_found(sample, name, expected):
    assert sample[name] == expected
