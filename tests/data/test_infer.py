"""Columns without a schema: files as tools write them are read as what they are."""

import datetime
import json
import warnings
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from twml_ops.cli import main
from twml_ops.data import ColumnUses, DataError, open_source, read_schema, schema_to_text
from twml_ops.data.infer import look_at
from twml_ops.data.text_values import numbers_of_texts

ROWS = 600
START = datetime.datetime(2024, 2, 27, 22, 5, 7)


def rng_of(name):
    return np.random.default_rng(sum(map(ord, name)))


def ids(rng, count=60, low=1000, high=90_000):
    """Ids that are drawn again and again."""
    return rng.choice(rng.choice(np.arange(low, high), count, replace=False), ROWS)


def times(rng, in_order=True):
    seconds = rng.integers(0, 20 * 86_400, ROWS)
    seconds = np.sort(seconds) if in_order else seconds
    return [START + datetime.timedelta(seconds=int(s)) for s in seconds]


def words(rng, *texts):
    return rng.choice(np.array(texts), ROWS).tolist()


def bags(rng, separator, *texts):
    return [
        separator.join(rng.choice(texts, rng.integers(1, 4), replace=False)) for _ in range(ROWS)
    ]


def holes(rng, values, empty, share=0.1):
    return [empty if rng.random() < share else v for v in values]


def sentences(rng):
    return [
        " ".join(rng.choice(["a", "red", "box", "of", "tea"], 7)) + f" {i}" for i in range(ROWS)
    ]


def csv(columns, delimiter=",", quote=False):
    """Text of a CSV file; texts are quoted where tools do."""

    def cell(value, always):
        text = str(value)
        must = delimiter in text or '"' in text or always
        return '"' + text.replace('"', '""') + '"' if must else text

    header = delimiter.join(f'"{name}"' if quote else name for name in columns)
    rows = (
        delimiter.join(cell(v, quote and isinstance(v, str) and v != "NA") for v in row)
        for row in zip(*columns.values(), strict=True)
    )
    return "\n".join([header, *rows]) + "\n"


def pandas_csv(folder):
    """`DataFrame.to_csv`: the index, floats for integers with holes, lists of Python."""
    rng = rng_of("pandas")
    columns = {
        "": range(ROWS),
        "user_id": holes(rng, ids(rng).astype(float).tolist(), ""),
        "session": [f"{x:032x}" for x in rng.integers(0, 2**62, ROWS).tolist()],
        "event_time": [t.isoformat(" ") + ".123000" for t in times(rng)],
        "is_mobile": words(rng, "True", "False"),
        "age": holes(rng, rng.integers(18, 80, ROWS).astype(float).tolist(), ""),
        "interests": [str(b.split("|")) for b in bags(rng, "|", "ski", "tea", "cars")],
        "plan": words(rng, "free", "pro"),
        "amount": np.round(rng.lognormal(3, 1, ROWS), 2).tolist(),
        "converted": words(rng, "True", "False"),
    }
    (folder / "x.csv").write_text(csv(columns))
    kinds = "dropped categorical dropped time categorical continuous bag categorical continuous"
    return "x.csv", ColumnUses(labels=("converted",)), [*kinds.split(), "label"]


def r_csv(folder):
    """`write.csv` of R: row names, quoted texts, NA, TRUE and FALSE."""
    rng = rng_of("R")
    columns = {
        "": [str(i + 1) for i in range(ROWS)],
        "store": rng.integers(1, 40, ROWS).tolist(),
        "date": sorted(str(t.date()) for t in times(rng)),
        "DayOfWeek": rng.integers(1, 8, ROWS).tolist(),
        "customers": holes(rng, rng.poisson(300, ROWS).tolist(), "NA"),
        "CompetitionDistance": (rng.integers(2, 2000, ROWS) * 10).tolist(),
        "StateHoliday": holes(rng, words(rng, "a", "b", "none"), "NA", 0.02),
        "promo": words(rng, "TRUE", "FALSE"),
        "assortment": words(rng, "basic", "extra", "extended"),
        "sold_out": words(rng, "TRUE", "FALSE"),
    }
    (folder / "x.csv").write_text(csv(columns, quote=True))
    kinds = "dropped categorical time categorical continuous continuous categorical categorical"
    return "x.csv", ColumnUses(labels=("sold_out",)), [*kinds.split(), "categorical", "label"]


