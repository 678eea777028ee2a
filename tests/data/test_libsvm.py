"""The LIBSVM reader, against a slow obvious one."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from twml_ops.data import DataError, open_source, text


def slow(raw):
    rows = []
    for line in raw.splitlines():
        words = line.split("#")[0].split()
        if words:
            pairs = [w.split(":") for w in words[1:]]
            entries = [(int(i) - 1, float(np.float32(v))) for i, v in pairs]
            rows.append((float(float(words[0]) > 0), {"sparse": entries}))
    return rows


PAIR = st.tuples(st.integers(1, 10**9), st.floats(-(2.0**99), 2.0**99, width=32))
LINE = st.one_of(
    st.just(""),
    st.just("  "),
    st.just("# only a comment 1:2"),
    st.builds(
        lambda label, pairs, gap, end: label + gap + gap.join(f"{i}:{v!r}" for i, v in pairs) + end,
        st.sampled_from(["1", "+1", "-1", "0"]),
        st.lists(PAIR, max_size=5),
        st.sampled_from([" ", "\t", "  "]),
        st.sampled_from(["", " ", "\r", " # 7:8", "#x:y"]),
    ),
)


@settings(deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.lists(LINE, min_size=1, max_size=12),
    st.sampled_from(["a.txt", "a.txt.gz"]),
    st.sampled_from([1, 40, 1 << 20]),
    st.booleans(),
)
def test_equals_the_slow_reader(text_file, rows_of, lines, name, chunk_bytes, last_newline):
    raw = "\n".join(["1 1:1", *lines]) + "\n" * last_newline
    wanted = slow(raw)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text, "CHUNK_BYTES", chunk_bytes)
        source = open_source(f"libsvm:{text_file(raw, name)}")
        assert source.num_examples() == len(wanted)
        assert rows_of(source.blocks()) == wanted
        assert source.schema.sparse_dim == 1 + max(i for _, g in wanted for i, _ in g["sparse"])
        assert rows_of(source.blocks(1)) == wanted[1:]
        assert rows_of(open_source(source.name).blocks(1)) == wanted[1:]


def test_batches_are_the_rows(text_file, batches_of):
    raw = "1 3:+0.5 1:2\n-1\n0 2:-1e-3\n+1 5:1. 5:.1\n"
    dataset = open_source(f"libsvm:{text_file(raw)}").dataset(3)
    assert batches_of(dataset) == slow(raw)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("1 0:1", "indices start at 1, got '0:1'"),
        ("1 -4:1", "indices start at 1, got '-4:1'"),
        ("1 1.5:1", "the index must be an integer >= 1, got '1.5:1'"),
        ("1 qid:1", "the index must be an integer >= 1, got 'qid:1'"),
        ("1 :1", "the index must be an integer >= 1, got ':1'"),
        ("1 99999999999999999999:1", "the index must be an integer >= 1, got '999"),
        ("1 2:x", "the value must be a number, got '2:x'"),
        ("1 2:", "the value must be a number, got '2:'"),
        ("1 2:nan", "the value must be finite in float32, got '2:nan'"),
        ("1 2:1e39", "the value must be finite in float32, got '2:1e39'"),
        ("1 2", "expected index:value, got '2'"),
        ("1 2:3:4", "expected index:value, got '2:3:4'"),
        ("1 \xff", "expected index:value, got "),
        ("2 1:1", "label must be 0, 1, -1 or +1, got '2'"),
        ("1:1 2:1", "label must be 0, 1, -1 or +1, got '1:1'"),
    ],
)
@pytest.mark.parametrize("chunk_bytes", [20, 1 << 20])
def test_a_bad_line_is_named(line, message, chunk_bytes, text_file, monkeypatch):
    monkeypatch.setattr(text, "CHUNK_BYTES", chunk_bytes)
    good = "1 1:1 2:2\n\n# comment\n" * 4
    path = text_file((good + line + "\n" + good).encode("latin1"))
    with pytest.raises(DataError) as e:
        list(open_source(f"libsvm:{path}").blocks())
    assert str(e.value).startswith(f"{path}: line 13: {message}")


@pytest.mark.parametrize("index", ["0x10", "0X1f", "0x0"])
def test_an_index_in_another_base_is_refused(index, text_file):
    path = text_file(f"1 7:1 # 0x10:1\n0 3:1 {index}:1\n")
    with pytest.raises(
        DataError, match=f"line 2: the index must be an integer >= 1, got '{index}:1'"
    ):
        list(open_source(f"libsvm:{path}").blocks())


def test_an_index_beyond_the_training_data_is_an_error_with_a_hint(text_file):
    train = open_source(f"libsvm:{text_file('1 7:1')}")
    path = text_file("1 7:1\n0 8:1\n", "test.libsvm")
    for test in (
        open_source(f"libsvm:{path}", like=train.schema),
        open_source(f"libsvm:{path}?dim=7"),
    ):
        assert test.schema == train.schema
        with pytest.raises(DataError, match=r"line 2: the index must be at most 7.*\?dim=N"):
            list(test.blocks())
    assert len(list(open_source(f"libsvm:{path}?dim=8").blocks())) == 1


def test_a_file_of_comments_has_no_examples(text_file):
    source = open_source(f"libsvm:{text_file('# nothing here')}")
    assert source.num_examples() == 0
    with pytest.raises(ValueError, match="0 examples cannot be split"):
        source.split()
