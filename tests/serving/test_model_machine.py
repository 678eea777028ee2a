"""Versions that appear, are replaced, damaged and removed, against a dictionary."""

import json
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

pytest.importorskip("twml_ops.serving", reason="needs the extra `serve`")

from tests import machines
from tests.serving.clients import constant_model
from twml_ops.serving import ServerOptions
from twml_ops.serving.errors import NotFound
from twml_ops.serving.model import Model
from twml_ops.serving.version import Version

NUMBER = st.integers(1, 4)


def answer(version):
    return version.predict_json({"instances": [[1]]}).values[0, 0]


class Versions(RuleBasedStateMachine):
    """A folder of versions that others change, the model that is served of it, and requests."""

    steps = 0

    @initialize()
    def begin(self):
        self.root = Path(tempfile.mkdtemp())
        self.folder, self.made = self.root / "m", 0
        self.folder.mkdir()
        self.loads = []
        self.model = Model(self.folder, ServerOptions(), self.loads.append)
        self.there = {}  # number -> (which files, their answer; None: damaged)
        self.failed = set()  # (number, which files)
        self.served = None  # (number, answer)
        self.held = []  # versions of requests, and their answers

    def teardown(self):
        shutil.rmtree(self.root)

    @rule(number=NUMBER, damaged=st.booleans())
    def publish(self, number, damaged):
        """Puts other files in the place of a version, all at once; mapped files stay there."""
        self.made += 1
        new = self.root / f"new{self.made}"
        constant_model(self.made, new)
        if damaged:
            program = json.loads((new / "scorer.json").read_text())
            (new / "scorer.json").write_text(json.dumps(program)[:-9])
        self.remove(number)
        new.rename(self.folder / str(number))
        self.there[number] = (self.made, None if damaged else self.made)

    @rule(number=NUMBER)
    def remove(self, number):
        if self.there.pop(number, None) is not None:
            (self.folder / str(number)).rename(self.root / f"old{self.made}")
            shutil.rmtree(self.root / f"old{self.made}")

    @rule(retry=st.booleans(), faults=st.sampled_from([0, 0, 0, 1, 2]))
    def refresh(self, retry, faults):
        """Some of the first versions that are read cannot be read for a moment."""
        expected, load = self.expected(retry, faults), vars(Version)["load"]

        def failing(path, number, options):
            nonlocal faults
            faults -= 1
            if faults >= 0:
                raise OSError("a fault of the disk")
            return load.__get__(None, Version)(path, number, options)

        Version.load = staticmethod(failing)
        try:
            assert self.model.refresh(retry) == expected
        finally:
            Version.load = load

    def expected(self, retry, faults):
        """What a refresh does to the dictionary: whether another version is served."""
        known = {(number, files) for number, (files, _) in self.there.items()}
        self.failed = set() if retry else self.failed & known
        for number, (files, value) in sorted(self.there.items(), reverse=True):
            if self.served is not None and self.served[0] == number:
                return False
            if (number, files) in self.failed:
                continue
            faults -= 1
            if value is not None and faults < 0:
                self.served = number, value
                return True
            self.failed.add((number, files))
        return False

    @rule()
    def hold(self):
        """A request begins, and keeps the version that is served then."""
        if self.served is not None:
            self.held.append((self.model.get("m"), self.served[1]))

    @rule()
    def end(self):
        """The oldest request ends."""
        for version, value in self.held[:1]:
            assert answer(version) == value
        del self.held[:1]

    @rule(number=NUMBER)
    def ask(self, number):
        if self.served is not None and number == self.served[0]:
            assert answer(self.model.get("m", number)) == self.served[1]
            return
        with pytest.raises(NotFound):
            self.model.get("m", number)

    @invariant()
    def the_newest_readable_version_is_served(self):
        type(self).steps += 1
        try:
            states = self.model.states()
        except NotFound:
            states = []
        available = [s.number for s in states if s.name == "AVAILABLE"]
        assert available == ([self.served[0]] if self.served else [])
        assert sorted(s.number for s in states if s.name == "END") == sorted(
            number for number, _ in self.failed
        )
        old = {v for v, _ in self.held if v is not self.model.current}
        unloading = [s.number for s in states if s.name == "UNLOADING"]
        assert sorted(unloading) == sorted(v.number for v in old)
        if self.served is not None:
            assert answer(self.model.current) == self.served[1]


def test_any_sequence_of_changes_of_versions_equals_a_dictionary():
    machines.run(Versions, 500)


@pytest.mark.slow
def test_any_sequence_of_changes_of_versions_equals_a_dictionary_at_length(steps):
    machines.run(Versions, steps)