def r_csv2(folder):
    """`write.csv2` of R: semicolons and decimal commas."""
    rng = rng_of("csv2")
    columns = {
        "kunde_id": ids(rng).tolist(),
        "betrag": [f"{x:.2f}".replace(".", ",") for x in rng.lognormal(3, 1, ROWS)],
        "temperature": [f"{x:.1f}".replace(".", ",") for x in rng.normal(10, 8, ROWS)],
        "plz": [f"{x:05d}" for x in ids(rng, 50, 1000, 99_999)],
        "stadt": words(rng, "Köln", "Bonn", "Ulm"),
        "y": words(rng, "yes", "no"),
    }
    (folder / "x.csv").write_text(csv(columns, ";", quote=True))
    kinds = "categorical continuous continuous categorical categorical label"
    return "x.csv", ColumnUses(labels=("y",)), kinds.split()


def spark_csv(folder):
    """A folder of parts with a mark, in folders of a partition."""
    rng = rng_of("spark")
    columns = {
        "ts": [t.isoformat() + ".000Z" for t in times(rng)],
        "uid": ids(rng).tolist(),
        "adId": ids(rng, 30, 1, 400).tolist(),
        "creativeSize": words(rng, "300x250", "728x90"),
        "bid_price": np.round(rng.lognormal(0, 1, ROWS), 4).tolist(),
        "keywords": bags(rng, ",", "shoes", "hats", "bags", "socks"),
        "hour": rng.integers(0, 24, ROWS).tolist(),
        "impressions": rng.geometric(0.3, ROWS).tolist(),
        "label": rng.integers(0, 2, ROWS).tolist(),
    }
    for k in range(2):
        part = folder / "log" / f"country={'us' if k else 'de'}"
        part.mkdir(parents=True)
        rows = slice(k * ROWS // 2, (k + 1) * ROWS // 2)
        name = f"part-0000{k}-6fd1.c000.csv"
        (part / name).write_text(csv({n: list(v)[rows] for n, v in columns.items()}))
    (folder / "log" / "_SUCCESS").write_text("")
    kinds = "time categorical categorical categorical continuous bag categorical continuous label"
    return "log", ColumnUses(), [*kinds.split(), "categorical"]


def bigquery_csv(folder):
    """Shards without a name; UTC behind times, days as integers, hashes as ids."""
    rng = rng_of("bigquery")
    hashes = rng.integers(2**53, 2**62, 50)
    columns = {
        "event_timestamp": [f"{t} UTC" for t in times(rng)],
        "event_date": [t.strftime("%Y%m%d") for t in times(rng)],
        "user_pseudo_id": rng.choice(hashes, ROWS).tolist(),
        "geo_country": holes(rng, words(rng, "NA", "DE", "US"), ""),
        "traffic_source_medium": words(rng, "organic", "cpc", "(none)"),
        "engagement_time_msec": rng.integers(0, 40_000, ROWS).tolist(),
        "ga_session_number": rng.geometric(0.2, ROWS).tolist(),
        "page_location": [f"https://a.b/{w}?x=1&y=2" for w in words(rng, "a", "b", "c")],
        "purchased": words(rng, "true", "false"),
    }
    (folder / "000000000000.csv").write_text(csv(columns))
    kinds = "time dropped categorical categorical categorical continuous continuous categorical"
    return "000000000000.csv", ColumnUses(labels=("purchased",)), [*kinds.split(), "label"]


def pandas_parquet(folder):
    """`DataFrame.to_parquet`: categoricals, nullable integers, times."""
    rng = rng_of("pandas parquet")
    table = {
        "item_id": ids(rng),
        "brand": pa.array(words(rng, "a", "b", "c")).dictionary_encode(),
        "tier": pa.array(rng.integers(1, 5, ROWS)).dictionary_encode(),
        "viewed_at": pa.array(times(rng, in_order=False), pa.timestamp("ns")),
        "rating": holes(rng, rng.integers(1, 6, ROWS).astype(float).tolist(), None),
        "colour": words(rng, "red", "green"),
        "n_reviews": rng.geometric(0.02, ROWS),
        "weight_kg": rng.lognormal(0, 1, ROWS),
        "in_stock": rng.random(ROWS) < 0.5,
        "bought": rng.integers(0, 2, ROWS).astype(np.int8),
    }
    parquet.write_table(pa.table(table), folder / "x.parquet")
    kinds = "categorical categorical categorical time continuous categorical continuous continuous"
    uses = ColumnUses(labels=("bought",))
    return "x.parquet", uses, [*kinds.split(), "categorical", "label"]


def spark_parquet(folder):
    """Structs, lists, decimals, dates and maps, in a folder."""
    rng = rng_of("spark parquet")
    table = {
        "request_id": [f"{x:016x}" for x in rng.integers(0, 2**62, ROWS).tolist()],
        "visitor": ids(rng, 50, 2**40, 2**40 + 10**6),
        "geo": [{"lat": 1.0, "lon": 2.0}] * ROWS,
        "segments": [b.split("|") for b in bags(rng, "|", "x", "y", "z")],
        "embedding": [[0.5, 1.5]] * ROWS,
        "price": pa.array([Decimal(int(x)) / 100 for x in rng.integers(1, 9999, ROWS)]),
        "day": pa.array([t.date() for t in times(rng)]),
        "genres": bags(rng, "|", "Drama", "War", "Film-Noir"),
        "browser": words(rng, "Safari", "Chrome"),
        "click": rng.integers(0, 2, ROWS),
    }
    (folder / "t").mkdir()
    parquet.write_table(pa.table(table), folder / "t" / "part-0.snappy.parquet")
    kinds = "dropped categorical dropped bag dropped continuous time bag categorical label"
    return "t", ColumnUses(labels=("click",)), kinds.split()


def milliseconds_tsv(folder):
    """A log of a server: milliseconds, hashed texts, anonymous codes."""
    rng = rng_of("tsv")
    columns = {
        "ts": [int(t.timestamp() * 1000) for t in times(rng)],
        "device_ip": [f"{x:08x}" for x in ids(rng)],
        "site_category": [f"{x:08x}" for x in ids(rng, 8)],
        "banner_pos": rng.integers(0, 3, ROWS).tolist(),
        "C14": ids(rng, 40, 15_000, 24_000).tolist(),
        "device_type": rng.choice([0, 1, 4, 5], ROWS).tolist(),
        "latency_ms": rng.integers(3, 900, ROWS).tolist(),
        "referer": words(rng, "-", "www.a.com", "b.org"),
        "status_code": rng.choice([200, 404, 500], ROWS).tolist(),
        "method": words(rng, "GET", "POST"),
        "click": rng.integers(0, 2, ROWS).tolist(),
    }
    (folder / "x.tsv").write_text(csv(columns, "\t"))
    kinds = "time categorical categorical continuous categorical categorical continuous categorical"
    uses = ColumnUses(labels=("click",))
    return "x.tsv", uses, [*kinds.split(), "categorical", "categorical", "label"]


def ratings_csv(folder):
    """Films: seconds, genres, titles with years, camel case."""
    rng = rng_of("films")
    columns = {
        "userId": ids(rng, 80, 1, 700).tolist(),
        "movieId": ids(rng, 90, 1, 9000).tolist(),
        "title": [f"Film {x}, The ({1980 + x % 40})" for x in ids(rng, 50, 1, 90).tolist()],
        "genres": bags(rng, "|", "Drama", "Comedy", "Film-Noir", "(no genres listed)"),
        "year": (1980 + rng.integers(0, 40, ROWS)).tolist(),
        "runtime_minutes": rng.integers(80, 180, ROWS).tolist(),
        "timestamp": [int(t.timestamp()) for t in times(rng, in_order=False)],
        "review": sentences(rng),
        "zip": [f"{x:05d}" for x in ids(rng, 40, 100, 99_999)],
        "liked": words(rng, "Y", "N"),
    }
    (folder / "ratings.csv").write_text(csv(columns))
    kinds = "categorical categorical categorical bag continuous continuous time dropped categorical"
    return "ratings.csv", ColumnUses(labels=("liked",)), [*kinds.split(), "label"]


def census_csv(folder):
    """Question marks, names with hyphens, capital gains that are mostly 0."""
    rng = rng_of("census")
    columns = {
        "age": rng.integers(17, 90, ROWS).tolist(),
        "workclass": holes(rng, words(rng, "Private", "State-gov"), "?"),
        "fnlwgt": rng.integers(12_285, 1_484_705, ROWS).tolist(),
        "education": words(rng, "Bachelors", "11th", "HS-grad"),
        "education-num": rng.integers(1, 17, ROWS).tolist(),
        "marital-status": words(rng, "Divorced", "Married"),
        "sex": words(rng, "Male", "Female"),
        "capital-gain": np.where(
            rng.random(ROWS) < 0.9, 0, rng.integers(100, 99_999, ROWS)
        ).tolist(),
        "hours-per-week": rng.integers(1, 99, ROWS).tolist(),
        "native-country": words(rng, "Peru", "Cuba", "?"),
        "above50k": rng.integers(0, 2, ROWS).tolist(),
    }
    (folder / "adult.csv").write_text(csv(columns))
    kinds = "continuous categorical continuous categorical continuous categorical categorical"
    kinds += " continuous continuous categorical label"
    return "adult.csv", ColumnUses(labels=("above50k",)), kinds.split()


def excel_csv(folder):
    """A German spreadsheet: a mark of UTF-8, semicolons, points between thousands, days first."""
    rng = rng_of("excel")
    amounts = [f"{x:,.2f}" for x in rng.lognormal(6, 1, ROWS)]
    columns = {
        "Bestelldatum": [t.strftime("%d.%m.%Y %H:%M") for t in times(rng)],
        "Kunden-ID": [f"K-{x}" for x in ids(rng).tolist()],
        "Umsatz": [x.translate(str.maketrans(",.", ".,")) for x in amounts],
        "Marge": [f"{x:.1f} %".replace(".", ",") for x in rng.normal(12, 4, ROWS)],
        "Gewicht": holes(rng, [f"{x:.3f}".replace(".", ",") for x in rng.random(ROWS)], ""),
        "Filiale": [f"{x:04d}" for x in ids(rng, 20, 10, 900)],
        "Retoure": words(rng, "1", "0"),
    }
    text = csv(columns, ";").replace("\n", "\r\n")
    (folder / "export.csv").write_bytes(b"\xef\xbb\xbf" + text.encode())
    kinds = "time categorical continuous continuous continuous categorical label"
    return "export.csv", ColumnUses(labels=("Retoure",)), kinds.split()


def spreadsheet_csv(folder):
    """An American spreadsheet: months first, dollars, percents, commas between thousands."""
    rng = rng_of("spreadsheet")
    columns = {
        "Order Date": [t.strftime("%-m/%-d/%Y %-I:%M %p") for t in times(rng)],
        "Ship Date": [t.strftime("%-m/%-d/%Y") for t in times(rng, in_order=False)],
        "Sales": [f"${x:,.2f}" for x in rng.lognormal(6, 1, ROWS)],
        "Discount": [f"{x}%" for x in rng.integers(0, 60, ROWS)],
        "Units": [f"{x:,}" for x in rng.integers(500, 90_000, ROWS)],
        "Postal Code": [f"{x:05d}" for x in ids(rng, 40, 1000, 99_999)],
        "Segment": words(rng, "Consumer", "Corporate", "Home Office"),
        "Returned": words(rng, "Yes", "No"),
    }
    (folder / "orders.csv").write_text(csv(columns))
    kinds = "time dropped continuous continuous continuous categorical categorical label"
    return "orders.csv", ColumnUses(labels=("Returned",)), kinds.split()


def mysql_tsv(folder):
    r"""`SELECT ... INTO OUTFILE` behind a header: \\N, numbers as flags, zero-padded codes."""
    rng = rng_of("mysql")
    columns = {
        "id": range(1, ROWS + 1),
        "created_at": [str(t) for t in times(rng)],
        "customer_id": holes(rng, ids(rng).tolist(), r"\N"),
        "is_admin": rng.integers(0, 2, ROWS).tolist(),
        "total": holes(rng, np.round(rng.lognormal(3, 1, ROWS), 2).tolist(), r"\N"),
        "coupon": holes(rng, words(rng, "SPRING", "VIP"), r"\N"),
        "country_code": words(rng, "049", "033", "001"),
        "paid": rng.integers(0, 2, ROWS).tolist(),
    }
    (folder / "dump.tsv").write_text(csv(columns, "\t"))
    kinds = "dropped time categorical continuous continuous categorical categorical label"
    return "dump.tsv", ColumnUses(labels=("paid",)), kinds.split()


def postgres_csv(folder):
    """`COPY ... CSV HEADER`: t and f, arrays in braces, JSON, times with zones."""
    rng = rng_of("postgres")
    columns = {
        "uuid": [f"{x:032x}" for x in rng.integers(0, 2**62, ROWS).tolist()],
        "seen_at": [f"{t}.25+00" for t in times(rng)],
        "active": words(rng, "t", "f"),
        "roles": ["{" + b + "}" for b in bags(rng, ",", "admin", "dev", "ops")],
        "tags": ['["' + b + '"]' for b in bags(rng, '","', "red", "blue", "x y")],
        "device": [f'{{"os": "{w}", "v": 2}}' for w in words(rng, "ios", "android")],
        "age": holes(rng, rng.integers(18, 80, ROWS).tolist(), ""),
        "churned": words(rng, "t", "f"),
    }
    (folder / "users.csv").write_text(csv(columns))
    kinds = "dropped time categorical bag bag categorical continuous label"
    return "users.csv", ColumnUses(labels=("churned",)), kinds.split()


FILES = (
    pandas_csv,
    r_csv,
    r_csv2,
    spark_csv,
    bigquery_csv,
    pandas_parquet,
    spark_parquet,
    milliseconds_tsv,
    ratings_csv,
    census_csv,
    excel_csv,
    spreadsheet_csv,
    mysql_tsv,
    postgres_csv,
)


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    """Each file as a source, and the kinds of its columns."""
    found = {}
    for write in FILES:
        folder = tmp_path_factory.mktemp(write.__name__)
        name, uses, kinds = write(folder)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found[write.__name__] = (open_source(f"{folder}/{name}", uses=uses), kinds)
    return found


@pytest.mark.parametrize("name", [write.__name__ for write in FILES])
def test_the_columns_of_files_of_other_tools_are_what_they_are(name, opened):
    source, kinds = opened[name]
    got = {n: f.kind for n, f in source.findings.items()}
    assert got == dict(zip(got, kinds, strict=True))
    assert sum(map(len, source.blocks())) == ROWS  # and are read as such


@pytest.mark.slow
@pytest.mark.parametrize("write", [pandas_csv, spark_csv, *FILES[-4:]])
def test_the_command_trains_on_files_of_other_tools_with_a_label_at_most(write, tmp_path):
    name, uses, _ = write(tmp_path)
    out, label = tmp_path / "run", [f"--label={n}" for n in uses.labels]
    options = ["--model", "logistic", "--epochs", "1", "--out", str(out)]
    main(["train", "--data", f"{tmp_path}/{name}", *label, *options])
    assert json.loads((out / "run.json").read_text())["train_examples"] > 0


def test_at_most_a_tenth_of_the_columns_is_uncertain(opened):
    findings = [f for source, _ in opened.values() for f in source.findings.values()]
    assert sum(not f.sure for f in findings) <= 0.1 * len(findings)
    assert all(f.why for f in findings)


def test_numbers_and_dates_of_spreadsheets_have_the_values_that_are_meant(opened):
    for name in ("excel_csv", "spreadsheet_csv"):
        source, _ = opened[name]
        (block,) = source.blocks()
        days = np.floor(block.columns["time"] / 86_400)
        first = datetime.datetime(2024, 2, 27, tzinfo=datetime.UTC).timestamp() / 86_400
        assert days.min() == first
        assert days.max() in (first + 19, first + 20)
        numbers = block.groups["continuous"]
        assert abs(np.median(numbers.table[:, 0]) - np.exp(6)) < 60


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("$1,234.50", 1234.5),
        ("-$5", -5),
        ("12%", 12),
        ("3.5 €", 3.5),
        ("1,234,567", 1234567),
        ("1,23", None),
        ("0,123", None),
        ("1,2345", None),
        ("5kg", None),
    ],
)
def test_texts_of_amounts_are_the_numbers_that_they_write(text, number):
    numbers, good = numbers_of_texts(pa.array([text, "NA"]))
    assert good.tolist() == [number is not None, True]
    assert np.isnan(numbers[1])
    np.testing.assert_equal(numbers[0], np.nan if number is None else number)


