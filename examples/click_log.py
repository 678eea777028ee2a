"""Writes a click log as a shop or a feed has it: what `twml-ops train --data clicks.csv` reads.

    python examples/click_log.py clicks.csv --seed 1
    twml-ops train --data clicks.csv --label clicked --out out/clicks

Whether a shown item is clicked depends on the user and the item, on their kinds together, on the
tags, on the country together with the device, on the price and on the position; and items come up
and go down over the 30 days of the log. The same seed writes the same file.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

COUNTRIES = ("US", "DE", "FR", "GB", "BR", "IN", "JP", "CA", "ES", "IT", "NL", "SE")
DEVICES = ("phone", "tablet", "desktop", "tv")
TAGS = tuple(f"tag{i}" for i in range(40))
HEADER = ("timestamp", "user_id", "item_id", "country", "device", "price", "tags", "position")
_USERS, _ITEMS, _KINDS = 8000, 2000, 8
_FIRST_DAY = np.datetime64("2024-03-01T00:00:00")


def generate(seed: int = 0, rows: int = 100_000) -> dict[str, npt.NDArray[np.str_]]:
    """The columns of a click log in order of time, as texts.

    Args:
        seed: of all random choices.
        rows: their number.

    Returns:
        Column -> its texts; the columns of `HEADER`, and `clicked`.
    """
    rng = np.random.default_rng(seed)
    seconds = np.sort(rng.integers(0, 30 * 86_400, rows))
    users = _popular(rng, _USERS, rows, 0.6)
    items = _popular(rng, _ITEMS, rows, 0.8)
    countries = rng.choice(len(COUNTRIES), _USERS, p=_shares(len(COUNTRIES)))[users]
    devices = rng.choice(len(DEVICES), rows, p=(0.55, 0.1, 0.3, 0.05))
    base_prices = rng.lognormal(2.5, 0.8, _ITEMS)
    prices = np.round(base_prices[items] * rng.choice((0.8, 0.9, 1.0, 1.0, 1.0), rows), 2)
    positions = 1 + np.minimum(rng.geometric(0.18, rows) - 1, 19)
    numbers = rng.integers(1, 5, _ITEMS)
    tags_of = [rng.choice(len(TAGS), n, replace=False) for n in numbers]
    of_tags = rng.normal(0, 0.5, len(TAGS))
    user_kind, item_kind = (rng.integers(_KINDS, size=n) for n in (_USERS, _ITEMS))
    days = seconds / 86_400
    trend = rng.normal(0, 0.02, _ITEMS)[items] * (days - 15)
    logits = (
        -1.2
        + rng.normal(0, 0.5, _USERS)[users]
        + rng.normal(0, 0.5, _ITEMS)[items]
        + rng.normal(0, 0.7, (_KINDS, _KINDS))[user_kind[users], item_kind[items]]
        + rng.normal(0, 0.5, (len(COUNTRIES), len(DEVICES)))[countries, devices]
        + np.array([of_tags[t].sum() for t in tags_of])[items]
        - 0.35 * (np.log(prices) - 2.5)
        - 0.5 * np.log(positions)
        + trend
    )
    clicked = rng.random(rows) < 1 / (1 + np.exp(-logits))
    user_ids = rng.permutation(np.arange(10_000, 10_000 + 7 * _USERS, 7))
    item_ids = rng.permutation(np.arange(500, 500 + 3 * _ITEMS, 3))
    tags = np.array(["|".join(TAGS[t] for t in of_item) for of_item in tags_of])
    times = np.datetime_as_string(_FIRST_DAY + seconds.astype("timedelta64[s]"))
    columns = (
        np.char.replace(times, "T", " "),
        user_ids[users].astype(str),
        item_ids[items].astype(str),
        np.array(COUNTRIES)[countries],
        np.array(DEVICES)[devices],
        np.array([f"{price:.2f}" for price in prices]),
        tags[items],
        positions.astype(str),
    )
    return {**dict(zip(HEADER, columns, strict=True)), "clicked": clicked.astype(int).astype(str)}


def _shares(count: int) -> npt.NDArray[np.float64]:
    shares = 1 / np.arange(1, count + 1)
    return shares / shares.sum()


def _popular(
    rng: np.random.Generator, count: int, rows: int, power: float
) -> npt.NDArray[np.int64]:
    """Random numbers below `count`, of which the k-th is as frequent as k ** -power."""
    shares = np.arange(1, count + 1) ** -power
    return rng.choice(count, rows, p=shares / shares.sum())


def write(path: str | Path, seed: int = 0, rows: int = 100_000) -> None:
    """Writes a click log as a CSV file with a header.

    Args:
        path: of the file.
        seed: of all random choices.
        rows: their number.
    """
    columns = generate(seed, rows)
    lines = [",".join(columns), *map(",".join, zip(*columns.values(), strict=True))]
    Path(path).write_text("\n".join(lines) + "\n", encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> None:
    """Writes a file, as the arguments of the command line say."""
    parser = argparse.ArgumentParser(description="Writes a click log as a CSV file.")
    parser.add_argument("path", help="of the file")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rows", type=int, default=100_000)
    args = parser.parse_args(arguments)
    write(args.path, args.seed, args.rows)


if __name__ == "__main__":
    main()
