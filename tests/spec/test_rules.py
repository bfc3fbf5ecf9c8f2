"""Rules of a schema: what they forbid, against enumeration; contradictions; what a part of a contract may say."""

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from releases import SCHEMA

from dpdist.errors import SpecError
from dpdist.spec.part import departures
from dpdist.spec.regression import asks_for_regression, listed_in, parse_regression
from dpdist.spec.rules import a_record, broken_by
from dpdist.spec.schema import Schema

ATTRIBUTES: list[dict[str, Any]] = [
    {"name": "age", "kind": "integer", "bounds": [0, 9]},
    {"name": "wed at", "kind": "integer", "bounds": [3, 9], "missing": {"category": "never"}},
    {"name": "school", "kind": "ordinal", "values": ["none", "some", "all"]},
    {"name": "years", "kind": "categorical", "values": [0, 4, 5, 9]},
    {"name": "job", "kind": "categorical", "values": ["a", "b"], "missing": {"category": "none"}},
]
VALUES: list[list[Any]] = [
    list(range(10)), [*range(3, 10), None], ["none", "some", "all"], [0, 4, 5, 9], ["a", "b", None]
]  # fmt: skip


def schema(*rules: dict[str, Any], attributes: list[dict[str, Any]] = ATTRIBUTES) -> Schema:
    return Schema.model_validate({"attributes": attributes, "rules": list(rules)})


KINDS = [
    ({"impossible": "age < 3 and school != 'none'"}, lambda a, w, s, y, j: a < 3 and s != "none"),
    ({"impossible": "job = 'none' and (years = 9 or age > 7)"}, lambda a, w, s, y, j: j is None and (y == 9 or a > 7)),
    ({"missing": "job", "where": "age < 4 or age = 9"}, lambda a, w, s, y, j: (j is None) != (a < 4 or a == 9)),
    ({"missing": "wed at", "where": "job is missing"}, lambda a, w, s, y, j: (w is None) != (j is None)),
    (
        {"determines": ["school", "years"], "mapping": {"none": 0, "some": [4, 5], "all": 9}},
        lambda a, w, s, y, j: y not in {"none": (0,), "some": (4, 5), "all": (9,)}[s],
    ),
    ({"determines": ["years", "job"], "mapping": {9: ["a", "none"]}}, lambda a, w, s, y, j: y == 9 and j == "b"),
    ({"at_most": ["wed at", "age"]}, lambda a, w, s, y, j: w is not None and w > a),
]


@pytest.mark.parametrize(("rule", "predicate"), KINDS)
def test_each_kind_forbids_what_it_says(rule: dict[str, Any], predicate: Any) -> None:
    made = schema(rule, {"impossible": "age = 5 and years = 0"})
    grid = np.array(list(product(*(range(size) for size in made.cardinalities))))
    codes = [column.astype(np.uint8) for column in grid.T]
    expected = [bool(predicate(*(VALUES[i][c] for i, c in enumerate(row)))) for row in grid.tolist()]
    forbidden = made.forbidden[0]
    np.testing.assert_array_equal(forbidden.broken_by(codes), expected)
    object.__setattr__(forbidden, "table", None)  # as where the table would be too large
    np.testing.assert_array_equal(forbidden.broken_by(codes), expected)
    record = [np.array([code]) for code in a_record(made.forbidden, len(made.names))]
    assert not broken_by(made.forbidden, record).any()


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ([{"impossible": "wage > 4"}], r"rules.0: no attribute is called 'wage'"),
        ([{"impossible": "age < 3"}, {"missing": "wedat", "where": "age < 2"}], r"rules.1: .*did you mean 'wed at'"),
        ([{"impossible": "school = 'most'"}], r"rules.0: attribute 'school' has no value 'most'"),
        ([{"impossible": "age in [3, 1000]"}], r"rules.0: attribute 'age' has no value 1000: correct it"),
        ([{"impossible": "age < "}], r"rules.0: the condition 'age < ' cannot be read"),
        ([{"impossible": "age < 4 and age > 7"}], r"rules.0: it forbids nothing"),
        ([{"missing": "age", "where": "years = 0"}], r"rules.0: attribute 'age' has no category for missing values"),
        ([{"missing": "job"}], r"`missing` and `where` go together"),
        ([{"impossible": "age < 4", "at_most": ["wed at", "age"]}], r"a rule is one of"),
        ([{}], r"a rule is one of"),
        ([{"determines": ["school", "years"]}], r"`determines` and `mapping` go together"),
        (
            [{"determines": ["school", "years"], "mapping": {"none": 7}}],
            r"rules.0: mapping.none: attribute 'years' has no value 7",
        ),
        ([{"determines": ["school", "school"], "mapping": {"none": "none"}}], r"two different"),
        (
            [{"determines": ["age", "years"], "mapping": {"12": 0}}],
            r"rules.0: mapping.12: attribute 'age' has no value '12'",
        ),
        ([{"at_most": ["job", "age"]}], r"at_most goes with two integer or number attributes"),
        ([{"at_most": ["age", "age"]}], r"two different"),
        ([{"impossible": "age >= 0"}], r"no record can have"),
        (
            [
                {"missing": "job", "where": "age < 4"},
                {"impossible": "age = 8 and years = 0"},
                {"missing": "job", "where": "age < 6"},
            ],
            r"^(?s:.*\n)rules.0, rules.2: no record can have age = 4 \(and 1 more of its values\)",
        ),
        ([{"impossible": "age < 4", "broken": "keep"}], r"expected 'refuse' or 'drop'"),
    ],
)
def test_bad_rules_are_refused_with_their_place(rules: list[dict[str, Any]], message: str, tmp_path: Path) -> None:
    path = tmp_path / "schema.yaml"
    path.write_text(yaml.safe_dump({"attributes": ATTRIBUTES, "rules": rules}))
    with pytest.raises(SpecError, match=message):
        Schema.from_yaml(path)


