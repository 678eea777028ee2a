"""A server of models with tables in files."""

import json
import os
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

pytest.importorskip("twml_ops.serving", reason="needs the extra `serve`")

from tests.core import scorer_programs
from tests.serving.clients import serving
from twml_ops.serving import ServerOptions

ROWS = 1 << 14  # 1 MiB, from which on tables are in files
REQUEST = {"instances": [[1], [1, 2], [ROWS - 1]]}


def model_of(value, folder):
    """Writes a model that answers a constant times the number of ids of a row."""
    example = scorer_programs.Example()
    arrays = {"table": np.full((ROWS, 16), value, np.float32)}
    example.step("sparse_linear", example.batch("x", ROWS, False), ["#0"], arrays)
    return example.write(folder)


def answers(client):
    status, body = client.predict({"instances": [{"x_ids": ids} for ids in REQUEST["instances"]]})
    assert status == 200, body
    return [row[0] for row in body["predictions"]]


def test_versions_replace_each_other_while_requests_read_files(tmp_path):
    base = tmp_path / "ranking"
    model_of(1, base / "1")
    with serving(base, storage="file", cache_bytes=1 << 12) as (_, client):
        end = threading.Event()

        def call():
            found = set()
            while not end.is_set():
                one, two, last = answers(client)
                assert (two, last) == (2 * one, one)
                found.add(one)
            return found

        with ThreadPoolExecutor(3) as pool:
            callers = [pool.submit(call) for _ in range(3)]
            for value in (2, 3):
                model_of(value, base / f"unfinished{value}")
                os.rename(base / f"unfinished{value}", base / str(value))
                client.post("/v1/models/m:reload", {})
                assert answers(client) == [value, 2 * value, value]
            end.set()
            assert set.union(*(c.result() for c in callers)) <= {1, 2, 3}
        rows = "twml_serving_table_rows_total"
        hits, misses = (
            client.metric(f'{rows}{{model="m",result="{result}"}}') for result in ("hit", "miss")
        )
        assert misses > 0
        assert hits + misses >= 3
        read = client.metric('twml_serving_table_read_bytes_total{model="m"}')
        assert read >= misses * 64


def test_servers_without_tables_in_files_have_no_counters_of_them(tmp_path):
    model_of(1, tmp_path / "m")
    with serving(tmp_path / "m") as (_, client):
        assert answers(client) == [1, 2, 1]
        assert b"twml_serving_table" not in client.raw("GET", "/metrics")[1]


def test_an_unreadable_table_is_an_error_of_the_server(tmp_path, caplog):
    folder = model_of(1, tmp_path / "m")
    with serving(folder, storage="file") as (_, client):
        os.truncate(next(folder.glob("*table.npy")), 1 << 12)
        status, body = client.predict({"instances": [{"x_ids": [ROWS - 1]}]})
        assert status == 500
        assert "internal error of the server" in json.dumps(body)
    assert "table.npy" in caplog.text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"storage": "disk"}, "storage must be mapped, memory or file, got 'disk'"),
        ({"direct": True}, "direct and sums_cache_bytes need the storage file"),
        ({"cache_bytes": -1, "storage": "file"}, "cache_bytes must be at least 0, got -1"),
    ],
)
def test_options_out_of_their_range_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        ServerOptions(**options)
