"""`twml-ops plan`: a table, JSON or a plot, without TensorFlow."""

import json
import subprocess
import sys

import pytest

from twml_ops.cli import main
from twml_ops.planning import ClusterResources, Job, Table, shard

COSTS = {
    "slots": 0,
    "microseconds": {
        "alone": {"step": 1200, "table": 90, "entry": 0.016, "weight": 0.001},
        "worker": {"step": 300, "message": 50, "table": 110, "entry": 0.016, "activation": 0.003},
        "server": {"message": 50, "table": 30, "entry": 0.016, "weight": 0.001},
    },
}
TABLE = ["plan", "--table", "2^19x128", "--unique", "40000"]


def test_the_table_names_every_strategy_and_the_choice(capsys):
    main([*TABLE, "--egress", "150", "--servers", "2", "--sparse-ms", "5", "--dense-ms", "1"])
    out = capsys.readouterr().out
    for text in ("268 MB", "standard parameter server", "row lookup", "all-reduce", "by column"):
        assert text in out
    assert "choice" in out


def test_json_has_the_values_of_the_table(capsys):
    main(
        [
            *TABLE,
            "--table",
            "1000x16",
            "--entries",
            "200",
            "--entries",
            "1",
            "--unique",
            "9",
            "--json",
        ]
    )
    found = json.loads(capsys.readouterr().out)
    assert [t["input_dim"] for t in found["job"]["tables"]] == [2**19, 1000]
    assert [t["entries"] for t in found["job"]["tables"]] == [200, 1]
    standard = found["strategies"]["standard parameter server"]
    assert standard["bytes_per_link"]["server → worker"] == (2**19 * 128 + 16_000) * 4 / 2
    assert standard["steps_per_second"] == pytest.approx(0.3563, rel=1e-3)
    assert found["strategies"]["single machine"]["steps_per_second"] is None
    assert found["choice"]["strategy"].startswith("hybrid")


def test_the_plot_is_written(tmp_path, capsys):
    path = tmp_path / "new" / "plan.png"
    main([*TABLE, "--out", str(path), "--dense-ms", "1"])
    assert path.read_bytes().startswith(b"\x89PNG")
    assert "plan.png" in capsys.readouterr().out


@pytest.fixture
def costs(tmp_path):
    path = tmp_path / "costs.json"
    path.write_text(json.dumps(COSTS))
    return str(path)


def test_with_costs_the_plan_says_when_one_machine_is_faster(costs, capsys):
    main([*TABLE, "--costs", costs, "--workers", "1", "--servers", "1", "--cores", "0.2"])
    out = " ".join(capsys.readouterr().out.split())
    assert "CPU µs of one" in out
    assert "a single machine is faster:" in out
    assert "a cluster is faster from " in out


def test_with_costs_the_plan_recommends_a_batch_size_and_where_servers_run(costs, capsys):
    arguments = ["--batch", "64", "--batch", "1024", "--servers", "2", "--workers", "4"]
    main([*TABLE, *arguments, "--costs", costs, "--mode", "async", "--json"])
    found = json.loads(capsys.readouterr().out)
    rates = found["choice"]["examples_per_second_by_batch"]
    assert rates["1024"] > rates["64"]
    assert found["choice"]["batch"] == found["job"]["batch"] == 1024
    assert found["choice"]["servers_in_workers"] in (True, False)
    assert found["choice"]["hosts_to_break_even"] >= 2
    assert found["cluster"]["asynchronous"]
    assert found["compute"]["costs"]["worker"]["message"] == pytest.approx(50)
    p = found["strategies"]["hybrid by row"]
    assert p["worker_cpu_seconds"] > 300e-6


def test_distinct_ids_of_the_first_batch_size_grow_with_the_others(capsys):
    main([*TABLE, "--batch", "512", "--batch", "1024", "--json"])
    found = json.loads(capsys.readouterr().out)
    unique = found["job"]["tables"][0]["unique"]
    assert unique == 40_000 * found["job"]["batch"] / 512


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "No such file"), ("{", "is not a file of --out-costs"), ("[]", "is not a file of"),
     ('{"microseconds": {"alone": {}}}', "got None for worker")],
)  # fmt: skip
def test_a_bad_file_of_costs_gives_one_line(content, message, tmp_path, capsys):
    path = tmp_path / "costs.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(SystemExit) as exit_:
        main([*TABLE, "--costs", str(path)])
    out, err = capsys.readouterr()
    assert (exit_.value.code, out) == (1, "")
    assert "--costs" in err
    assert message in err
    assert err.count("\n") == 1


