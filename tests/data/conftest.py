import gzip

import numpy as np
import pytest

CRITEO_ROW = [b"0"] + [b"%d" % i for i in range(1, 14)] + [b"%08x" % i for i in range(1, 27)]


@pytest.fixture
def criteo_file(tmp_path):
    """Writes lines (lists of 40 fields, or raw bytes) and returns the path."""

    def write(lines, name="train.tsv"):
        path = tmp_path / name
        text = b"".join((x if isinstance(x, bytes) else b"\t".join(x)) + b"\n" for x in lines)
        path.write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
        return str(path)

    return write


@pytest.fixture
def criteo_row():
    """A Criteo row with some fields replaced, by position."""

    def row(**fields):
        return [fields.get(f"c{i}", field) for i, field in enumerate(CRITEO_ROW)]

    return row


@pytest.fixture
def text_file(tmp_path):
    def write(text, name="data.libsvm"):
        path = tmp_path / name
        raw = text if isinstance(text, bytes) else text.encode()
        path.write_bytes(gzip.compress(raw) if name.endswith(".gz") else raw)
        return str(path)

    return write


@pytest.fixture
def rows_of():
    """Every example of an iterable of blocks as (label, {group: [entries]}), slowly."""

    def read(blocks):
        out = []
        for block in blocks:
            for r in range(len(block)):
                groups = {}
                for name, rows in block.groups.items():
                    a, b = rows.row_splits[r], rows.row_splits[r + 1]
                    ids = rows.ids[a:b].tolist()
                    has_values = rows.values is not None
                    groups[name] = (
                        list(zip(ids, rows.values[a:b].tolist(), strict=True))
                        if has_values
                        else ids
                    )
                out.append((float(block.labels[r]), groups))
        return out

    return read


@pytest.fixture
def batches_of():
    """The batches of a dataset as the same rows."""

    def read(dataset):
        out = []
        for features, labels in dataset:
            assert labels.dtype == "float32"
            assert labels.shape[1] == 1
            lists = {name: value.to_list() for name, value in features.items()}
            for r, label in enumerate(np.asarray(labels)[:, 0].tolist()):
                groups = {}
                for name in lists:
                    group, part = name.rsplit("_", 1)
                    if part == "ids":
                        ids, values = lists[name][r], lists.get(f"{group}_values")
                        groups[group] = (
                            ids if values is None else list(zip(ids, values[r], strict=True))
                        )
                out.append((label, groups))
        return out

    return read