def test_dates_that_do_not_say_that_the_month_is_first_are_no_times(tmp_path):
    file = tmp_path / "x.csv"
    file.write_text("label,when,x\n" + "0,3/4/2024,1.5\n1,3/2/2024,2.5\n" * 5)
    with pytest.warns(UserWarning, match="do not say that the month comes first"):
        source = open_source(f"{file}")
    assert source.findings["when"].kind == "dropped"
    assert not source.findings["when"].sure
    said = open_source(f"{file}", uses=ColumnUses(time="when")).findings["when"]
    assert (said.kind, said.sure) == ("time", False)
    assert "do not say that the month comes first" in said.why


@pytest.mark.parametrize("ending", [".csv", ".parquet"])
def test_dates_with_the_day_first_are_so_in_every_row_if_one_of_them_says_it(ending, tmp_path):
    days = ["3/4/2024 10:00", "31/1/24", "2/12/2023", "", "12/11/2023"]
    want = ["2024-04-03T10:00", "2024-01-31", "2023-12-02", "NaT", "2023-11-12"]
    file = tmp_path / f"x{ending}"
    if ending == ".csv":
        file.write_text("label,when,x\n" + "".join(f"0,{day},1.5\n" for day in days))
    else:
        table = pa.table({"label": [0] * 5, "when": [d or None for d in days], "x": [1.5] * 5})
        parquet.write_table(table, file)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        source = open_source(str(file))
    schema = tmp_path / "features.yaml"
    schema.write_text(schema_to_text(source.schema, "yaml", source.findings))
    seconds = np.array(want, "datetime64[s]").astype(float)
    for again in (source, open_source(f"{file}[:3]", schema=schema)):
        (block,) = again.blocks()
        got = block.columns["time"]
        np.testing.assert_array_equal(
            got, np.where(np.isnat(np.array(want, "datetime64[s]")), np.nan, seconds)[: len(got)]
        )
    assert source.findings["when"].why.startswith("dates with the day first")
    # Serving reads a time with slashes with the month first.
    with pytest.raises(DataError, match="time_features .* column when, in which the day is first"):
        open_source(str(file), uses=ColumnUses(time_features=("hour",)))
    described = json.loads(schema_to_text(source.schema, "json", source.findings))
    described["features"] = [
        entry | {"features": ["hour"]} if entry["name"] == "when" else entry
        for entry in described["features"]
    ]
    schema.write_text(json.dumps(described))
    with pytest.raises(DataError, match="day_first"):
        read_schema(schema)


