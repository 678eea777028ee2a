"""Update rules: they declare what the kernels take, and work without Keras."""

import ast
import dataclasses
import functools
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from twml_ops import core, optimizers
from twml_ops.ops.stock.update_rules import UPDATE_FORMULAS
from twml_ops.optimizers import update_rules
from twml_ops.optimizers.apply_update import apply_update
from twml_ops.optimizers.update_rules import AdagradRule, LazyAdamRule, UpdateRule

N, D = 6, 3
RATE = tf.constant(0.1)
RULES = [
    update_rules.SGDRule(),
    update_rules.MomentumRule(0.8),
    update_rules.MomentumRule(0.8, nesterov=True),
    update_rules.AdagradRule(0.3, 1e-3),
    update_rules.RowWiseAdagradRule(0.3, 1e-3),
    update_rules.LazyAdamRule(0.8, 0.9, 1e-4),
    update_rules.FtrlRule(-0.4, 0.2, 0.01, 0.02, 0.03, 0.1),
]
SHAPES = [(N,), (N, D), (N, D, 2)]


def random(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def subclasses(kind):
    return {s for k in kind.__subclasses__() for s in {k} | subclasses(k)}


def test_every_rule_is_in_these_tests_and_every_kernel_has_one():
    of_package = {k for k in subclasses(UpdateRule) if k.__module__ == update_rules.__name__}
    assert {type(rule) for rule in RULES} == of_package
    assert {kind.kernel for kind in of_package} == set(core.update_rules())


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_slots_and_hyperparameters_are_those_of_the_kernel(rule, shape):
    kernel = rule.kernel_rule(shape)
    num_slots, rowwise, num_hyper = core.update_rules()[kernel]
    slots = rule.slots(shape, tf.bfloat16)
    assert [s.name for s in slots] == list(rule.slot_names)
    assert len(slots) == num_slots
    assert all(s.shape == (shape[:1] if rowwise else shape) for s in slots)
    assert all(s.dtype == tf.float32 for s in slots)
    assert [s.initial_value for s in slots] == [rule.initial_value(n) for n in rule.slot_names]
    assert len(rule.hyperparameters(RATE, 0, 0.1)) == num_hyper


@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_named_hyperparameters_are_where_the_formula_expects_them(rule):
    names = UPDATE_FORMULAS[rule.kernel].hyperparameters
    values = dict(zip(names, rule.hyperparameters(RATE, 4, 0.5), strict=True))
    assert float(values["decay"]) == pytest.approx(0.05)
    for name in names:
        if hasattr(rule, name):
            assert values[name] == getattr(rule, name)


def variables(rule, shape):
    start = random(*shape, seed=1)
    slots = rule.slots(shape, tf.float32)
    return tf.Variable(start), [tf.Variable(tf.fill(s.shape, s.initial_value)) for s in slots]


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_a_dense_update_is_the_sparse_update_of_all_rows(rule, shape, weight_decay):
    by_kernel, by_formula = variables(rule, shape), variables(rule, shape)
    for step in range(3):
        gradient = tf.constant(random(*shape, seed=step))
        sparse = tf.IndexedSlices(gradient, tf.range(N), tf.constant(shape))
        for g, (w, slots) in ((sparse, by_kernel), (gradient, by_formula)):
            apply_update(rule, g, w, slots, RATE, tf.constant(step), weight_decay=weight_decay)
    (w, slots), (want, want_slots) = by_formula, by_kernel
    for a, b in zip([w, *slots], [want, *want_slots], strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5)


def test_a_dense_update_of_float64_is_computed_in_float64():
    w = tf.Variable(np.float64([1.0]))
    a = tf.Variable(np.float64([0.3]))
    apply_update(AdagradRule(epsilon=1e-9), tf.constant([0.1], tf.float64), w, [a], RATE, 0)
    want = 1 - np.float64(np.float32(0.1)) * 0.1 / np.sqrt(0.3 + 0.01 + 1e-9)
    np.testing.assert_allclose(w, [want], rtol=1e-14)


def test_lazy_adam_counts_steps_from_one():
    step_size = LazyAdamRule(0.9, 0.99).step_size(RATE, tf.constant(0))
    np.testing.assert_allclose(step_size, 0.1 * np.sqrt(0.01) / 0.1, rtol=1e-5)


# A rule of a user's own, as the docstring of SparseOptimizer shows it.


@dataclasses.dataclass(frozen=True)
class FallingEpsilonRule(AdagradRule):
    def own_hyperparameters(self, step_size, step):
        return (self.epsilon / (1.0 + tf.cast(step, step_size.dtype)),)


@tf.keras.utils.register_keras_serializable("mine")
class FallingEpsilon(optimizers.SparseOptimizer):
    def __init__(self, learning_rate=0.1, name=None, **options):
        super().__init__(learning_rate, name, **options)

    @property
    def update_rule(self):
        return FallingEpsilonRule(epsilon=1.0)


@pytest.mark.parametrize("sparse", [False, True])
def test_an_optimizer_of_a_users_own(sparse):
    optimizer = FallingEpsilon(0.5, clipvalue=10.0)
    optimizer = FallingEpsilon.from_config(optimizer.get_config())
    assert (optimizer.name, optimizer.clipvalue) == ("FallingEpsilon", 10.0)
    w, want, a = tf.Variable(random(N, D)), random(N, D).astype(np.float64), 0.1
    for step in range(3):
        g = random(N, D, seed=step)
        gradient = tf.IndexedSlices(tf.constant(g), tf.range(N), [N, D]) if sparse else g
        optimizer.apply_gradients([(tf.convert_to_tensor(gradient) if not sparse else gradient, w)])
        a = a + np.float64(g) ** 2
        want -= 0.5 * g / np.sqrt(a + 1 / (1 + step))
    np.testing.assert_allclose(w, want, rtol=1e-5, atol=1e-6)


def test_an_optimizer_without_a_rule_says_so():
    class Nothing(optimizers.SparseOptimizer):
        pass

    with pytest.raises(NotImplementedError, match="Nothing must define the property update_rule"):
        Nothing(0.1).build([tf.Variable([1.0])])


# Other packages use the public interface only.

ROOT = Path(__file__).resolve().parents[2]
ROOM = ROOT / "twml_ops" / "optimizers"


@functools.cache
def private_members():
    """The private names that classes of the optimizers define, or set on themselves."""
    found = set()
    for path in ROOM.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                found |= {n.name for n in node.body if isinstance(n, ast.FunctionDef)}
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                found.add(node.attr)
    return {name for name in found if name.startswith("_") and not name.startswith("__")}


def private_uses(text):
    """Private members of optimizers, and imports of their private modules, in a module's text.

    An attribute counts if its name is a private member and its object is not `self`, `cls` or
    `super()`, or if it is any private attribute of what is called `optimizer`.
    """
    members = private_members()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("twml_ops.optimi"):
            names = [*node.module.split("."), *(a.name for a in node.names)]
            yield from (n for n in names if n.startswith("_"))
        elif isinstance(node, ast.Attribute) and node.attr.startswith("_"):
            owner = ast.unparse(node.value)
            if owner in ("self", "cls", "super()") or node.attr.startswith("__"):
                continue
            if node.attr in members or owner.rpartition(".")[2] == "optimizer":
                yield f"{owner}.{node.attr}"


@pytest.mark.one_tf
def test_other_packages_use_no_private_members_of_optimizers():
    modules = [p for p in (ROOT / "twml_ops").rglob("*.py") if ROOM not in p.parents]
    found = {(p.name, use) for p in modules for use in private_uses(p.read_text())}
    assert found == set()


@pytest.mark.one_tf
@pytest.mark.parametrize(
    "text",
    [
        "optimizer._slots['m']",
        "self.optimizer._learning_rate",
        "each._add_slot(v, spec)",
        "from twml_ops.optimizers._keras_host import KerasHost",
        "def f():\n    from twml_ops.optimizers import _accumulate",
    ],
)
def test_a_private_use_would_be_found(text):
    assert len(list(private_uses(text))) == 1
