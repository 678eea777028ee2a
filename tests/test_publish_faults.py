"""Each call of the file system fails once: what is published is whole, or what was there is."""

import pytest

from tests.disk import each_fault
from twml_ops._publish import files_in, new_file, new_folder, write_file

OLD, NEW = "old" * 5, "new" * 9
OURS = ["our-data", "our-mark", "deep/our-rows"]


def content(path):
    """The text of a file, or of the files of the program in a folder; None: it is not there."""
    if path.is_dir():
        return {n: (path / n).read_text() for n in files_in(path) if n in OURS}
    return path.read_text() if path.exists() else None


def a_folder(out, text):
    (out / "deep").mkdir(parents=True)
    for name in ("our-data", "our-mark", "deep/our-rows"):
        (out / name).write_text(text)


def write_folder(out, overwrite):
    with new_folder(out, overwrite, last="our-mark", written=lambda _: OURS) as made:
        a_folder(made, NEW)


def write_new_file(out, overwrite):
    with new_file(out, overwrite) as part:
        part.write_text(NEW)


WAYS = {
    "write_file": lambda out, overwrite: write_file(out, NEW.encode()),
    "new_file": write_new_file,
    "new_folder": write_folder,
    "filled": write_folder,
    "two_renames": write_folder,
}


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("way", WAYS)
def test_after_any_fault_the_old_or_the_new_is_whole_and_the_error_names_what_is_where(
    tmp_path, monkeypatch, way, overwrite
):
    root = tmp_path / "root"
    out = root / "out"
    is_folder = way in ("new_folder", "filled", "two_renames")
    old = dict.fromkeys(OURS, OLD) if is_folder else OLD
    new = dict.fromkeys(OURS, NEW) if is_folder else NEW

    def prepare(root):
        monkeypatch.chdir(tmp_path)
        if way == "filled":
            out.mkdir()
            monkeypatch.chdir(out)
        if overwrite and is_folder:
            for name in OURS:
                (out / name).parent.mkdir(parents=True, exist_ok=True)
                (out / name).write_text(OLD)
        elif overwrite:
            out.write_text(OLD)

    before = old if overwrite else {} if way == "filled" else None
    faults = each_fault(
        lambda: WAYS[way](out, overwrite), prepare, root, exchanges=way != "two_renames"
    )
    for disk, raised in faults:
        found, kept = content(out), getattr(raised, "kept", None)
        if raised is None:
            assert found == new, disk.what
            assert disk.lost() == [], disk.what
        else:
            assert isinstance(raised, OSError), disk.what
            assert str(root) in str(raised), disk.what
            assert found in (before, new), (disk.what, raised)
            assert kept is None or content(kept) == new, (disk.what, raised)
            names = {p.name for p in root.iterdir()} - {"out", ".out.lock"}
            assert kept is not None or not names, (disk.what, raised)
