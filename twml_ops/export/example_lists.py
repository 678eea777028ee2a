"""The lists of serialized `tf.Example`s, whatever their types, in stock TensorFlow ops.

`tf.io.parse_example` takes a feature in one type only, but a number may be an integer in one file
and a float in another, as the readers of training data allow.
"""

from __future__ import annotations

import tensorflow as tf


class ExampleLists:
    """The features of examples.

    Args:
        examples: serialized `tf.Example`s [B].
    """

    def __init__(self, examples: tf.Tensor) -> None:
        features = _first(examples, "tensorflow.Example", "features")
        sizes, (entries,) = _decode(features, "tensorflow.Features", feature=tf.string)
        shape = tf.shape(entries)
        _, (keys, values) = _decode(
            tf.reshape(entries, [-1]),
            "tensorflow.Features.FeatureEntry",
            key=tf.string,
            value=tf.string,
        )
        self._there = tf.sequence_mask(sizes[:, 0], shape[1])
        self._keys = tf.reshape(_padded(keys), shape)
        self._values = tf.reshape(_padded(values), shape)

    def numbers(self, name: str) -> tf.RaggedTensor:
        """The numbers of a feature: float32 [B, (lengths)]; integers are converted."""
        texts, floats, integers = self._lists(name)
        with tf.control_dependencies([_assert_empty(texts, name, "numbers", "text")]):
            # By way of float64, as the readers do: they are rounded in the same way.
            rounded = tf.cast(tf.cast(integers, tf.float64), tf.float32)
        return tf.concat([floats, rounded], axis=1)

    def integers(self, name: str) -> tf.RaggedTensor:
        """The integers of a feature: int64 [B, (lengths)]."""
        texts, floats, integers = self._lists(name)
        checks = [
            _assert_empty(texts, name, "integers", "text"),
            _assert_empty(floats, name, "integers", "floats"),
        ]
        with tf.control_dependencies(checks):
            return integers.with_flat_values(tf.identity(integers.flat_values))

    def texts(self, name: str) -> tf.RaggedTensor:
        """The texts of a feature: strings [B, (lengths)]; integers are their text."""
        texts, floats, integers = self._lists(name)
        with tf.control_dependencies([_assert_empty(floats, name, "text or integers", "floats")]):
            written = integers.with_flat_values(tf.strings.as_string(integers.flat_values))
        return tf.concat([texts, written], axis=1)

    def _lists(self, name: str) -> tuple[tf.RaggedTensor, tf.RaggedTensor, tf.RaggedTensor]:
        """The bytes, floats and integers of a feature; at most one of them has items in a row."""
        found = tf.logical_and(self._there, tf.equal(self._keys, name))
        # The last of equal keys counts, as in protocol buffers.
        places = tf.where(found, tf.range(1, tf.shape(found)[1] + 1), 0)
        last = tf.reduce_max(tf.pad(places, [[0, 0], [0, 1]]), axis=1)
        values = tf.concat([tf.fill([tf.shape(found)[0], 1], ""), self._values], axis=1)
        feature = tf.gather(values, last, axis=1, batch_dims=1)
        lists = []
        for kind, message, dtype in (
            ("bytes_list", "BytesList", tf.string),
            ("float_list", "FloatList", tf.float32),
            ("int64_list", "Int64List", tf.int64),
        ):
            serialized = _first(feature, "tensorflow.Feature", kind)
            sizes, (items,) = _decode(serialized, f"tensorflow.{message}", value=dtype)
            lengths = tf.cast(sizes[:, 0], tf.int64)
            lists.append(
                tf.RaggedTensor.from_tensor(items, lengths=lengths, row_splits_dtype=tf.int64)
            )
        return lists[0], lists[1], lists[2]


def at_most_one(lists: tf.RaggedTensor, name: str, missing: float | str) -> tf.Tensor:
    """The only item of each row of a feature [B], `missing` where there is none."""
    most = tf.reduce_max(tf.concat([lists.row_lengths(), [0]], axis=0))
    check = tf.debugging.Assert(
        most <= 1, [f"feature {name} must have at most one item, got", most]
    )
    with tf.control_dependencies([check]):
        return lists.to_tensor(missing, shape=[None, 1])[:, 0]


def same_lengths(lists: tf.RaggedTensor, others: tf.RaggedTensor, name: str) -> tf.Tensor:
    """The items of a feature [K], whose lists must be as long as those that they belong to."""
    equal = tf.reduce_all(tf.equal(lists.row_lengths(), others.row_lengths()))
    text = f"feature {name} must have an item for each item that it belongs to"
    with tf.control_dependencies([tf.debugging.Assert(equal, [text])]):
        return tf.identity(lists.flat_values)


def _decode(
    messages: tf.Tensor, message: str, **fields: tf.DType
) -> tuple[tf.Tensor, list[tf.Tensor]]:
    """(sizes int32 [B, fields], the items of each field [B, its largest size])."""
    messages = tf.concat([messages, [""]], axis=0)  # the op refuses an empty batch
    sizes, items = tf.io.decode_proto(messages, message, list(fields), list(fields.values()))
    return sizes[:-1], [x[:-1] for x in items]


def _first(messages: tf.Tensor, message: str, field: str) -> tf.Tensor:
    """A message in each message [B], serialized; empty where it is not there."""
    _, (items,) = _decode(messages, message, **{field: tf.string})
    return _padded(items)


def _padded(items: tf.Tensor) -> tf.Tensor:
    """The first of the strings in each row, "" where there is none."""
    return tf.concat([items, tf.fill([tf.shape(items)[0], 1], "")], axis=1)[:, 0]


def _assert_empty(lists: tf.RaggedTensor, name: str, expected: str, got: str) -> tf.Operation:
    text = f"feature {name} must hold {expected}, got {got}"
    return tf.debugging.Assert(tf.equal(tf.size(lists.flat_values), 0), [text])
