"""cc/core/packed_entries.h in stock ops, byte for byte."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from twml_ops.ops.stock import check

_MAGIC = 0x31707774
_SAMPLE = 8192
_HEADER = 32  # bytes
_FORM = "packed must be a message of pack_entries, got {} bytes of another form"
_WIDE = "packed has ids that {}-bit integers cannot hold"
_COUNTS = "packed must be a message of pack_entries, got one whose counts do not add up"


def pack_entries(
    ids: tf.Tensor,
    values: tf.Tensor,
    row_splits: tf.Tensor,
    parts: int,
    input_dim: int,
    binary: bool = False,
    deduplicate: bool = True,
) -> list[tf.Tensor]:
    """The op Twml>PackEntries."""
    preconditions = check.csr(ids, values, row_splits, binary)
    preconditions.append(check.ids_in_range(ids, input_dim))
    ids, values, row_splits = check.require_well_formed((ids, values, row_splits), *preconditions)
    id_bits = max(1, (max(input_dim - 1, 0) // parts).bit_length())
    ids = tf.cast(ids, tf.int64)
    return [
        _message(*_part(ids, values, row_splits, p, parts, binary), id_bits, binary, deduplicate)
        for p in range(parts)
    ]


def unpack_entries(
    packed: tf.Tensor,
    T: tf.DType,
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """The op Twml>UnpackEntries."""
    check.rank(packed, 1, "packed")
    dtype = tf.as_dtype(T)
    size, zero = tf.size(packed, tf.int64), tf.zeros([], tf.int64)
    start = tf.concat([packed, tf.zeros([_HEADER], tf.uint8)], 0)[:_HEADER]
    first, entries, rows, distinct = tf.unstack(tf.bitcast(tf.reshape(start, [4, 8]), tf.int64))
    id_bits, code_bits, length_bits, binary = (_byte(first, i) for i in range(4, 8))
    coded = code_bits > 0
    counts = (entries, rows, distinct)
    in_range = tf.reduce_all([(c >= 0) & (c <= 8 * size) for c in counts])
    bits = tf.reduce_all([(b >= 1) & (b <= 63) for b in (id_bits, length_bits)]) & (code_bits <= 32)
    valid = in_range & bits & (binary <= 1) & tf.equal(coded, distinct > 0)
    valid &= tf.equal(tf.bitwise.bitwise_and(first, 2**32 - 1), _MAGIC)
    sizes = [
        _bytes_of(rows, length_bits),
        _bytes_of(tf.where(coded, distinct, entries), id_bits),
        tf.where(coded, _bytes_of(entries, code_bits), zero),
        tf.where(binary > 0, zero, 4 * entries),
    ]
    valid &= tf.equal(_HEADER + tf.add_n(sizes), size)
    wide = f"packed has ids of {{}} bits, which {8 * dtype.size}-bit integers cannot hold"
    packed = check.require(
        packed,
        check.Precondition(lambda: valid, _FORM, (lambda: size,)),
        check.Precondition(lambda: id_bits < 8 * dtype.size, wide, (lambda: id_bits,)),
    )
    lengths, ids, codes, values = tf.split(packed[_HEADER:], sizes)
    lengths = _read(lengths, rows, length_bits)
    ids = _read(ids, tf.where(coded, distinct, entries), id_bits)
    ids = tf.cond(coded, lambda: tf.cumsum(ids + 1) - 1, lambda: ids)
    fit = tf.reduce_all((ids >= 0) & (ids <= dtype.max))
    codes = tf.cond(
        coded, lambda: _read(codes, entries, code_bits), lambda: tf.range(entries, dtype=tf.int64)
    )
    adds_up = tf.equal(tf.reduce_sum(lengths), entries) & tf.reduce_all(
        codes < tf.size(ids, tf.int64)
    )
    codes = check.require(
        codes,
        check.Precondition(lambda: adds_up, _COUNTS),
        check.Precondition(lambda: fit, _WIDE.format(8 * dtype.size)),
    )
    row_splits = tf.concat([[0], tf.cumsum(lengths)], axis=0)
    values = tf.bitcast(tf.reshape(values, [-1, 4]), tf.float32)
    return tf.cast(tf.gather(ids, codes), dtype), values, row_splits


def _part(
    ids: tf.Tensor, values: tf.Tensor, row_splits: tf.Tensor, p: int, parts: int, binary: bool
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """One part of a batch: ids within the part, values, and entries per row."""
    selected = tf.equal(ids % parts, p)
    before = tf.gather(tf.concat([[0], tf.cumsum(tf.cast(selected, tf.int64))], 0), row_splits)
    values = values if binary else tf.boolean_mask(values, selected)
    return tf.boolean_mask(ids, selected) // parts, values, before[1:] - before[:-1]


def _message(
    ids: tf.Tensor,
    values: tf.Tensor,
    lengths: tf.Tensor,
    id_bits: int,
    binary: bool,
    deduplicate: bool,
) -> tf.Tensor:
    zero = tf.zeros([], tf.int64)
    empty = tf.zeros([0], tf.uint8)
    length_bits = _bits_of(tf.reduce_max(tf.concat([lengths, [0]], 0)))
    entries, rows = tf.size(ids, tf.int64), tf.size(lengths, tf.int64)

    def plain() -> tuple[tf.Tensor, ...]:
        return tf.constant(id_bits, tf.int64), zero, zero, _write(ids, id_bits), empty

    def maybe_coded() -> tuple[tf.Tensor, ...]:
        distinct, codes = tf.unique(ids, out_idx=tf.int64)
        count = tf.size(distinct, tf.int64)
        bits = _bits_of(count - 1)
        ascending = tf.argsort(distinct)
        distinct = tf.gather(distinct, ascending)
        codes = tf.cast(tf.gather(tf.math.invert_permutation(ascending), codes), tf.int64)

        gaps = distinct - tf.concat([[-1], distinct[:-1]], 0) - 1
        gap_bits = _bits_of(tf.reduce_max(gaps))

        def coded() -> tuple[tf.Tensor, ...]:
            return gap_bits, bits, count, _write(gaps, gap_bits), _write(codes, bits)

        return tf.cond(count * gap_bits + entries * bits < entries * id_bits, coded, plain)

    sample = tf.unique(ids[:_SAMPLE]).y
    may_repeat = (2 * tf.size(sample) <= tf.minimum(tf.size(ids), _SAMPLE)) & (entries > 0)
    found = tf.cond(may_repeat, maybe_coded, plain) if deduplicate else plain()
    own_bits, code_bits, distinct, id_bytes, code_bytes = found
    known = _MAGIC + (int(binary) << 56)
    first = known + own_bits * 2**32 + code_bits * 2**40 + length_bits * 2**48
    header = tf.bitcast(tf.stack([first, entries, rows, distinct]), tf.uint8)
    numbers = empty if binary else tf.reshape(tf.bitcast(values, tf.uint8), [-1])
    sections = [tf.reshape(header, [-1]), _write(lengths, length_bits), id_bytes, code_bytes]
    return tf.concat([*sections, numbers], axis=0)


def _bytes_of(count: tf.Tensor, bits: Any) -> tf.Tensor:
    return (count * bits + 63) // 64 * 8 + 8


def _bits_of(largest: tf.Tensor) -> tf.Tensor:
    """The number of bits of the largest of some numbers, int64, at least 1."""
    powers = tf.bitwise.left_shift(tf.ones([63], tf.int64), tf.range(63, dtype=tf.int64))
    return tf.maximum(tf.reduce_sum(tf.cast(largest >= powers, tf.int64)), 1)


def _byte(word: tf.Tensor, i: int) -> tf.Tensor:
    shifted = tf.bitwise.right_shift(word, tf.constant(8 * i, tf.int64))
    return tf.bitwise.bitwise_and(shifted, 255)


def _bits(numbers: tf.Tensor, bits: Any) -> tf.Tensor:
    """The lowest `bits` bits of each number, lowest first, concatenated."""
    positions = tf.range(tf.cast(bits, tf.int64), dtype=tf.int64)
    return tf.reshape(
        tf.bitwise.bitwise_and(tf.bitwise.right_shift(numbers[:, tf.newaxis], positions), 1), [-1]
    )


def _numbers(bits_of_each: tf.Tensor) -> tf.Tensor:
    """int64 numbers from rows of bits, lowest first."""
    positions = tf.range(tf.shape(bits_of_each, tf.int64)[1], dtype=tf.int64)
    return tf.reduce_sum(tf.bitwise.left_shift(bits_of_each, positions), axis=1)


def _write(numbers: tf.Tensor, bits: Any) -> tf.Tensor:
    filled = _bits(numbers, bits)
    size = 8 * _bytes_of(tf.size(numbers, tf.int64), bits)
    filled = tf.pad(filled, [[0, size - tf.size(filled, tf.int64)]])
    words = _numbers(tf.reshape(filled, [-1, 64]))
    return tf.reshape(tf.bitcast(words, tf.uint8), [-1])


def _read(section: tf.Tensor, count: tf.Tensor, bits: tf.Tensor) -> tf.Tensor:
    words = tf.bitcast(tf.reshape(section, [-1, 8]), tf.int64)
    return _numbers(tf.reshape(_bits(words, 64)[: count * bits], [count, bits]))