def test_rules_cannot_cut_through_bins() -> None:
    binned = [{"name": "age", "kind": "integer", "bounds": [0, 9], "bins": {"edges": [0, 4, 6]}}, *ATTRIBUTES[1:]]
    assert schema({"impossible": "age < 4 and school = 'all'"}, attributes=binned).forbidden
    for rule in ({"impossible": "age < 5 and school = 'all'"}, {"at_most": ["wed at", "age"]}):
        with pytest.raises(ValidationError, match=r"rules.0: .*values within a bin cannot be distinguished"):
            schema(rule, attributes=binned)


def test_long_domains() -> None:
    """Hundreds of values each, in a moment; more are refused before they fill the memory."""
    pair = [{"name": name, "kind": "integer", "bounds": [0, 599]} for name in ("first", "second")]
    assert schema({"at_most": ["first", "second"]}, attributes=pair).forbidden[0].shape == (600, 600)
    longer = [attribute | {"bounds": [0, 65_000]} for attribute in pair]
    with pytest.raises(ValidationError, match=r"rules.0: first is at most second: that is more than"):
        schema({"at_most": ["first", "second"]}, attributes=longer)
    made = schema({"impossible": "first > 40000 and second < 30000"}, attributes=longer)
    assert made.forbidden[0].table is None
    codes = [np.array([50_000, 50_000, 1]), np.array([1, 60_000, 1])]
    assert made.forbidden[0].broken_by(codes).tolist() == [True, False, False]


CELLS = list(product(range(2), range(3), range(2)))
TINY = [
    {"name": name, "kind": "categorical", "values": list(range(size))}
    for name, size in zip("abc", (2, 3, 2), strict=True)
]


@given(st.lists(st.sets(st.sampled_from(CELLS), min_size=1, max_size=6), min_size=1, max_size=4))
def test_contradictions_are_those_of_enumeration(forbidden: list[set[tuple[int, ...]]]) -> None:
    rules = [
        {"impossible": " or ".join(f"a = {a} and b = {b} and c = {c}" for a, b, c in sorted(cells))}
        for cells in forbidden
    ]
    left = [cell for cell in CELLS if not any(cell in cells for cells in forbidden)]
    possible = all({cell[i] for cell in left} == set(range(size)) for i, size in enumerate((2, 3, 2)))
    if possible:
        made = schema(*rules, attributes=TINY)
        assert tuple(a_record(made.forbidden, 3)) in left
    else:
        with pytest.raises(ValidationError, match="no record can have"):
            schema(*rules, attributes=TINY)


