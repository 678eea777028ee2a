"""How a measurement describes itself."""

import pytest

from benchmarks import machine


@pytest.mark.parametrize(
    ("argument", "stated"),
    [
        ("--rounds=3", "--rounds=3"),
        ("docs/a.json", "docs/a.json"),
        ("0.5/2", "0.5/2"),
        (str(machine.ROOT / "docs"), "docs"),
        (f"--docs={machine.ROOT / 'docs'}", "--docs=docs"),
        ("criteo:/data/day_1.tsv.gz", "criteo:day_1.tsv.gz"),
        ("criteo:day_1.tsv.gz", "criteo:day_1.tsv.gz"),
    ],
)
def test_the_command_of_a_measurement_names_no_folder_of_the_machine(monkeypatch, argument, stated):
    monkeypatch.setattr("sys.argv", ["anything", "--quick", argument])
    assert machine.command_line("benchmarks.x") == f"python -m benchmarks.x --quick {stated}"
