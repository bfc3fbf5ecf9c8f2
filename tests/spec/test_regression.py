"""Regressions as questions and specs write them."""

from __future__ import annotations

import pytest
from releases import SCHEMA

from dpdist.errors import SpecError
from dpdist.spec.regression import asks_for_regression, listed_in, parse_regression
from dpdist.spec.schema import Schema

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
