"""`dynamic_lookup` against dictionaries, and the laws of its state."""

import copy

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests import machines
from twml_ops import core

LOW, HIGH = np.iinfo(np.int64).min, np.iinfo(np.int64).max
MASK = 2**64 - 1


def new_state(capacity, width=0):
    size = 1 << (2 * capacity - 1).bit_length()
    return {
        "keys": np.zeros(capacity, np.int64),
        "last_used": np.zeros(capacity, np.int64),
        "counts": np.zeros(capacity, np.int64),
        "index": np.full(size, -1, np.int32),
        "sketch": np.zeros((4, width), np.uint8),
        "header": np.zeros(4, np.int64),
    }


def mix(x):
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & MASK
    return x ^ (x >> 31)


def hash_pair(a, b):
    step = 0x9E3779B97F4A7C15
    return mix(mix(a + step & MASK) + step * (b & MASK) & MASK)


class Reference:
    """The specification, with dictionaries and whole sorts."""

    def __init__(self, capacity, width, min_count, eviction, max_age, pinned, seed):
        self.capacity, self.width, self.seed = capacity, width, seed
        self.min_count, self.eviction, self.max_age = min_count, eviction, max_age
        self.pinned, self.now, self.sightings, self.halved = pinned, 0, 0, 0
        self.row_of, self.last_used, self.counts = {}, {}, {}
        self.sketch = np.zeros((4, width), int)

    def find(self, ids):
        return [self.row_of.get(i, 0) for i in ids]

    def assign(self, ids):
        self.now += 1
        missing = {}
        for i in ids:
            if i in self.row_of:
                self.last_used[i] = self.now
                self.counts[i] += 1
            else:
                missing[i] = missing.get(i, 0) + 1
        admitted = [i for i, times in missing.items() if self.sight(i, times) >= self.min_count]
        self.age(sum(missing.values()))
        free = self.capacity - 1 - len(self.row_of)
        victims = self.victims()[: max(0, len(admitted) - free)]
        reset = []
        for i in admitted:
            if len(self.row_of) < self.capacity - 1:
                row = len(self.row_of) + 1
            elif victims:
                old = victims.pop(0)
                row = self.row_of.pop(old)
            else:
                break
            self.row_of[i], self.last_used[i], self.counts[i] = row, self.now, missing[i]
            reset.append(row)
        return self.find(ids), reset

    def sight(self, i, times):
        if self.min_count == 1:
            return 1
        columns = [hash_pair(self.seed + 1 + d, i) & (self.width - 1) for d in range(4)]
        for d, column in enumerate(columns):
            self.sketch[d, column] = min(255, self.sketch[d, column] + times)
        return min(self.sketch[d, column] for d, column in enumerate(columns))

    def age(self, added):
        if self.min_count == 1 or not added:
            return
        self.sightings = min(self.sightings, self.width) + min(added, self.width)
        if 2 * self.sightings >= self.width and self.now - self.halved >= self.min_count:
            self.sketch, self.sightings, self.halved = self.sketch // 2, 0, self.now

    def victims(self):
        if self.eviction == "none":
            return []
        kept = max(self.pinned, self.max_age) if self.eviction == "age" else self.pinned
        old = [i for i in self.row_of if self.last_used[i] <= self.now - kept]
        uses = self.counts if self.eviction == "lfu" else dict.fromkeys(old, 0)
        return sorted(old, key=lambda i: (uses[i], self.last_used[i], self.row_of[i]))


def check_state(state, reference):
    for i, row in reference.row_of.items():
        assert state["keys"][row] == i
        assert state["last_used"][row] == reference.last_used[i]
        assert state["counts"][row] == reference.counts[i]
    assert (state["index"] >= 0).sum() == len(reference.row_of)
    if reference.min_count > 1:
        np.testing.assert_array_equal(state["sketch"], reference.sketch)
    counts = [reference.now, len(reference.row_of), reference.sightings, reference.halved]
    assert state["header"].tolist() == counts


OPTIONS = st.fixed_dictionaries(
    {
        "min_count": st.integers(1, 4),
        "eviction": st.sampled_from(["none", "lru", "lfu", "age"]),
        "max_age": st.integers(0, 4),
        "pinned": st.integers(1, 3),
        "seed": st.integers(-3, 3),
    }
)
IDS = st.one_of(st.integers(0, 12), st.sampled_from([LOW, HIGH, -1]))


@settings(max_examples=300)
@given(
    st.integers(2, 9),
    st.sampled_from([1, 4, 64]),
    OPTIONS,
    st.lists(st.tuples(st.lists(IDS, max_size=14), st.booleans()), max_size=14),
)
def test_every_lookup_equals_that_of_dictionaries(capacity, width, options, batches):
    state = new_state(capacity, width)
    reference = Reference(capacity, width, **options)
    for ids, training in batches:
        before = {name: array.copy() for name, array in state.items()}
        rows, reset = core.dynamic_lookup(
            np.array(ids, np.int64), **state, training=training, **options
        )
        expected = reference.assign(ids) if training else (reference.find(ids), [])
        assert (rows.tolist(), reset.tolist()) == expected
        if not training:
            for name, array in state.items():
                np.testing.assert_array_equal(array, before[name])
    check_state(state, reference)