@pytest.mark.parametrize("name", [write.__name__ for write in FILES])
def test_what_schema_writes_reads_the_same_examples(name, opened, tmp_path):
    source, _ = opened[name]
    file = tmp_path / "features.json"
    file.write_text(schema_to_text(source.schema, "json", source.findings))
    assert read_schema(file) == source.schema
    again = open_source(source.name, schema=file)
    for one, two in zip(source.blocks(), again.blocks(), strict=True):
        np.testing.assert_array_equal(one.labels, two.labels)
        for group, rows in one.groups.items():
            np.testing.assert_array_equal(rows.ids, two.groups[group].ids)
            np.testing.assert_array_equal(rows.row_splits, two.groups[group].row_splits)
    if source.schema.time:
        times_of = [
            np.concatenate([b.columns["time"] for b in s.blocks()]) for s in (source, again)
        ]
        np.testing.assert_array_equal(*times_of)


def look(name, values):
    return look_at(name, pa.array(values), may_be_numbers=True)


@pytest.mark.parametrize(
    ("name", "form"),
    [
        ("ts", "%d/%b/%Y:%H:%M:%S +0000"),
        ("sent", "%a, %d %b %Y %H:%M:%S GMT"),
        ("day", "%d-%b-%y"),
        ("time", "%Y%m%d%H%M%S"),
        ("event_ts", "%s.25"),
    ],
)
def test_times_in_the_forms_of_logs_and_databases_are_times(name, form):
    rng = rng_of(name)
    texts = [t.strftime(form.replace("%s", str(int(t.timestamp())))) for t in times(rng)]
    found = look(name, texts)
    assert (found.kind, found.sure) == ("time", True)


