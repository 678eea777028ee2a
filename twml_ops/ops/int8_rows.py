"""`rows_to_int8`: rows as 8-bit codes and a scale each, as they are sent to other processes."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from twml_ops.ops._library import library


def rows_to_int8(rows: Any, seed: Any = None, stream: int = 0) -> tuple[tf.Tensor, tf.Tensor]:
    """Encodes each row as 8-bit codes and a scale, by which the codes are multiplied.

    The scale is the largest magnitude of the row divided by 127, rounded towards zero to 17
    significant bits. Zeros stay zeros. A row whose magnitudes are all less than 2^-100 becomes
    zeros. In a row with a NaN all items become NaN; in a row with infinities these stay, and all
    other items become NaN. The results do not depend on the number of threads or the CPU. There is
    no gradient.

    Args:
        rows: float32 [B, D].
        seed: None: items are rounded to the nearest code, to an even one in the middle of two, and
            differ by at most half the scale. An integer scalar: items are rounded up with the
            probability of the fraction (stochastic rounding), so that they differ by less than the
            scale, and by 0 on average. The random bits depend on `seed`, `stream` and the place in
            `rows`.
        stream: An integer that distinguishes rows with the same seed.

    Returns:
        `(codes, scales)`: int8 [B, D], in [-127, 127], and float32 [B].

    Raises:
        tf.errors.InvalidArgumentError: `rows` has not two dimensions.
    """
    at_random = seed is not None
    seed = tf.cast(seed, tf.int64) if at_random else tf.constant(0, tf.int64)
    return tuple(library.twml_rows_to_int8(rows, seed, stream=stream, at_random=at_random))


def rows_from_int8(codes: Any, scales: Any) -> tf.Tensor:
    """Decodes the rows of `rows_to_int8`, exactly: each code is multiplied by the row's scale.

    Args:
        codes: int8 [B, D].
        scales: float32 [B].

    Returns:
        float32 [B, D].

    Raises:
        tf.errors.InvalidArgumentError: The shapes do not fit.
    """
    return library.twml_rows_from_int8(codes, scales)


tf.no_gradient("Twml>RowsToInt8")
tf.no_gradient("Twml>RowsFromInt8")
