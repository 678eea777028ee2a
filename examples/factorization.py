"""Matrix factorization of ratings by stochastic gradient descent.

    python examples/factorization.py --ratings ml-100k/u.data

A rating is predicted as the mean of all ratings plus the dot product of a row of the table of users
and a row of the table of items (Koren et al., "Matrix Factorization Techniques for Recommender
Systems", Computer 2009). Without a file, ratings are generated. `peers_factorization.py` is the
same for several ranks.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np


def read(path: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The ratings of a file in the format of MovieLens 100K.

    Args:
        path: lines of user, item and rating, numbered from 1, and any other columns.

    Returns:
        (users, items, ratings), each [N].
    """
    columns = np.loadtxt(path, usecols=(0, 1, 2), dtype=np.int64, unpack=True)
    return columns[0] - 1, columns[1] - 1, columns[2].astype(np.float32)


def generate(
    users: int, items: int, ratings: int, width: int = 4
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Ratings from 1 to 5 with the rank of a factorization, and noise.

    Args:
        users: number of users.
        items: number of items; few of them get most ratings.
        ratings: their number.
        width: the width of the true factors.

    Returns:
        (users, items, ratings), each [N].
    """
    rng = np.random.default_rng(1)
    who = rng.integers(0, users, ratings)
    what = (items * rng.random(ratings) ** 2).astype(np.int64)
    tastes, kinds = rng.normal(size=(users, width)), rng.normal(size=(items, width))
    liked = (tastes[who] * kinds[what]).sum(1) / np.sqrt(width)
    stars = np.clip(np.round(3.5 + liked + 0.3 * rng.normal(size=ratings)), 1, 5)
    return who, what, stars.astype(np.float32)


def main(arguments: Sequence[str] | None = None) -> float:
    """Trains on nine tenths of the ratings and prints the error on the others after each epoch.

    Args:
        arguments: the arguments of the command line.

    Returns:
        The last root mean squared error.
    """
    parser = argparse.ArgumentParser(description="Matrix factorization.")
    parser.add_argument("--ratings", type=Path, help="default: they are generated")
    parser.add_argument("--generate", type=int, default=100_000, help="number of ratings")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--width", type=int, default=8, help="of the rows of the tables")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--rate", type=float, default=0.05, help="learning rate")
    parser.add_argument("--penalty", type=float, default=0.02, help="of the squared norm")
    args = parser.parse_args(arguments)
    if args.ratings is None:
        who, what, stars = generate(943, 1682, args.generate)
    else:
        who, what, stars = read(args.ratings)
    rng = np.random.default_rng(0)
    order = rng.permutation(len(stars))
    train, held_out = order[: len(order) * 9 // 10], order[len(order) * 9 // 10 :]
    mean = stars[train].mean()
    count = who.max() + 1
    shape = count + what.max() + 1, args.width
    factors = rng.normal(0, 0.1, shape).astype(np.float32)
    users, items = factors[:count], factors[count:]
    if not 0 < len(held_out) < len(order):
        parser.error(f"{len(order)} ratings are too few")
    for epoch in range(args.epochs):
        shuffled = np.random.default_rng([1, epoch]).permutation(train)
        for begin in range(0, len(shuffled), args.batch_size):
            batch = shuffled[begin : begin + args.batch_size]
            u, v = who[batch], what[batch]
            error = (stars[batch] - mean - (users[u] * items[v]).sum(1))[:, None]
            to_users = error * items[v] - args.penalty * users[u]
            to_items = error * users[u] - args.penalty * items[v]
            np.add.at(users, u, args.rate * to_users)
            np.add.at(items, v, args.rate * to_items)
        u, v = who[held_out], what[held_out]
        errors = stars[held_out] - mean - (users[u] * items[v]).sum(1)
        last = float(np.sqrt(np.square(errors).mean()))
        print(f"epoch {epoch + 1}  error {last:.4f}")
    return last


if __name__ == "__main__":
    main()
