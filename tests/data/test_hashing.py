"""The category hash against a slow reference in plain Python integers."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twml_ops.data.hashing import hash_column, hash_tokens

MASK = (1 << 64) - 1


def mix(x):
    x = (x + 0x9E3779B97F4A7C15) & MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def reference(column: str, token: bytes) -> int:
    def hash_of(text, seed):
        h = mix((seed + len(text)) & MASK)
        for i in range(0, len(text), 8):
            h = mix(h ^ int.from_bytes(text[i : i + 8].ljust(8, b"\0"), "little"))
        return h

    return hash_of(token, hash_of(column.encode(), 0)) >> 1


@pytest.mark.parametrize("length", [0, 1, 7, 8, 9, 15, 16, 17, 100])
def test_every_word_of_a_token_counts(length):
    tokens = [bytes(range(1, length + 1))]
    tokens += [tokens[0][:i] + b"\xff" + tokens[0][i + 1 :] for i in range(length)]
    ids = hash_tokens("C1", pa.array(tokens, pa.binary()))
    assert ids.tolist() == [reference("C1", t) for t in tokens]
    assert len(set(ids.tolist())) == len(tokens)


@settings(deadline=None, max_examples=50)
@given(st.text(max_size=12), st.lists(st.binary(max_size=30), max_size=20))
def test_equals_the_reference_and_fits_63_bits(column, tokens):
    ids = hash_tokens(column, pa.array(tokens, pa.binary()))
    assert ids.dtype == np.int64
    assert ids.tolist() == [reference(column, t) for t in tokens]
    assert (ids >= 0).all()


def test_golden_ids_never_change():
    assert hash_tokens("carrier", pa.array(["UA", ""])).tolist() == [
        reference("carrier", b"UA"),
        reference("carrier", b""),
    ]
    assert hash_tokens("C1", pa.array(["68fd1e64"]))[0] == 582315284826222214


def test_columns_keep_equal_tokens_apart():
    token = pa.array(["a"])
    assert hash_tokens("C1", token)[0] != hash_tokens("C2", token)[0]


def test_trailing_zero_bytes_count():
    ids = hash_tokens("c", pa.array([b"a", b"a\0", b"a\0\0"], pa.binary()))
    assert len(set(ids.tolist())) == 3


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.binary()])
@pytest.mark.parametrize("encode", [False, True])
def test_a_column_has_the_ids_of_its_tokens_whatever_its_type(kind, encode):
    tokens = ["b", None, "a", "b", ""]
    array = pa.array([None if t is None else t.encode() for t in tokens], pa.binary()).cast(kind)
    array = array.dictionary_encode() if encode else array
    for column in (array, pa.chunked_array([array.slice(0, 2), array.slice(2)])):
        ids, present = hash_column("x", column)
        assert present.tolist() == [t is not None for t in tokens]
        assert ids[present].tolist() == [
            reference("x", t.encode()) for t in tokens if t is not None
        ]


def test_a_sliced_array_and_a_column_of_nulls():
    array = pa.array(["a", "b", "c"]).slice(1)
    assert hash_tokens("x", array).tolist() == [reference("x", b"b"), reference("x", b"c")]
    ids, present = hash_column("x", pa.array([None, None], pa.string()))
    assert ids.tolist() == [0, 0]
    assert not present.any()
