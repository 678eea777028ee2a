"""`twml-ops learn-hash`: learns which categories may share a row of a table."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from twml_ops.cli.commands.options import BatchSize, Data, Debug, Overwrite


def learn_hash(
    data: Data,
    out: Annotated[Path, typer.Option(help="File to write, *.npz.", show_default=False)],
    ratio: Annotated[
        float,
        typer.Option(
            min=1, help="Size of tables with a row for each category, divided by that to reach."
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
        int, typer.Option(min=1, help="Occurrences from which a category is in a cluster.")
    ] = 20,
    learned_units: Annotated[
        int, typer.Option(min=1, help="Width of the vectors that are clustered.")
    ] = 8,
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the data.")] = 1,
    batch_size: BatchSize = 512,
    learning_rate: Annotated[float, typer.Option(min=0, help="Of LazyAdam.")] = 0.002,
    seed: Annotated[int, typer.Option(min=0, help="Random seed.")] = 0,
    schema: Annotated[
        str | None,
        typer.Option(help="JSON file with the uses of columns; see schema.", show_default=False),
    ] = None,
    overwrite: Overwrite = False,
    debug: Debug = False,
) -> None:
    """Trains a model with a vector for each category, and clusters the vectors.

    The most frequent categories of a field keep a row each, the next ones share the rows of
    clusters, and all others are hashed. `twml-ops train --set learned_hash=FILE` uses the file.
    """
    from twml_ops.cli.runs.learn_hash import HashOptions, learn_hash_of

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
