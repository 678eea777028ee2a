"""Old names of renamed public objects still work, with a warning that names the new one."""

import sys
import types
import warnings

import pytest

from twml_ops._deprecated import deprecated_aliases


@pytest.fixture
def module(monkeypatch):
    made = types.ModuleType("renamed_objects")
    made.new_name = object()
    made.__getattr__ = deprecated_aliases(made.__name__, {"old_name": "new_name"})
    monkeypatch.setitem(sys.modules, made.__name__, made)
    return made


def test_an_old_name_is_the_renamed_object(module):
    with pytest.warns(DeprecationWarning, match=r"old_name is .* use renamed_objects\.new_name"):
        assert module.old_name is module.new_name


def test_an_old_name_can_be_imported_with_a_warning_at_the_import(module):
    with pytest.warns(DeprecationWarning, match="old_name") as caught:
        from renamed_objects import old_name
    assert old_name is module.new_name
    assert {w.filename for w in caught} == {__file__}


def test_a_new_name_gives_no_warning(module):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert module.new_name


def test_a_name_that_never_was_is_an_attribute_error(module):
    with pytest.raises(AttributeError, match="'renamed_objects' has no attribute 'other'"):
        _ = module.other


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("compilable", "xla_compatible"),
        ("untouched_sparse_linear_gradient", "sparse_linear_gradient_inputs"),
    ],
)
def test_old_names_of_ops_are_the_new_functions(old, new):
    from twml_ops import ops

    with pytest.warns(DeprecationWarning, match=f"use twml_ops.ops.{new}"):
        assert getattr(ops, old) is getattr(ops, new)
    assert old not in ops.__all__