class Lookups(RuleBasedStateMachine):
    """Two tables of one process, whose states are saved, loaded and moved between lookups."""

    steps = 0

    @initialize(capacity=st.integers(2, 9), width=st.sampled_from([4, 64]), options=OPTIONS)
    def open(self, capacity, width, options):
        self.capacity, self.options = capacity, options
        self.tables = [
            (new_state(capacity, width), Reference(capacity, width, **options)) for _ in range(2)
        ]
        self.saved = copy.deepcopy(self.tables[0])

    @rule(which=st.integers(0, 1), ids=st.lists(IDS, max_size=14), training=st.booleans())
    def look_up(self, which, ids, training):
        state, reference = self.tables[which]
        found = core.dynamic_lookup(
            np.array(ids, np.int64), **state, training=training, **self.options
        )
        expected = reference.assign(ids) if training else (reference.find(ids), [])
        assert tuple(each.tolist() for each in found) == expected

    @rule(which=st.integers(0, 1))
    def save(self, which):
        self.saved = copy.deepcopy(self.tables[which])

    @rule(which=st.integers(0, 1), in_place=st.booleans())
    def load(self, which, in_place):
        """Loads the saved state of either table into the arrays of a table or into new arrays."""
        state, reference = copy.deepcopy(self.saved)
        if in_place:
            for name, array in self.tables[which][0].items():
                array[...] = state[name]
            state = self.tables[which][0]
        self.tables[which] = state, reference

    @invariant()
    def the_state_is_that_of_the_reference(self):
        type(self).steps += 1
        for state, reference in self.tables:
            check_state(state, reference)


def test_any_sequence_of_lookups_saves_and_loads_equals_dictionaries():
    machines.run(Lookups, 1000)


@pytest.mark.slow
def test_any_sequence_of_lookups_saves_and_loads_equals_dictionaries_at_length(steps):
    machines.run(Lookups, steps)


@pytest.mark.parametrize("min_count", [2, 3, 9])
@pytest.mark.parametrize("ids", [100, 3000])
def test_ids_that_are_in_every_lookup_are_admitted(min_count, ids):
    state, ids = new_state(2 * ids, 256), np.arange(ids) * 7919
    for _ in range(min_count):
        rows, _ = core.dynamic_lookup(ids, **state, training=True, min_count=min_count)
    assert (rows > 0).all()


def zipf_batches(number=30, size=2000):
    rng = np.random.default_rng(0)
    return [rng.zipf(1.3, size).astype(np.int64) * 7919 - 10**12 for _ in range(number)]


@pytest.mark.parametrize("eviction", ["lru", "lfu", "age", "none"])
def test_the_state_is_equal_for_any_number_of_threads(eviction):
    states = []
    for num_threads in (1, 3):
        state = new_state(500, 2048)
        for ids in zipf_batches():
            core.dynamic_lookup(
                ids, **state, training=True, min_count=2, eviction=eviction, max_age=3,
                num_threads=num_threads,
            )  # fmt: skip
        states.append(state)
    for name, array in states[0].items():
        np.testing.assert_array_equal(array, states[1][name])


def test_no_row_of_the_last_pinned_lookups_gets_a_new_id():
    state, used = new_state(300), []
    for ids in zipf_batches(size=120):
        rows, reset = core.dynamic_lookup(ids, **state, training=True, pinned=2)
        recent = set(rows.tolist()) if not used else used[-1]
        assert not set(reset.tolist()) & recent or not used
        used.append(set(rows.tolist()))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"min_count": 0}, "min_count must be in"),
        ({"min_count": 256}, "min_count must be in"),
        ({"min_count": 2}, "sketch must not be empty"),
        ({"pinned": 0}, "pinned must be at least 1"),
        ({"max_age": -1}, "max_age must not be negative"),
        ({"eviction": "fifo"}, "eviction must be"),
        ({"keys": np.zeros(1, np.int64)}, "keys must have at least 2"),
        ({"counts": np.zeros(3, np.int64)}, "counts must have 8"),
        ({"last_used": np.zeros(9, np.int64)}, "last_used must have 8"),
        ({"index": np.zeros(8, np.int32)}, "index must have a power of two"),
        ({"index": np.zeros(24, np.int32)}, "index must have a power of two"),
        ({"sketch": np.zeros((3, 4), np.uint8)}, "sketch must have 4 rows"),
        ({"sketch": np.zeros((4, 3), np.uint8)}, "sketch must have 4 rows"),
        ({"header": np.zeros(2, np.int64)}, "header must have 4"),
        ({"header": np.array([-1, 0, 0, 0])}, "header must have counts"),
        ({"header": np.array([1, 8, 0, 0])}, "header must have counts"),
        ({"header": np.array([1, 0, -1, 0])}, "header must have counts"),
        ({"header": np.array([1, 0, 0, 2])}, "header must have counts"),
        ({"header": np.array([1, 0, 0, -1])}, "header must have counts"),
    ],
)
def test_bad_arguments_are_named_and_the_state_stays(changes, message):
    arguments = {**new_state(8), "ids": np.arange(3), "training": True, **changes}
    before = {name: np.copy(array) for name, array in arguments.items()}
    with pytest.raises(ValueError, match=message):
        core.dynamic_lookup(**arguments)
    for name in new_state(8):
        np.testing.assert_array_equal(arguments[name], before[name])


@pytest.mark.parametrize("seed", range(20))
def test_a_damaged_state_is_never_read_out_of_bounds(seed):
    rng = np.random.default_rng(seed)
    state = new_state(8, 16)
    for name in ("keys", "last_used", "counts"):
        state[name][:] = rng.integers(LOW, HIGH, 8)
    state["index"][:] = rng.integers(-9, 20, len(state["index"]))
    state["header"][:] = [rng.integers(0, 5), rng.integers(0, 8), rng.integers(0, HIGH), 0]
    for eviction in ("lru", "lfu", "age", "none"):
        for _ in range(5):
            ids = rng.choice(np.concatenate([state["keys"], rng.integers(LOW, HIGH, 20)]), 30)
            rows, reset = core.dynamic_lookup(
                ids, **state, training=True, min_count=2, eviction=eviction
            )
            assert ((rows >= 0) & (rows < 8)).all()
            assert ((reset > 0) & (reset < 8)).all()
