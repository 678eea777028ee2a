"""The raw results of the documents: a record a line, apart from the pages."""

import json
from pathlib import Path

from benchmarks import tables

ROOT = Path(__file__).resolve().parents[2]


def test_results_are_written_as_json_with_a_record_a_line(tmp_path):
    records = [{"name": f"cell {i}", "seconds": [i / 7, i / 3], "n": i} for i in range(20)]
    found = {"machine": {"cores": 2}, "cells": records, "empty": [], "by seed": {"1": [records]}}
    tables.write_results(tmp_path / "new" / "a.json", found)
    text = (tmp_path / "new" / "a.json").read_text()
    assert json.loads(text) == found
    lines = [line.strip(" ,") for line in text.splitlines()]
    assert [json.dumps(r) for r in records[1:-1]] == [x for x in lines if x.startswith('{"n')][1:19]


def test_the_pages_have_no_raw_results_beside_them():
    assert list((ROOT / "docs").glob("*.json")) == []
    folder = ROOT / "benchmarks/results"
    assert tables.results_file(ROOT / "docs", "a.json") == folder / "a.json"
    assert tables.results_file(folder, "a.json") == folder / "a.json"
    for path in folder.iterdir():
        text = path.read_text()
        assert text == tables.result_lines(json.loads(text)) + "\n", path.name
