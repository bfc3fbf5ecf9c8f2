"""Conditions, and the law of a model given them, against enumeration of a small joint distribution."""

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from scipy.stats import chisquare
from syntheses import learn

from dpdist.data.count import pair_counts
from dpdist.errors import SpecError
from dpdist.inference.law import Law
from dpdist.model.choices import choose
from dpdist.model.draw import draw_part
from dpdist.model.files import PublishedModel
from dpdist.model.fitted import UNIT
from dpdist.privacy.noise import Noise
from dpdist.spec.attribute import Attribute
from dpdist.spec.conditions import parse_condition
from dpdist.spec.groups import Category
from dpdist.spec.schema import Schema

CARDS = (3, 8, 4, 2)
SCHEMA = Schema.model_validate(
    {
        "attributes": [
            {"name": "place", "kind": "categorical", "values": ["north", "south", "west"]},
            {"name": "age", "kind": "integer", "bounds": [0, 79], "bins": {"count": 8}},
            {"name": "size", "kind": "integer", "bounds": [1, 3], "missing": {"category": "unknown"}},
            {"name": "hours-week", "kind": "categorical", "values": [0, 40]},
        ]
    }
)


def model(**changes: Any) -> PublishedModel:
    """A model of four dependent attributes; the rarest values of one are merged."""
    rng = np.random.default_rng(1)
    rows = 5_000
    place = rng.choice(3, rows, p=[0.6, 0.3, 0.1])
    age = np.minimum(rng.poisson(1 + place, rows), 7)
    size = (age + rng.integers(0, 2, rows)) % 4
    hours = (rng.random(rows) < 0.2 + 0.2 * place).astype(int)
    codes = [x.astype(np.uint8) for x in (place, age, size, hours)]
    choices = replace(choose(CARDS, records=rows, mu=0.5, raking=False), **changes)
    key = bytes(range(32))
    learned = learn(pair_counts(codes, CARDS), choices=choices, noise=Noise(bytes(32)), drawing=Noise(key))
    return PublishedModel(learned.fitted, learned.measurements, key.hex(), 0)


@pytest.fixture(scope="module")
def law() -> Law:
    return Law(model(merge_below=20))


def joint(law: Law) -> np.ndarray:
    """The law of the records, cell by cell."""
    fitted = law.fitted
    found = np.zeros(CARDS)
    shape = fitted.cardinalities
    for codes in product(*(range(size) for size in shape)):
        p = 1.0
        for step in fitted.steps:
            row = 0
            for parent in step.parents:
                row = row * shape[parent] + codes[parent]
            p *= np.diff(step.cumulative[row], prepend=0)[codes[step.attribute]] / UNIT
        values = []
        for i, a in enumerate(fitted.fine):
            value = int(fitted.values[i][codes[a]])
            shares = np.diff(fitted.rare_cumulative[i][0], prepend=0) / UNIT if value < 0 else [1.0]
            values.append(list(zip(fitted.rare[i].tolist() if value < 0 else [value], shares, strict=True)))
        for cell in product(*values):
            found[tuple(v for v, _ in cell)] += p * float(np.prod([share for _, share in cell]))
    return found


CONDITIONS = [
    'place = "south"',
    "age >= 40 and place = 'west'",
    "not (age < 20 or size = 2)",
    "size is missing or `hours-week` == 40 and 10 <= age < 30",
    'place in ("north", "west") and size is not missing and not size in [1, 3]',
    "`hours-week` != 0 or age < 10 or age >= 70",
]


@pytest.mark.parametrize("attributes", [(0,), (1, 3), (0, 2), (0, 1, 2), (0, 1, 2, 3)])
def test_marginals_are_those_of_the_joint_law(law: Law, attributes: tuple[int, ...]) -> None:
    others = tuple(i for i in range(4) if i not in attributes)
    np.testing.assert_allclose(law.marginal(attributes), joint(law).sum(axis=others), atol=1e-9)


@pytest.mark.parametrize("text", CONDITIONS)
def test_conditional_draws_have_the_law_given_the_condition(law: Law, text: str) -> None:
    condition = parse_condition(text, SCHEMA)
    everything = joint(law)
    grid = [axis.ravel() for axis in np.indices(CARDS)]
    inside = condition.holds(grid)
    np.testing.assert_array_equal(inside, condition.cells(range(4), CARDS))
    expected = np.where(inside, everything.ravel(), 0)
    assert law.probability(condition) == pytest.approx(expected.sum(), abs=1e-9)
    columns, _ = law.draw(condition, 30_000, Noise(bytes(range(1, 33))))
    assert condition.holds(columns).all()
    counts = np.bincount(np.ravel_multi_index([c.astype(int) for c in columns], CARDS), minlength=everything.size)
    expected *= 30_000 / expected.sum()
    large = expected > 5
    # group rounding varies less than independent draws, so that the statistic is small rather than large
    seen, hoped = np.append(counts[large], counts[~large].sum()), np.append(expected[large], expected[~large].sum())
    kept = hoped > 0
    assert chisquare(seen[kept], hoped[kept] * seen[kept].sum() / hoped[kept].sum()).pvalue > 1e-6
    wrong = everything.ravel() * 30_000  # the law without the condition is distinguished
    assert chisquare(counts + 1, (wrong + 1) * (counts + 1).sum() / (wrong + 1).sum()).pvalue < 1e-20


