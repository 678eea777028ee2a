import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twml_ops.peers.messages import DTYPES, Part, decode, dtype_of, encode


def joined(arrays):
    return np.concatenate([np.asarray(a).reshape(-1).view(np.uint8) for a in arrays])


@pytest.mark.parametrize("dtype", DTYPES)
@given(st.data())
@settings(max_examples=20)
def test_messages_come_back_and_fit_their_capacity(dtype, data):
    rows, width = data.draw(st.integers(1, 70)), data.draw(st.integers(1, 9))
    max_rows = data.draw(st.integers(1, rows))
    count = data.draw(st.integers(0, max_rows))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    parts = [Part((rows, width), dtype_of(dtype), True), Part((rows,), dtype_of(dtype), False)]
    ids = rng.permutation(rows)[:count]
    values = rng.normal(size=(count, width)).astype(parts[0].wire)
    dense = rng.normal(size=rows).astype(parts[0].wire)
    message = joined(encode(parts, [(ids, values), dense]))
    assert message.size <= sum(p.capacity(max_rows) for p in parts)
    (got_ids, got_values), (none, got_dense) = decode(parts, message)
    np.testing.assert_array_equal(got_ids, ids)
    assert got_values.tobytes() == values.tobytes()
    assert none is None
    assert got_dense.tobytes() == dense.tobytes()


@given(st.data())
def test_any_bytes_are_a_message_or_an_error(data):
    parts = [Part((40, 3), dtype_of("float32"), True)]
    message = joined(encode(parts, [(np.arange(9), np.ones((9, 3), np.float32))]))
    for at, byte in data.draw(st.lists(st.tuples(st.integers(0, 127), st.integers(0, 255)))):
        message[at] = byte
    message = message[: data.draw(st.integers(0, message.size))]
    try:
        [(ids, values)] = decode(parts, message)
    except ValueError:
        return
    assert len(ids) == len(values)
    assert not len(ids) or 0 <= ids.min() <= ids.max() < 40


def test_other_types_are_refused():
    with pytest.raises(ValueError, match="dtype must be one of .*, got 'int8'"):
        dtype_of(np.int8)