def test_texts_that_a_column_of_times_is_not_read_as_are_left_out_and_uncertain():
    texts = [t.strftime("%Hh%M %d.%m.") for t in times(rng_of("odd"))]
    for odd in (texts, [str(t) for t in times(rng_of("odd"))] + ["unknown"]):
        found = look("event_time", odd)
        assert (found.kind, found.sure) == ("dropped", False)
        assert f"the text '{odd[0] if odd is texts else 'unknown'}' is not read as one" in found.why


@pytest.mark.parametrize(
    ("name", "values", "kind"),
    [
        ("__index_level_0__", [5, 3, 9] * ROWS, "dropped"),
        ("", np.random.default_rng(0).permutation(ROWS), "dropped"),
        ("Unnamed: 0", np.random.default_rng(0).permutation(ROWS) * 3, "dropped"),
        ("price", np.random.default_rng(0).permutation(ROWS), "continuous"),
    ],
)
def test_an_index_that_is_not_in_order_is_no_feature(name, values, kind):
    for column in (values, [str(v) for v in values]):
        assert look(name, column).kind == kind


def test_versions_are_categories_that_keep_their_zeros():
    texts = words(rng_of("versions"), "1.1", "1.10", "2.0")
    assert look("os_version", texts).kind == "categorical"
    assert look("score", texts).kind == "continuous"
    assert not look("os_version", [float(t) for t in texts]).sure


