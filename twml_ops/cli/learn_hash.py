"""`twml-ops learn-hash`: learns which categories may share a row of a table."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from twml_ops.cli.options import BatchSize, Data, Debug, Overwrite
from twml_ops.training.errors import UserError

if TYPE_CHECKING:
    import tensorflow as tf

    from twml_ops import research
    from twml_ops.data import Source


def learn_hash(
    data: Data,
    out: Annotated[Path, typer.Option(help="File to write, *.npz.", show_default=False)],
    ratio: Annotated[
        float,
        typer.Option(
            min=1, help="Factor by which the tables shrink, from a row for each category."
        ),
    ] = 16,
    units: Annotated[
        int, typer.Option(min=1, help="Width of the vectors of the model that uses the hash.")
    ] = 8,
    own_share: Annotated[
        float,
        typer.Option(min=0, max=1, help="Share of the memory for categories with their own rows."),
    ] = 0.5,
    cluster_share: Annotated[
        float,
        typer.Option(min=0, max=1, help="Share of the memory for clusters."),
    ] = 0.4,
    min_count: Annotated[
        int, typer.Option(min=1, help="Least number of occurrences of a category in a cluster.")
    ] = 20,
    learned_units: Annotated[
        int, typer.Option(min=1, help="Width of the vectors that are clustered.")
    ] = 8,
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the data.")] = 1,
    batch_size: BatchSize = 512,
    learning_rate: Annotated[float, typer.Option(min=0, help="Learning rate of LazyAdam.")] = 0.002,
    seed: Annotated[int, typer.Option(min=0, help="Random seed.")] = 0,
    schema: Annotated[
        str | None,
        typer.Option(help="File with the kinds of the columns, as in `train`.", show_default=False),
    ] = None,
    overwrite: Overwrite = False,
    debug: Debug = False,
) -> None:
    """Trains a model with a vector for each category, and clusters the vectors.

    The most frequent categories of a field keep a row each, the next ones share the rows of
    clusters, and all others are hashed. `twml-ops train --set learned_hash=FILE` uses the file.
    """
    options = HashOptions(
        data=data,
        schema=schema,
        ratio=ratio,
        units=units,
        own_share=own_share,
        cluster_share=cluster_share,
        min_count=min_count,
        learned_units=learned_units,
        epochs=epochs,
        batch_size=batch_size,
        learning_rate=learning_rate,
        seed=seed,
    )
    learn_hash_of(options, out, overwrite)


MODEL = "dlrm"


@dataclasses.dataclass(frozen=True)
class HashOptions:
    """What the user chose; see `twml-ops learn-hash --help`.

    Attributes:
        data: SOURCE of the training data.
        schema: file with the uses of the columns, or None.
        ratio: factor by which the tables shrink, from a row for each category.
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
    from rich.markup import escape

    from twml_ops import research
    from twml_ops.cli.console import make_console
    from twml_ops.training.run_folder import new_file, write_result

    try:
        import sklearn.cluster  # noqa: F401  (fail before the data are read)
    except ImportError as e:
        raise UserError('learn-hash needs scikit-learn: pip install "twml_ops[calibrate]"') from e
    with new_file(out, overwrite) as file:
        names, learned = _learned(options)
        write_result(file, out, lambda path: research.save_hash(learned, names, path))
    make_console().print(
        f"[bold]written[/]  {escape(str(out))}: {len(names)} fields, {sum(learned.num_rows):,} "
        f"rows",
        soft_wrap=True,
    )


def _learned(options: HashOptions) -> tuple[list[str], research.LearnedHash]:
    """The names of the fields, and their hash."""
    from twml_ops import models, research
    from twml_ops.data import open_source, original_errors
    from twml_ops.training.sources import LARGE_BATCH_SIZE

    source = open_source(options.data, schema=options.schema)
    names = [*source.schema.fields, *source.schema.bags]
    if not names:
        raise UserError(f"{options.data}: has no categories")
    build = models.get(MODEL)
    with original_errors(source):
        source.num_examples()
        batches = source.dataset(LARGE_BATCH_SIZE, layout=models.layout_of(build))
        model = _trained(source, batches, options)
        learned = research.learn_hash(
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
    import tensorflow as tf

    from twml_ops import models, optimizers

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
