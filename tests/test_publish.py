"""Files appear whole or not at all."""

import pytest

from tests.small_files import small_files
from twml_ops._publish import write_file


def test_a_file_that_cannot_be_written_leaves_the_one_before_and_nothing_else(tmp_path):
    write_file(tmp_path / "a.json", b"first")
    with small_files(100), pytest.raises(OSError, match="too large"):
        write_file(tmp_path / "a.json", b"second" * 100)
    assert (tmp_path / "a.json").read_bytes() == b"first"
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]
