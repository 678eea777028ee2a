"""Chunks of whole lines, and files that are not what they were said to be."""

import contextlib
import gzip
from itertools import pairwise

import numpy as np
import pytest

from twml_ops.data import DataError, open_source, text


@pytest.mark.parametrize("chunk_bytes", [1, 2, 3, 7, 100])
@pytest.mark.parametrize("raw", [b"a\n", b"a", b"\n", b"a\nbb\n\nccc\n", b"a\nbb\n\nccc", b"\n\na"])
@pytest.mark.parametrize("name", ["x", "x.gz"])
def test_chunks_are_whole_lines_and_know_their_number(
    raw, chunk_bytes, name, text_file, monkeypatch
):
    monkeypatch.setattr(text, "CHUNK_BYTES", chunk_bytes)
    chunks = list(text.read_chunks(text_file(raw, name)))
    assert b"".join(c.text for c in chunks) == raw
    for before, chunk in pairwise(chunks):
        assert before.text.endswith(b"\n")
        assert chunk.first_line == before.first_line + before.text.count(b"\n")
    assert chunks[0].first_line == 1


def test_a_missing_file_a_folder_and_an_empty_file_are_told_apart(tmp_path, text_file):
    with pytest.raises(FileNotFoundError, match=r"gone\.tsv: no such file"):
        open_source(f"criteo:{tmp_path / 'gone.tsv'}")
    with pytest.raises(DataError, match="expected a file, got a folder"):
        open_source(f"libsvm:{tmp_path}")
    with pytest.raises(DataError, match="the file is empty"):
        open_source(f"libsvm:{text_file('', 'empty')}")
    with pytest.raises(DataError, match="the file holds no lines"):
        list(open_source(f"libsvm:{text_file('', 'empty.gz')}").blocks())


def test_any_cut_of_a_gzip_file_is_an_error(tmp_path, criteo_file, criteo_row):
    rng = np.random.default_rng(0)
    rows = [criteo_row(c14=b"%d" % i) for i in rng.integers(0, 2**40, 500)]
    with open(criteo_file(rows, "whole.gz"), "rb") as f:
        raw = f.read()
    path = tmp_path / "cut.gz"
    for cut in [1, 5, 10, len(raw) // 2, len(raw) - 8, len(raw) - 1]:
        path.write_bytes(raw[:cut])
        with pytest.raises(
            DataError, match=r"cut\.gz: damaged or truncated \.gz, after line \d+"
        ) as e:
            list(open_source(f"criteo:{path}").blocks())
        assert "\n" not in str(e.value)
    path.write_bytes(raw[:-20] + bytes(12) + raw[-8:])
    with pytest.raises(DataError, match="damaged or truncated"):
        open_source(f"criteo:{path}").num_examples()


def test_plain_text_called_gz_is_an_error(tmp_path):
    path = tmp_path / "plain.gz"
    path.write_text("1 1:1\n")
    with pytest.raises(DataError, match="damaged or truncated"):
        open_source(f"libsvm:{path}").num_examples()


def test_a_gzip_file_of_several_members_is_read_to_the_end(tmp_path, rows_of):
    path = tmp_path / "two.gz"
    path.write_bytes(gzip.compress(b"1 1:1\n") + gzip.compress(b"0 2:1\n"))
    assert len(rows_of(open_source(f"libsvm:{path}").blocks())) == 2


def test_a_line_without_end_is_refused(text_file, monkeypatch):
    monkeypatch.setattr(text, "MAX_LINE_BYTES", 50)
    monkeypatch.setattr(text, "CHUNK_BYTES", 10)
    with pytest.raises(DataError, match="line 2 is longer than 64 MiB"):
        list(text.read_chunks(text_file("1 1:1\n" + "x" * 100)))


@pytest.mark.parametrize("scheme", ["criteo", "libsvm"])
def test_no_bytes_crash_a_reader(scheme, tmp_path):
    rng = np.random.default_rng(7)
    alphabet = np.frombuffer(b'01 \t\n:#-.e\r\0"\xff', np.uint8)
    for i in range(150):
        path = tmp_path / f"{i}"
        path.write_bytes(rng.choice(alphabet, rng.integers(1, 200)).tobytes())
        with contextlib.suppress(DataError):
            list(open_source(f"{scheme}:{path}").blocks())