@pytest.mark.slow
def test_measured_costs_are_used_and_written_and_can_be_read(tmp_path, capsys):
    path = tmp_path / "new" / "costs.json"
    main([*TABLE, "--measure", "--slots", "1", "--out-costs", str(path), "--json"])
    measured = json.loads(capsys.readouterr().out)
    costs = measured["compute"]["costs"]
    for process, part in (("alone", "step"), ("worker", "message"), ("server", "message")):
        assert 0 < costs[process][part] < 1e5, costs
    assert 0 < costs["server"]["entry"] < 10
    main([*TABLE, "--costs", str(path), "--slots", "1", "--json"])
    read = json.loads(capsys.readouterr().out)
    assert read["choice"]["steps_per_second"] == pytest.approx(
        measured["choice"]["steps_per_second"]
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["plan"], "--table, --tables or --run must be given"),
        ([*TABLE, "--tables", "x"], "--tables: --table, --unique: the file has these"),
        ([*TABLE, "--out-plan", "x"], "--out-plan and --way need --tables or --run"),
        ([*TABLE, "--way", "row"], "--out-plan and --way need --tables or --run"),
        ([*TABLE, "--data", "x"], "--data needs --run"),
        (["plan", "--run", "x", "--tables", "y"], "--run and --tables: give one of them"),
        (["plan", "--run", "x", "--entries", "9"], "--run: --entries: the run has these"),
        (["plan", "--run", "x", "--servers", "0"], "servers must be positive, got 0"),
        (["plan", "--tables", "x", "--batch", "8", "--batch", "9"], "--batch must be given once"),
        (["plan", "--tables", "nowhere.json"], "nowhere.json"),
        (["plan", "--table", "big"], "ROWSxUNITS"),
        ([*TABLE, "--egress", "0"], "egress must be positive, got 0"),
        ([*TABLE, "--servers", "0"], "servers must be positive"),
        ([*TABLE, "--batch", "-1"], "batch must be positive"),
        ([*TABLE, "--unique", "1"], "--unique must be given once"),
        ([*TABLE, "--dense-ms", "-1"], "dense must not be negative"),
        ([*TABLE, "--server-memory", "0.1"], "servers must be at least 3"),
        ([*TABLE, "--out", "plan.jpg"], "must end in .png"),
        ([*TABLE, "--out", "plan.jpg", "--measure"], "must end in .png"),
        ([*TABLE, "--mode", "hogwild"], "--mode: expected sync or async, got 'hogwild'"),
        ([*TABLE, "--cores", "0"], "cores must be positive"),
        ([*TABLE, "--measure", "--slots", "3"], "slots must be one of 0, 1, 2; got 3"),
        ([*TABLE, "--measure", "--costs", "x"], "--measure and --costs: give one of them"),
        ([*TABLE, "--out-costs", "x"], "--out-costs needs --measure"),
    ],
)
def test_a_bad_argument_gives_one_line(arguments, message, capsys):
    with pytest.raises(SystemExit) as exit_:
        main(arguments)
    out, err = capsys.readouterr()
    assert exit_.value.code in (1, 2)
    assert out == ""
    assert message in err
    assert err.count("\n") == 1


