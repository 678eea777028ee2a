"""`twml-ops learn-hash`: a model with a vector for each category, and the hash that it gives."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import tensorflow as tf
from rich.markup import escape

from twml_ops import layers, models, optimizers
from twml_ops.cli.errors import UserError
from twml_ops.cli.render.terminal import make_console
from twml_ops.cli.runs.folder import new_file, write_result
from twml_ops.cli.runs.sources import LARGE_BATCH_SIZE
from twml_ops.data import Source, open_source, original_errors

MODEL = "dlrm"


@dataclasses.dataclass(frozen=True)
class HashOptions:
    """What the user chose; see `twml-ops learn-hash --help`.

    Attributes:
        data: SOURCE of the training data.
        schema: file with the uses of the columns, or None.
        ratio: size of tables with a row for each category, divided by that to reach.
        units: width of the vectors of the model that uses the hash.
        own_share: share of the memory for categories with a row of their own.
        cluster_share: share of the memory for clusters.
        min_count: occurrences from which a category is in a cluster.
        learned_units: width of the vectors that are clustered.
        epochs: passes over the data.
        batch_size: examples in a batch.
        learning_rate: of LazyAdam.
        seed: the seed of the weights, the order and the clusters.
    """

    data: str
    schema: str | None
    ratio: float
    units: int
    own_share: float
    cluster_share: float
    min_count: int
    learned_units: int
    epochs: int
    batch_size: int
    learning_rate: float
    seed: int


def learn_hash_of(options: HashOptions, out: Path, overwrite: bool = False) -> None:
    """Trains a model, learns the hash, writes it and prints the size of the tables.

    Args:
        options: what to train on, and the memory.
        out: file to write.
        overwrite: replace an existing file.

    Raises:
        UserError: the data have no categories, `out` cannot be written, or scikit-learn is missing.
        ValueError: data cannot be read.
    """
    try:
        import sklearn.cluster  # noqa: F401  (fail before the data are read)
    except ImportError as e:
        raise UserError('learn-hash needs scikit-learn: pip install "twml_ops[calibrate]"') from e
    with new_file(out, overwrite) as file:
        names, learned = _learned(options)
        write_result(file, out, lambda path: layers.save_hash(learned, names, path))
    make_console().print(
        f"[bold]written[/]  {escape(str(out))}: {len(names)} fields, {sum(learned.num_rows):,} "
        f"rows",
        soft_wrap=True,
    )


def _learned(options: HashOptions) -> tuple[list[str], layers.LearnedHash]:
    """The names of the fields, and their hash."""
    source = open_source(options.data, schema=options.schema)
    names = [*source.schema.fields, *source.schema.bags]
    if not names:
        raise UserError(f"{options.data}: has no categories")
    build = models.get(MODEL)
    with original_errors(source):
        source.num_examples()
        batches = source.dataset(LARGE_BATCH_SIZE, layout=models.layout_of(build))
        model = _trained(source, batches, options)
        learned = models.learn_hash(
            model,
            source.schema,
            batches,
            ratio=options.ratio,
            units=options.units,
            own_share=options.own_share,
            cluster_share=options.cluster_share,
            min_count=options.min_count,
            seed=options.seed,
        )
    return names, learned


def _trained(source: Source, batches: tf.data.Dataset, options: HashOptions) -> tf.keras.Model:
    """A model with a vector for each category."""
    build = models.get(MODEL)
    tf.keras.utils.set_random_seed(options.seed)
    model = build(source.schema, batches, units=options.learned_units, min_count=1)
    optimizer = optimizers.LazyAdam(options.learning_rate)
    model.compile(optimizer, "binary_crossentropy", jit_compile=False)
    shuffled = source.dataset(
        options.batch_size, shuffle=True, seed=options.seed, layout=models.layout_of(build)
    )
    model.fit(shuffled, epochs=options.epochs, verbose=0, shuffle=False)
    return model