@pytest.mark.parametrize(
    ("name", "values", "kind"),
    [
        ("took", [f"{i // 60}h{i % 60}" for i in range(ROWS - 1)] + ["1h1"], "categorical"),
        ("arrays", [f"[{i % 7} {i % 5}]" for i in range(ROWS)], "categorical"),
        ("weighted", [f"a:{i % 7}.5|b:0.{i % 9}" for i in range(ROWS)], "bag"),
        ("weight", [f"{i % 40}.5 kg" for i in range(ROWS)], "categorical"),
        ("request_id", np.random.default_rng(0).permutation(ROWS).tolist(), "categorical"),
        ("big", (np.random.default_rng(0).permutation(ROWS) + 2**60).tolist(), "categorical"),
    ],
)
def test_what_is_hardly_meant_as_categories_is_uncertain(name, values, kind):
    found = look(name, values)
    assert (found.kind, found.sure) == (kind, False)


def test_minus_one_is_a_missing_category_and_less_is_a_number():
    kinds = [look("x1", [i % 7 + lowest for i in range(ROWS)]).kind for lowest in (0, -1, -2)]
    assert kinds == ["categorical", "categorical", "continuous"]


@pytest.mark.parametrize(
    ("name", "missing"), [("birth_date", 0.0), ("signup", 0.0), ("click_time", 0.6)]
)
def test_dates_of_birth_and_times_of_few_rows_order_no_examples(name, missing, tmp_path):
    rng = rng_of(name)
    dates = [str(t) if rng.random() >= missing else "" for t in times(rng, in_order=False)]
    columns = {name: dates, "x": words(rng, "a", "b"), "label": rng.integers(0, 2, ROWS).tolist()}
    (tmp_path / "x.csv").write_text(csv(columns))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        source = open_source(str(tmp_path / "x.csv"))
        said = open_source(str(tmp_path / "x.csv"), uses=ColumnUses(time=name))
    assert source.schema.time is None
    assert (source.findings[name].kind, source.findings[name].sure) == ("dropped", False)
    assert said.schema.time == name