def test_tensorflow_is_not_loaded():
    code = (
        "import sys; from twml_ops.cli import main; "
        f"main({TABLE!r}); assert 'tensorflow' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


TABLES = [
    {"name": "user", "rows": 10_000_000, "units": 16, "entries": 1},
    {"name": "words", "rows": 50_000, "units": 64, "entries": 40, "hot_rows": 10, "hot_share": 0.3},
    {"name": "site", "rows": 1_000, "units": 4, "entries": 1, "outputs": 12},
]


def write_tables(path, tables):
    path.write_text(json.dumps({"tables": tables}))
    return ["plan", "--tables", str(path), "--servers", "2"]


def test_many_tables_are_planned_written_and_drawn(tmp_path, capsys):
    words = write_tables(tmp_path / "tables.json", TABLES)
    plan, picture = tmp_path / "plan.json", tmp_path / "plan.png"
    main([*words, "--out-plan", str(plan), "--out", str(picture), "--server-memory", "2"])
    out = capsys.readouterr().out
    for text in ("user", "10,000,000 × 16", "words", "is the slowest", "% full", "plan.json"):
        assert text in out
    assert picture.read_bytes().startswith(b"\x89PNG")
    main([*words, "--server-memory", "2", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert json.loads(plan.read_text()) == found
    assert [t["name"] for t in found["tables"]] == ["user", "words", "site"]
    for table in found["tables"]:
        assert sorted(table["servers"]) in ([[0], [1]] if table["way"] == "table" else [[0, 1]])
    assert len(found["seconds"]) == len(found["bytes"]) == 2
    assert max(found["bytes"]) <= 2e9


def test_servers_on_the_hosts_of_workers_are_as_many_and_send_less(tmp_path, capsys):
    (tmp_path / "costs.json").write_text(json.dumps(COSTS))
    words = ["--workers", "4", "--egress", "10", "--json"]
    for options in ([], ["--costs", str(tmp_path / "costs.json")]):
        main([*TABLE, *words, *options, "--servers", "4"])
        apart = json.loads(capsys.readouterr().out)["strategies"]["hybrid by row"]
        main([*TABLE, *words, *options, "--servers-in-workers"])
        found = json.loads(capsys.readouterr().out)
        inside = found["strategies"]["hybrid by row"]
        for who in ("worker", "server"):
            sent = apart["bytes_sent_per_host"][who]
            assert inside["bytes_sent_per_host"][who] == pytest.approx(0.75 * sent)
        assert (inside["servers"], found["cluster"]["servers"]) == (4, 4)
        assert found["choice"]["servers_in_workers"]
    main([*TABLE, "--workers", "4", "--servers-in-workers"])
    assert "4 workers, 4 servers of hybrids in their processes" in capsys.readouterr().out
    tables = [*write_tables(tmp_path / "tables.json", TABLES)[:-2], *words, "--servers-in-workers"]
    main(tables)
    assert len(json.loads(capsys.readouterr().out)["seconds"]) == 4
    with pytest.raises(SystemExit):
        main([*tables, "--servers", "5"])
    assert "--servers must be at most the 4 of --workers, got 5" in capsys.readouterr().err


def test_only_the_ways_that_are_allowed_are_planned(tmp_path, capsys):
    words = write_tables(tmp_path / "tables.json", TABLES)
    main([*words, "--way", "row", "--way", "column", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert {t["way"] for t in found["tables"]} <= {"row", "column"}
    with pytest.raises(SystemExit):
        main([*words, "--way", "diagonal"])
    assert "ways must be some of table, row, column" in capsys.readouterr().err


def test_the_plan_of_the_command_is_that_of_the_function(tmp_path, capsys):
    words = write_tables(tmp_path / "tables.json", TABLES)
    main([*words, "--egress", "150", "--slots", "1", "--workers", "3", "--json"])
    found = json.loads(capsys.readouterr().out)
    tables = (
        Table(10_000_000, 16, 1),
        Table(50_000, 64, 40, hot_rows=10, hot_share=0.3),
        Table(1_000, 4, 1, outputs=12),
    )
    want = shard(Job(tables, 512, slots=1), ClusterResources(150e6, 2, 3, 1.0, steps_per_call=4))
    assert found["seconds"] == list(want.seconds)
    assert [t["way"] for t in found["tables"]] == [t.way for t in want.tables]


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ([], "with tables"),
        ([7], "table 1: expected an object, got 7"),
        ([{"name": "a", "rows": 1}], "table 1: units is missing"),
        ([{**TABLES[0], "row": 1}], "table 1: has no row; known are name, rows"),
        ([{**TABLES[0], "rows": "9"}], "table 1: rows must be int, got '9'"),
        ([{**TABLES[0], "rows": True}], "table 1: rows must be int, got True"),
        ([{**TABLES[0], "entries": None}], "table 1: entries must be int or float, got None"),
        ([{**TABLES[0], "hot_share": 0.5}], "table 1 (user): hot_share must be 0"),
        ([{**TABLES[0], "rows": 0}], "table 1 (user): "),
        ([TABLES[0], TABLES[0]], "two tables have the name 'user'"),
    ],
)
def test_a_file_with_wrong_tables_gives_one_line(tables, message, tmp_path, capsys):
    with pytest.raises(SystemExit):
        main(write_tables(tmp_path / "tables.json", tables))
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("content", ["", "{", "[]", '{"tables": 1}', "[" * 100_000, "\0", "NaN"])
def test_a_file_that_lists_no_tables_gives_one_line(content, tmp_path, capsys):
    path = tmp_path / "tables.json"
    path.write_text(content)
    with pytest.raises(SystemExit):
        main(["plan", "--tables", str(path)])
    err = capsys.readouterr().err
    assert "tables.json" in err
    assert err.count("\n") == 1


def test_tables_that_no_server_can_hold_are_refused_and_nothing_is_written(tmp_path, capsys):
    words = write_tables(tmp_path / "tables.json", TABLES)
    with pytest.raises(SystemExit):
        main([*words, "--server-memory", "0.01", "--out-plan", str(tmp_path / "plan.json")])
    assert "memory binds" in capsys.readouterr().err
    assert [p.name for p in tmp_path.iterdir()] == ["tables.json"]