def test_boxes_are_disjoint() -> None:
    grid = [axis.ravel() for axis in np.indices(CARDS)]
    for text in CONDITIONS:
        condition = parse_condition(text, SCHEMA)
        times = sum(replace(condition, boxes=(box,)).holds(grid).astype(int) for box in condition.boxes)
        assert np.max(times) <= 1


def test_an_impossible_condition_is_refused(law: Law) -> None:
    for text in ("age < 10 and age >= 20", 'place = "north" and not place = "north"'):
        with pytest.raises(SpecError, match="no record of the model meets"):
            law.draw(parse_condition(text, SCHEMA), 10, Noise(bytes(32)))


def test_texts_of_an_ordinal_attribute_have_an_order() -> None:
    grade = Attribute(name="grade", kind="ordinal", values=("low", "mid", "high"), missing=Category(category="none"))
    schema, codes = Schema(attributes=(grade,)), [np.arange(4)]
    asked = {"grade > 'low'": [1, 2], "'mid' >= grade": [0, 1], "'low' < grade <= 'mid'": [1], "grade < 'low'": []}
    for text, found in asked.items():
        assert np.flatnonzero(parse_condition(text, schema).holds(codes)).tolist() == found
    for text, message in (("grade < 'none'", "'none' means missing"), ("grade < 'med'", "did you mean 'mid'")):
        with pytest.raises(SpecError, match=message):
            parse_condition(text, schema)


def test_a_value_with_a_label_goes_by_both() -> None:
    ward = Attribute(name="ward", kind="ordinal", values=("MED", "SUR"), labels=("internal medicine", "surgery"))
    for text in ("ward = 'MED'", "ward = 'internal medicine'", "ward < 'SUR'", "ward not in ('surgery',)"):
        assert parse_condition(text, Schema(attributes=(ward,))).holds([np.arange(2)]).tolist() == [True, False]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("agee > 20", r"no attribute is called 'agee'; did you mean 'age'\?"),
        ("salary > 20", "there are place, age"),
        ("age > 25", "25 is inside of the bin from 20 to 29"),
        ("age = 20", "20 is inside of the bin from 20 to 29"),
        ('place = "sauth"', "did you mean 'south'"),
        ('place < "south"', "texts have no order"),
        ("place = 1", "holds texts"),
        ("age", "may not hold 'age'"),
        ("age >", "cannot be read"),
        ("place = South", "quote a text: place = 'South'"),
        ("age > size", "compare an attribute with a constant"),
        ("__import__('os').system('true') = 1", "compare an attribute|expected the name"),
        ("age in 3", "needs a list"),
        ("age is 3", "goes with `missing`"),
        ("age > [1]", "expected a number"),
    ],
)
def test_what_cannot_be_asked(text: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        parse_condition(text, SCHEMA)


def test_a_weighted_pool_is_the_law() -> None:
    rng = np.random.default_rng(0)
    codes = [(rng.random(4_000) ** 2 * size).astype(np.uint8) for size in CARDS]
    choices = replace(choose(CARDS, records=4_000, mu=3.0), pool_parts=2, pool_rows=3_000)
    assert choices.rake
    key = bytes(32)
    learned = learn(pair_counts(codes, CARDS), choices=choices, noise=Noise(bytes(range(32))), drawing=Noise(key))
    law = Law(PublishedModel(learned.fitted, learned.measurements, key.hex(), 0))
    rows, weights = law.pool
    np.testing.assert_array_equal(rows[0][:3_000], draw_part(learned.fitted, Noise(key), "pool/0", 3_000)[0])
    condition = parse_condition("age >= 40 and place = 'south'", SCHEMA)
    assert law.probability(condition) == pytest.approx(weights[condition.holds(rows)].sum() / weights.sum())
    assert law.marginal((0, 2)).sum() == pytest.approx(1)
    columns, distinct = law.draw(condition, 500, Noise(bytes(32)))
    assert condition.holds(columns).all()
    assert 0 < distinct <= 500