@pytest.mark.parametrize("view", [pa.string_view(), pa.binary_view()])
def test_views_in_parquet_files_are_read_as_what_they_view(view, tmp_path):
    texts = pa.array(["a", "b"] * 10)
    tokens = []
    for name, column in (("plain", texts), ("views", texts.cast(view))):
        table = pa.table({"x": column, "label": [0, 1] * 10})
        parquet.write_table(table, tmp_path / f"{name}.parquet")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            (block,) = open_source(str(tmp_path / f"{name}.parquet")).blocks()
        tokens.append(block.groups["categorical"].table)
    np.testing.assert_array_equal(*tokens)


@pytest.mark.parametrize("name", ["session", "user_id_2", "category1"])
def test_integers_that_missing_ones_made_floats_are_what_the_integers_are(name):
    rng = rng_of(name)
    numbers = rng.choice(rng.choice(5000, 60, replace=False), ROWS, p=rng.dirichlet([0.3] * 60))
    floats = np.where(rng.random(ROWS) < 0.1, np.nan, numbers.astype(float))
    assert look(name, numbers).kind == "categorical"
    assert look(name, floats).kind == "categorical"
    texts = pa.array([None if np.isnan(x) else str(x) for x in floats])
    assert look_at(name, texts, may_be_numbers=True).kind == "categorical"
    assert look("session", numbers.astype(float)).kind == "continuous"  # nothing is missing


