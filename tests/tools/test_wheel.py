"""The manylinux tag of the wheel follows from the symbols of its libraries."""

import importlib.util
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[2] / "tools" / "wheel.py"
spec = importlib.util.spec_from_file_location("wheel_tool", SOURCE)
wheel = importlib.util.module_from_spec(spec)
spec.loader.exec_module(wheel)


@pytest.mark.parametrize(
    ("symbols", "glibc"),
    [
        ("", 17),
        ("0000 DF *UND* (GLIBC_2.2.5) memcpy", 17),
        ("(GLIBC_2.34) pthread_create\n(GLIBC_2.32) x", 34),
        ("(GLIBC_2.14) memcpy\n(GLIBCXX_3.4.29) y\n(GLIBCXX_3.4) z", 34),
        ("(GLIBCXX_3.4.30) y", 35),
        ("(GLIBCXX_3.4.21) y", 17),
    ],
)
def test_the_newest_symbol_determines_the_glibc(symbols, glibc):
    assert wheel.glibc_of(symbols) == glibc


def test_a_library_newer_than_every_known_policy_gets_no_old_tag():
    assert wheel.glibc_of("(GLIBCXX_3.4.99) y") == 99
