from benchmarks import tables


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