def test_a_time_that_some_rows_lack_says_where_these_rows_are(tmp_path):
    rows = [f"{t},{i % 2},{i}.5" for i, t in enumerate(times(rng_of("holes")))]
    rows[7] = ",1,0.5"
    (tmp_path / "x.csv").write_text("\n".join(["ts,label,x", *rows]) + "\n")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = open_source(str(tmp_path / "x.csv")).findings["ts"]
    assert (found.kind, found.sure) == ("time", False)
    assert found.why == "dates; examples without one are trained on, never held out"


@pytest.mark.parametrize("text", ["inf", "-Infinity"])
def test_infinite_numbers_are_no_categories_but_an_error_that_names_the_row(text, tmp_path):
    numbers = [i + 0.5 for i in range(60)]
    (tmp_path / "a.csv").write_text(
        "label,x\n" + "".join(f"{i % 2},{x}\n" for i, x in enumerate([*numbers, text]))
    )
    table = pa.table({"label": [0, 1] * 30 + [0], "x": [*numbers, float(text)]})
    parquet.write_table(table, tmp_path / "a.parquet")
    for kind, error in (("csv", f"line 62: column x: .* got '{text}'"), ("parquet", "row 60: x")):
        source = open_source(f"{kind}:{tmp_path}/a.{kind}")
        assert source.schema.continuous == ("x",)
        with pytest.raises(DataError, match=error):
            list(source.blocks())
