"""`twml-ops tables`: profiles the accesses to tables and recommends which to keep in memory."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from twml_ops.cli.options import SOURCES, BatchSize, Debug, Overwrite

if TYPE_CHECKING:
    from twml_ops.training.table_profile import TablesOptions


def tables(
    data: Annotated[str, typer.Argument(help=f"Examples: {SOURCES}.", show_default=False)],
    units: Annotated[int, typer.Option(min=1, help="Weights of a row.")] = 32,
    slots: Annotated[
        int, typer.Option(min=0, help="Optimizer slots per weight: SGD 0, Adagrad 1, Adam 2.")
    ] = 1,
    batch_size: BatchSize = 1024,
    examples_per_second: Annotated[
        float, typer.Option(min=1e-6, help="Speed of the training, for bytes/s and misses/s.")
    ] = 10_000.0,
    memory: Annotated[
        float | None,
        typer.Option(
            min=0, help="MB of memory for tables and caches. [default: half of this machine's]"
        ),
    ] = None,
    file_reads: Annotated[
        float | None,
        typer.Option(min=0, help="Rows that the device of the file can read in a second."),
    ] = None,
    shuffle: Annotated[
        bool, typer.Option(help="Read in the order of `train`; otherwise in that of the files.")
    ] = True,
    seed: Annotated[int, typer.Option(min=0, help="Random seed of the order.")] = 0,
    max_ids: Annotated[
        int,
        typer.Option(
            min=64, help="Ids of a field up to which all is exact; beyond, they are sampled."
        ),
    ] = 1 << 18,
    out: Annotated[
        Path | None, typer.Option(help="PNG with the plot, or HTML with plot and table.")
    ] = None,
    overwrite: Overwrite = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, nothing else.")] = False,
    debug: Debug = False,
) -> None:
    """Shows for each field how often its rows are read, and where its table should be.

    Prints rows, entries, bytes/s, reuse distances, the hit rates of caches of several sizes, and
    the division of --memory with which most reads are served from memory: some tables are in memory
    as a whole, the others in files with a cache.
    """
    from twml_ops.training.table_profile import TablesOptions

    options = TablesOptions(
        data,
        units,
        slots,
        batch_size,
        examples_per_second,
        memory,
        file_reads,
        shuffle,
        seed,
        max_ids,
    )
    profile_tables(options, out, as_json, overwrite)


def profile_tables(
    options: TablesOptions, out: Path | None, as_json: bool, overwrite: bool = False
) -> None:
    """Reads the data once, and prints the profile and where each table should be.

    Args:
        options: what to read, and what a training is like.
        out: a PNG or HTML file to write; None: none.
        as_json: print JSON instead of a table.
        overwrite: replace an existing file.

    Raises:
        UserError: the data have no categories and no sparse ids, the memory is too small, or `out`
            cannot be written.
        ValueError: `out` has another ending.
        FileNotFoundError: the data do not exist.
        DataError: the data cannot be read.
    """
    from rich.markup import escape

    from twml_ops.cli.console import make_console, print_json
    from twml_ops.data import open_source, original_errors
    from twml_ops.report.table_profile import check_profile_suffix, print_profile, write_profile
    from twml_ops.training.run_folder import optional_file
    from twml_ops.training.table_profile import profile_of

    if out is not None:
        check_profile_suffix(out)
    console = make_console()
    with optional_file(out, overwrite) as file:
        source = open_source(options.data)
        with original_errors(source), console.status(f"reading {escape(source.name)}"):
            profile = profile_of(source, options)
        if file is not None:
            write_profile(profile, file)
    if as_json:
        print_json(dataclasses.asdict(profile))
    else:
        print_profile(console, profile, out)
