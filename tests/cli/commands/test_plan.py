"""`twml-ops plan`: a table, JSON or a plot, without TensorFlow."""

import json
import subprocess
import sys

import pytest

from twml_ops.cli import main

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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["plan"], "--table"),
        (["plan", "--table", "big"], "ROWSxUNITS"),
        ([*TABLE, "--egress", "0"], "egress must be positive, got 0"),
        ([*TABLE, "--servers", "0"], "servers must be positive"),
        ([*TABLE, "--batch", "-1"], "batch must be positive"),
        ([*TABLE, "--unique", "1"], "--unique must be given once"),
        ([*TABLE, "--dense-ms", "-1"], "dense must not be negative"),
        ([*TABLE, "--server-memory", "0.1"], "servers must be at least 3"),
        ([*TABLE, "--out", "plan.jpg"], "must end in .png"),
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