def test_rules_are_read_back_from_json() -> None:
    made = schema(
        {"determines": ["years", "job"], "mapping": {9: ["a", "none"], 4: "b"}}, {"at_most": ["wed at", "age"]}
    )
    again = Schema.model_validate_json(made.model_dump_json(exclude_defaults=True))
    assert again == made
    assert again.rules[0].mapping == {"9": ("a", "none"), "4": ("b",)}


def test_a_part_has_rules_of_the_contract_only() -> None:
    young, wed = {"impossible": "age < 3 and school != 'none'"}, {"at_most": ["wed at", "age"]}
    whole = schema(young, wed)
    assert departures(schema(young), whole) == []
    assert departures(schema(young, attributes=[ATTRIBUTES[0], ATTRIBUTES[2]]), whole) == []
    coarse = ATTRIBUTES[0] | {"bins": {"edges": [0, 3, 6]}}
    assert departures(schema(young, attributes=[coarse, ATTRIBUTES[2]]), whole) == []
    levels = ATTRIBUTES[0] | {"levels": [{"width": 3}]}
    assert departures(schema(young, attributes=[levels, ATTRIBUTES[2]]), whole) == []
    (found,) = departures(schema(young, {"impossible": "age > 7 and school = 'none'"}), whole)
    assert found.startswith("rules.1 (impossible: age > 7")
    (found,) = departures(schema(young | {"broken": "drop"}), whole)
    assert "there is no such rule" in found
    merged = {"name": "school", "kind": "ordinal", "values": ["none", "all"], "aliases": {"some": "none"}}
    (found,) = departures(schema(young, attributes=[ATTRIBUTES[0], merged]), whole)
    assert "the values of 'school' are other ones" in found
    assert departures(schema(attributes=[ATTRIBUTES[0], merged]), whole) == []


# --- Regressions as questions and specs write them


TABLE = Schema.model_validate(SCHEMA)


def test_terms_are_functions_of_one_attribute() -> None:
    found = parse_regression("regression score on age, sex = 2, region in ('north', 'east') where age >= 20", TABLE)
    assert not found.is_logistic
    assert found.names == ["constant", "age", "sex = 2", "region in ('north', 'east')"]
    assert [term.attribute for term in (found.outcome, *found.terms)] == [3, 1, 2, 0]
    assert found.outcome.values.tolist() == list(range(8))
    assert found.terms[0].values.tolist() == [2.0 + 5 * k for k in range(20)]  # middles of whole numbers
    assert found.terms[1].values.tolist() == [0, 1]
    assert found.terms[2].values.tolist() == [1, 0, 1, 0]
    assert found.where.attributes == (1,)


def test_the_order_of_terms_and_spaces_do_not_matter() -> None:
    first = parse_regression("logistic regression employed = 'yes' on age, sex = 2 where score >= 3", TABLE)
    second = parse_regression(" logistic  regression employed='yes' on  sex=2 , age  where 3 <= score", TABLE)
    assert first.key == second.key
    for other in (
        "logistic regression employed = 'yes' on age, sex = 2",
        "regression employed = 'yes' on age, sex = 2",
    ):
        assert parse_regression(other, TABLE).key != first.key
    everyone = parse_regression("regression score on age where sex in (1, 2)", TABLE)
    assert everyone.key == parse_regression("regression score on age", TABLE).key


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("regression score", "write `regression OUTCOME on TERM"),
        ("mean score", "write `regression OUTCOME on TERM"),
        ("regression region on age", "'region' has no numbers"),
        ("regression score on income", "income"),
        ("regression score on age where income = 2", "no attribute is called 'income'"),
        ("regression score on sex = 1 and age >= 20", "not of one attribute"),
        ("logistic regression score on age", "outcome of a logistic regression is a condition"),
    ],
)
def test_what_cannot_be_read_says_what_to_write(text: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        parse_regression(text, TABLE)


def test_words_in_quotes_are_not_of_the_grammar() -> None:
    assert asks_for_regression("regression a on b = 'x on y where z'")
    assert not asks_for_regression("count where a = 'regression a on b'")
    assert listed_in("a in (1, 2), `b, c`, d = 'e, f'") == ["a in (1, 2)", "`b, c`", "d = 'e, f'"]
