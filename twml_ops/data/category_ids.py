"""Category ids: a hash of (column, token), the same on every machine and in every run.

It is keyed SipHash-2-4 modulo 2^62 (`twml_ops/_category_hash.py`), which `layers.StringHash`
computes in a TensorFlow graph. The empty token is a missing value. Tokens are bytes; text is hashed
as UTF-8. With U distinct (column, token) pairs the probability of a collision is about U^2 / 2^63:
7e-5 for 2^24.5 (25 million) of them.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from twml_ops import core
from twml_ops._category_hash import MISSING, NUM_BUCKETS, column_key
from twml_ops.data.block import Array


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


def hash_tokens(column: str, tokens: pa.Array, *, typed: bool = False) -> Array:
    """The category ids of `tokens` in `column`.

    Args:
        column: name of the categorical column.
        tokens: pyarrow string or binary array [U] without nulls.
        typed: whether the categories are integers or bools, of which `3.0` is hashed as `3` and
            `True` as `true`, and texts such as `NA` are missing.

    Returns:
        int64 [U] in [0, 2^62), and -1 for an empty token.
    """
    data, offsets = _bytes_of(tokens)
    ids = core.hash_strings(data, offsets, column_key(column), num_buckets=NUM_BUCKETS, typed=typed)
    missing = offsets[1:] == offsets[:-1]
    if typed:  # null values are hashed as the empty text
        empty = core.hash_strings(data[:0], [0, 0], column_key(column), num_buckets=NUM_BUCKETS)
        missing |= ids == empty
    ids[missing] = MISSING
    return ids


def hash_column(column: str, tokens: pa.Array | pa.ChunkedArray, *, typed: bool = False) -> Array:
    """The category ids of a column; each distinct token of a dictionary is hashed once.

    Args:
        column: name of the categorical column.
        tokens: pyarrow array [R] of strings, binary or a dictionary of them; null = missing.
        typed: as of `hash_tokens`.

    Returns:
        int64 [R], -1 where the value is missing.
    """
    if isinstance(tokens, pa.ChunkedArray):
        tokens = tokens.unify_dictionaries().combine_chunks()
        if isinstance(tokens, pa.ChunkedArray):  # older pyarrow leaves a single chunk
            tokens = tokens.chunk(0)
    if not pa.types.is_dictionary(tokens.type):
        ids = hash_tokens(column, tokens, typed=typed)
        if tokens.null_count:
            ids[tokens.is_null().to_numpy(zero_copy_only=False)] = MISSING
        return ids
    present = tokens.indices.is_valid().to_numpy(zero_copy_only=False)
    codes = tokens.indices.fill_null(0).to_numpy(zero_copy_only=False)
    unique = hash_tokens(column, tokens.dictionary, typed=typed)
    ids = unique[codes] if len(unique) else np.full(len(codes), MISSING)
    return np.where(present, ids, MISSING)


def time_parts(texts: pa.Array, part: str, unit: str) -> Array:
    """A part of each time, see `core.time_parts`.

    Args:
        texts: pyarrow array [R] of strings, binary or a dictionary of them; null = missing.
        part: one of `schema.TIME_PARTS`.
        unit: one of `schema.TIME_UNITS`, or "".

    Returns:
        int64 [R], -1 where the time is missing, and -2 where the text is no time.
    """
    if pa.types.is_dictionary(texts.type):
        texts = texts.dictionary_decode()
    texts = texts.fill_null("")
    return core.time_parts(*_bytes_of(texts), part, unit)
