"""Category ids: a hash of (column, token), the same on every machine and in every run.

Version 2, of new runs, is keyed SipHash-2-4 modulo 2^62 (`twml_ops/_category_hash.py`), which
`layers.StringHash` computes in a TensorFlow graph. The empty token is a missing value.

Version 1, of runs that were written before there was a version, is read for those runs only:

    mix(x)       = the finalizer of SplitMix64 (Steele, Lea, Flood 2014) on 64-bit words
    hash(s, h0)  = h := mix(h0 + len(s)); for each 8-byte little-endian word w of s (the last
                   one padded with zero bytes): h := mix(h XOR w); the result is h
    id           = hash(token, hash(column, 0)) >> 1

Tokens are bytes; text is hashed as UTF-8. With U distinct (column, token) pairs the probability of
a collision is about U^2 / 2^63: 7e-5 for 2^24.5 (25 million) of them.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from twml_ops import core
from twml_ops._category_hash import MISSING, NUM_BUCKETS, VERSION, column_key
from twml_ops.data.block import Array

VERSIONS = (1, VERSION)
_GAMMA = np.uint64(0x9E3779B97F4A7C15)


def _mix(x: Array) -> Array:
    x = x + _GAMMA
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    x ^= x >> np.uint64(31)
    return x


def _hash_version_1(data: Array, offsets: Array, seed: Array) -> Array:
    """hash(data[offsets[i] : offsets[i + 1]], seed) for every i: uint64 [len(offsets) - 1].

    One pass over the strings per 8 bytes of length, on strings that are still that long.
    """
    lengths = np.diff(offsets)
    hashes = _mix(seed + lengths.astype(np.uint64))
    padded = np.concatenate([data, np.zeros(8, np.uint8)])
    alive = np.flatnonzero(lengths > 0)
    word = 0
    while alive.size:
        begin = offsets[alive] + 8 * word
        left = lengths[alive] - 8 * word
        raw = padded[begin[:, None] + np.arange(8)]
        raw[np.arange(8) >= left[:, None]] = 0
        hashes[alive] = _mix(hashes[alive] ^ raw.view("<u8")[:, 0].astype(np.uint64))
        alive = alive[left > 8]
        word += 1
    return hashes


def _bytes_of(tokens: pa.Array) -> tuple[Array, Array]:
    """The bytes of a binary array and the int32 or int64 offsets of its elements."""
    kind = tokens.type
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        width: type[np.signedinteger] = np.int32
    else:
        tokens, width = tokens.cast(pa.large_binary()), np.int64
    _, offsets, data = tokens.buffers()
    if not len(tokens) or offsets is None:
        return np.zeros(0, np.uint8), np.zeros(len(tokens) + 1, np.int64)
    ends = np.frombuffer(offsets, width)[tokens.offset :][: len(tokens) + 1]
    return np.frombuffer(data, np.uint8) if data else np.zeros(0, np.uint8), ends


def hash_tokens(
    column: str, tokens: pa.Array, *, version: int = VERSION, typed: bool = False
) -> Array:
    """The category ids of `tokens` in `column`.

    Args:
        column: name of the categorical column.
        tokens: pyarrow string or binary array [U] without nulls.
        version: the version of the hash, 1 or 2 (see the module's docstring).
        typed: whether the categories are integers or bools, of which `3.0` is hashed as `3` and
            `True` as `true`, and texts such as `NA` are missing; of version 2.

    Returns:
        int64 [U]: version 2 in [0, 2^62), and -1 for an empty token; version 1 in [0, 2^63).

    Raises:
        ValueError: there is no such version.
    """
    check_version(version)
    data, offsets = _bytes_of(tokens)
    if version == 1:
        name = np.frombuffer(column.encode(), np.uint8)
        seed = _hash_version_1(name, np.array([0, len(name)]), np.zeros(1, np.uint64))
        hashes = _hash_version_1(data, offsets.astype(np.int64), seed)
        return (hashes >> np.uint64(1)).astype(np.int64)
    ids = core.hash_strings(data, offsets, column_key(column), num_buckets=NUM_BUCKETS, typed=typed)
    missing = offsets[1:] == offsets[:-1]
    if typed:  # null values are hashed as the empty text
        empty = core.hash_strings(data[:0], [0, 0], column_key(column), num_buckets=NUM_BUCKETS)
        missing |= ids == empty
    ids[missing] = MISSING
    return ids


def check_version(version: int) -> None:
    """Raises ValueError if there is no such version of the hash."""
    if version not in VERSIONS:
        raise ValueError(f"hash_version must be one of {VERSIONS}, got {version!r}")


def hash_column(
    column: str,
    tokens: pa.Array | pa.ChunkedArray,
    *,
    version: int = VERSION,
    typed: bool = False,
) -> Array:
    """The category ids of a column; each distinct token of a dictionary is hashed once.

    Args:
        column: name of the categorical column.
        tokens: pyarrow array [R] of strings, binary or a dictionary of them; null = missing.
        version: the version of the hash.
        typed: as of `hash_tokens`.

    Returns:
        int64 [R], -1 where the value is missing.
    """
    if isinstance(tokens, pa.ChunkedArray):
        tokens = tokens.unify_dictionaries().combine_chunks()
        if isinstance(tokens, pa.ChunkedArray):  # older pyarrow leaves a single chunk
            tokens = tokens.chunk(0)
    if not pa.types.is_dictionary(tokens.type) and version == VERSION:
        ids = hash_tokens(column, tokens, version=version, typed=typed)
        if tokens.null_count:
            ids[tokens.is_null().to_numpy(zero_copy_only=False)] = MISSING
        return ids
    if not pa.types.is_dictionary(tokens.type):
        tokens = tokens.dictionary_encode()
    present = tokens.indices.is_valid().to_numpy(zero_copy_only=False)
    codes = tokens.indices.fill_null(0).to_numpy(zero_copy_only=False)
    unique = hash_tokens(column, tokens.dictionary, version=version, typed=typed)
    ids = unique[codes] if len(unique) else np.full(len(codes), MISSING)
    return np.where(present, ids, MISSING)
