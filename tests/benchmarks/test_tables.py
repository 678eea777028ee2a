import pytest

from benchmarks import readme_summary, tables


def test_only_what_is_between_the_markers_changes(tmp_path):
    document = tmp_path / "performance.md"
    document.write_text("# Title\n\nprose\n")
    tables.insert(document, "kernels", "first")
    tables.insert(document, "model", "other")
    before = document.read_text()
    tables.insert(document, "kernels", r"second \1")
    assert document.read_text() == before.replace("first", r"second \1")
    assert before.startswith("# Title\n\nprose\n")


def test_a_new_document_gets_a_title(tmp_path):
    tables.insert(tmp_path / "new" / "performance.md", "kernels", "x")
    assert (tmp_path / "new" / "performance.md").read_text().startswith("# Performance\n")


def test_the_best_figure_of_each_column_is_bold():
    rows = [["twml_ops", "5.66"], ["a", "91.3 (16 ×)"], ["b", "4.41 (0.78 ×)"], ["c", "–"]]
    tables.mark_best(rows, 1)
    assert [r[1] for r in rows] == ["5.66", "91.3 (16 ×)", "**4.41** (0.78 ×)", "–"]
    rates = [["twml_ops", "1,019"], ["a", "20,415 (43 ×)"], ["b", "20,415"]]
    tables.mark_best(rates, 1, max)
    assert [r[1] for r in rates] == ["1,019", "**20,415** (43 ×)", "**20,415**"]


def kernels_of(twml_ops, torch, rounds=2):
    def timing(median, calls):
        return {"Zipf 1.05": {"median": median, "calls": calls}}

    times = {"twml_ops": timing(twml_ops, 20), "torch embedding_bag": timing(torch, 7)}
    return {
        "workload": {"input_dim": 1, "units": 1, "batch_size": 1, "row_length": 1, "skew": 1.05},
        "machine": {"versions": {"tensorflow-cpu": "2.21"}, "cpu": "c", "cores": 2, "simd": "s"},
        "unique": {"Zipf 1.05": 1.0},
        "rounds": rounds,
        "times": {"forward": times},
    }


@pytest.mark.parametrize(
    ("twml_ops", "torch", "row"),
    [
        (0.004, 0.005, "| Forward | Zipf 1.05 | **4** | – | 5 (1.2 ×) | – |"),
        (0.005, 0.004, "| Forward | Zipf 1.05 | 5 | – | **4** (0.8 ×) | – |"),
    ],
)
def test_the_fastest_figure_of_the_readme_is_bold(twml_ops, torch, row):
    model = {"times": {"sgd": {}}, "rounds": 3}
    page = readme_summary.section(kernels_of(twml_ops, torch), model)
    assert row in page.splitlines()


def test_the_readme_says_how_many_rounds_and_calls_were_measured():
    model = {"times": {"sgd": {}}, "rounds": 3}
    page = readme_summary.section(kernels_of(1.0, 2.0), model)
    assert "Medians of 2 interleaved rounds, with 20 calls of twml_ops and 7 of the others" in page
    assert "medians of 3 interleaved fits" in page
