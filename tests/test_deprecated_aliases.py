"""Every old name that a module of the package declares resolves to an object under its new name."""

import ast
import importlib
from pathlib import Path

import pytest
import tensorflow as tf

import twml_ops

PACKAGE = Path(twml_ops.__file__).parent


def aliases():
    """(module, old name, new name) of every call of `deprecated_aliases` in the package."""
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "deprecated_aliases":
                for old, new in ast.literal_eval(node.args[1]).items():
                    yield pytest.param(module, old, new, id=f"{module}.{old}")


def test_aliases_are_found():
    assert len(list(aliases())) > 20


@pytest.mark.parametrize(("name", "old", "new"), list(aliases()))
def test_an_alias_resolves_with_a_warning(name, old, new):
    if name == "twml_ops.estimator" and not hasattr(tf, "estimator"):
        pytest.skip("this TensorFlow has no tf.estimator")
    module = importlib.import_module(name)
    with pytest.warns(DeprecationWarning, match=f"use {name}.{new}"):
        assert getattr(module, old) is getattr(module, new)
