"""A typical input pipeline, as input of `twml-ops tune-input`, which finds faster settings.

    twml-ops tune-input examples/input_pipeline.py:pipeline

Records are parsed one by one, from one file after the other, in one thread, and without
prefetching. The first call writes the records: 8 files of `tf.train.Example`.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import tensorflow as tf

from twml_ops.data import Pipeline

FILES, ROWS, ENTRIES = 8, 1000, 100
FEATURES = {
    "ids": tf.io.RaggedFeature(tf.int64),
    "values": tf.io.RaggedFeature(tf.float32),
    "label": tf.io.FixedLenFeature([1], tf.float32),
}


def write(folder: Path, files: int = FILES, rows: int = ROWS) -> None:
    """Writes the records, which are the same each time."""
    rng = np.random.default_rng(0)
    for i in range(files):
        with tf.io.TFRecordWriter(str(folder / f"part-{i}.tfrecord")) as writer:
            for _ in range(rows):
                count = int(rng.integers(ENTRIES // 2, ENTRIES * 3 // 2))
                feature = {
                    "ids": _feature(int64_list=rng.integers(0, 1 << 20, count)),
                    "values": _feature(float_list=rng.random(count)),
                    "label": _feature(float_list=[float(rng.random() < 0.3)]),
                }
                example = tf.train.Example(features=tf.train.Features(feature=feature))
                writer.write(example.SerializeToString())


def pipeline(folder: Path | None = None) -> Pipeline:
    """The pipeline that reads the records in `folder`. It writes them first if there are none."""
    folder = folder or Path(tempfile.gettempdir()) / "twml_ops_input_pipeline"
    folder.mkdir(parents=True, exist_ok=True)
    if not list(folder.glob("*.tfrecord")):
        write(folder)
    return Pipeline(
        files=str(folder / "*.tfrecord"),
        batch_size=256,
        parse_one=lambda record: tf.io.parse_single_example(record, FEATURES),
        parse_batch=lambda records: tf.io.parse_example(records, FEATURES),
    )


def _feature(**values: object) -> tf.train.Feature:
    ((kind, numbers),) = values.items()
    list_type = {"int64_list": tf.train.Int64List, "float_list": tf.train.FloatList}[kind]
    return tf.train.Feature(**{kind: list_type(value=numbers)})
