"""The hash of categories against a slow reference in plain Python integers."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twml_ops import core
from twml_ops._category_hash import column_key
from twml_ops.data.category_ids import hash_column, hash_tokens

MASK = (1 << 64) - 1


def siphash(key, text):
    """SipHash-2-4, word by word as the paper has it."""

    def rotate(x, bits):
        return (x << bits | x >> (64 - bits)) & MASK

    k0, k1 = key
    v0, v1 = k0 ^ 0x736F6D6570736575, k1 ^ 0x646F72616E646F6D
    v2, v3 = k0 ^ 0x6C7967656E657261, k1 ^ 0x7465646279746573
    whole = len(text) // 8 * 8
    words = [int.from_bytes(text[i : i + 8], "little") for i in range(0, whole, 8)]
    words.append((len(text) & 255) << 56 | int.from_bytes(text[whole:], "little"))
    for word, rounds in [*((w, 2) for w in words), (None, 4)]:
        if word is None:
            v2 ^= 0xFF
        else:
            v3 ^= word
        for _ in range(rounds):
            v0, v2 = (v0 + v1) & MASK, (v2 + v3) & MASK
            v1, v3 = rotate(v1, 13) ^ v0, rotate(v3, 16) ^ v2
            v0 = rotate(v0, 32)
            v2, v0 = (v2 + v1) & MASK, (v0 + v3) & MASK
            v1, v3 = rotate(v1, 17) ^ v2, rotate(v3, 21) ^ v0
            v2 = rotate(v2, 32)
        if word is not None:
            v0 ^= word
    return v0 ^ v1 ^ v2 ^ v3


def reference(column: str, token: bytes) -> int:
    if not token:
        return -1
    key = [siphash((k, 0), column.encode()) % 2**62 for k in (0, 1)]
    return siphash(key, token) % 2**62


@pytest.mark.parametrize("length", [1, 7, 8, 9, 15, 16, 17, 100, 300])
def test_every_word_of_a_token_counts(length):
    tokens = [bytes(i % 256 for i in range(1, length + 1))]
    tokens += [tokens[0][:i] + b"\xff" + tokens[0][i + 1 :] for i in range(min(length, 100))]
    ids = hash_tokens("C1", pa.array(tokens, pa.binary()))
    assert ids.tolist() == [reference("C1", t) for t in tokens]
    assert len(set(ids.tolist())) == len(tokens)


@settings(deadline=None, max_examples=50)
@given(st.text(max_size=12), st.lists(st.binary(max_size=30), max_size=20))
def test_equals_the_reference_and_fits_63_bits(column, tokens):
    ids = hash_tokens(column, pa.array(tokens, pa.binary()))
    assert ids.dtype == np.int64
    assert ids.tolist() == [reference(column, t) for t in tokens]
    assert (ids >= -1).all()


def test_golden_ids_never_change():
    token = pa.array(["68fd1e64"])
    assert hash_tokens("C1", token)[0] == reference("C1", b"68fd1e64") == 1952256935710860202
    assert column_key("C1") == tuple(siphash((k, 0), b"C1") % 2**62 for k in (0, 1))


def test_columns_keep_equal_tokens_apart():
    first, second = (hash_tokens(c, pa.array(["a"]))[0] for c in ("C1", "C2"))
    assert first != second


def test_trailing_zero_bytes_count():
    tokens = pa.array([b"a", b"a\0", b"a\0\0"], pa.binary())
    assert len(set(hash_tokens("c", tokens).tolist())) == 3


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.binary()])
@pytest.mark.parametrize("encode", [False, True])
def test_a_column_has_the_ids_of_its_tokens_whatever_its_type(kind, encode):
    tokens = ["b", None, "a", "b", ""]
    array = pa.array([None if t is None else t.encode() for t in tokens], pa.binary()).cast(kind)
    array = array.dictionary_encode() if encode else array
    wanted = [-1 if t is None else reference("x", t.encode()) for t in tokens]
    for column in (array, pa.chunked_array([array.slice(0, 2), array.slice(2)])):
        assert hash_column("x", column).tolist() == wanted


def test_a_sliced_array_and_a_column_of_nulls():
    array = pa.array(["a", "b", "c"]).slice(1)
    wanted = [reference("x", t) for t in (b"b", b"c")]
    assert hash_tokens("x", array).tolist() == wanted
    nulls = pa.array([None, None], pa.string())
    assert hash_column("x", nulls).tolist() == [-1, -1]


def test_strings_of_any_offsets_are_hashed_where_they_are():
    data = np.frombuffer(b"xabc", np.uint8)
    for width in (np.int32, np.int64):
        ids = core.hash_strings(data, np.array([1, 1, 3, 4], width), (5, -6), num_buckets=2**62)
        wanted = [siphash((5, MASK - 5), t) % 2**62 for t in (b"", b"ab", b"c")]
        assert ids.tolist() == wanted
    assert core.hash_strings(data, [1, 4], (5, 6), num_buckets=7)[0] == siphash((5, 6), b"abc") % 7
    for offsets, message in (([2, 1], "non-decreasing"), ([0, 5], "number of bytes, 4, got 5")):
        with pytest.raises(ValueError, match=message):
            core.hash_strings(data, offsets, (0, 0))
