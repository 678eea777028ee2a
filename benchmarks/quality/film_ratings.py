"""Planted data: films that users have chosen, and others, where pairs of ids decide.

    python -m benchmarks.quality.film_ratings FOLDER

writes FOLDER/films_train.csv and FOLDER/films_test.csv, which are the same on every machine, and
prints the metrics of the best possible predictions. Half of the rows are films that a user has
chosen, by their popularity and by the product of the taste of the user and the content of the film,
which are vectors of 4 numbers. The other half are random films.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks.quality.planted_files import best_possible, write_files

Array = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

USERS, FILMS, CHOSEN, TEST_SHARE = 3000, 2500, 200_000, 0.2
_GENRES, _OCCUPATIONS, _FACTORS, _AT_ONCE = 18, 21, 4, 2000


def generate(
    seed: int = 0, users: int = USERS, films: int = FILMS, chosen: int = CHOSEN
) -> tuple[dict[str, Array], Array]:
    """Makes the data.

    Args:
        seed: the seed of all random numbers.
        users: number of users.
        films: number of films.
        chosen: number of rows with the label 1, and of those with the label 0.

    Returns:
        (the columns by name, the labels), int64 [2 chosen] each, in random order.
    """
    columns, labels, _ = _drawn(seed, users, films, chosen)
    return columns, labels


def _drawn(
    seed: int, users: int, films: int, chosen: int
) -> tuple[dict[str, Array], Array, Floats]:
    """What `generate` returns, and the logits of the labels given the columns."""
    rng = np.random.default_rng(seed)
    genre, occupation = rng.integers(_GENRES, size=films), rng.integers(_OCCUPATIONS, size=users)
    content = rng.normal(size=(films, _FACTORS)) + rng.normal(size=(_GENRES, _FACTORS))[genre]
    kinds = rng.normal(size=(_OCCUPATIONS, _FACTORS))[occupation]
    taste = 0.8 * rng.normal(size=(users, _FACTORS)) + 0.5 * kinds
    popularity = 1.3 * rng.normal(size=films)
    activity = np.exp(0.9 * rng.normal(size=users))
    user = rng.choice(users, 2 * chosen, p=activity / activity.sum())
    film = rng.integers(films, size=2 * chosen)
    for start in range(0, chosen, _AT_ONCE):
        who = user[start : min(start + _AT_ONCE, chosen)]
        logits = popularity + 0.84 / np.sqrt(_FACTORS) * taste[who] @ content.T
        film[start : start + len(who)] = np.argmax(logits + rng.gumbel(size=logits.shape), axis=1)
    order = rng.permutation(2 * chosen)
    labels = (order < chosen).astype(np.int64)
    user, film = user[order], film[order]
    columns = {"user": user, "film": film, "genre": genre[film], "occupation": occupation[user]}
    # A film is chosen by a softmax over all films, or drawn at random.
    every = popularity + 0.84 / np.sqrt(_FACTORS) * taste @ content.T
    every -= np.log(np.exp(every).sum(axis=1, keepdims=True))
    return columns, labels, every[user, film] + np.log(films)


if __name__ == "__main__":
    planted = _drawn(0, USERS, FILMS, CHOSEN)
    write_files(Path(sys.argv[1]), "films", *planted[:2], TEST_SHARE)
    print(best_possible(*planted[1:], TEST_SHARE))
