"""Days and moments as integers, and the periods of the calendar."""

from __future__ import annotations

import datetime as dt

import numpy as np
import pytest
from pydantic import ValidationError

from dpdist.errors import SpecError
from dpdist.spec.conditions import parse_condition
from dpdist.spec.groups import Every, number_of, periods, text_of
from dpdist.spec.schema import Attribute, Schema


def day(text: str) -> int:
    return (dt.date.fromisoformat(text) - dt.date(1970, 1, 1)).days


@pytest.mark.parametrize("text", ["1969-12-31", "1970-01-01", "2024-02-29", "0001-01-01", "9999-12-31"])
def test_a_day_there_and_back(text: str) -> None:
    assert number_of(text, "date") == day(text)
    assert text_of(day(text), "date") == text


@pytest.mark.parametrize("text", ["1969-12-31 23:59:59", "2024-02-29 13:45:00", "9999-12-31 00:00:01"])
def test_a_moment_there_and_back(text: str) -> None:
    assert text_of(number_of(text, "datetime"), "datetime") == text
    assert number_of(text.replace(" ", "T"), "datetime") == number_of(text, "datetime")


@pytest.mark.parametrize("text", ["2023-02-29", "29.2.2024", "", None, 20240229, "2024-02-29 13:45:00+01:00"])
def test_what_is_no_moment(text: object) -> None:
    with pytest.raises(ValueError, match="expected a datetime in quotes, such as '2024-02-29 13:45:00'"):
        number_of(text, "datetime")


@pytest.mark.parametrize(
    ("every", "starts"),
    [
        ("week", ["2023-12-30", "2024-01-01", "2024-01-08"]),
        ("month", ["2023-12-30", "2024-01-01"]),
        ("quarter", ["2023-12-30", "2024-01-01"]),
        ("year", ["2023-12-30", "2024-01-01"]),
        ("day", [f"2023-12-{d}" for d in (30, 31)] + [f"2024-01-{d:02}" for d in range(1, 11)]),
    ],
)
def test_periods_begin_where_the_calendar_says(every: str, starts: list[str]) -> None:
    kind = Every.model_validate({"every": every})
    found = periods(day("2023-12-30"), day("2024-01-10"), kind, "date")
    assert [text_of(int(start), "date") for start in found] == starts
    moments = periods(day("2023-12-30") * 86_400, day("2024-01-10") * 86_400, kind, "datetime")
    np.testing.assert_array_equal(moments, found * 86_400)


@pytest.mark.parametrize(("low", "high"), [("1899-06-15", "1900-03-01"), ("2000-01-31", "2004-03-01")])
def test_months_by_brute_force(low: str, high: str) -> None:
    days = range(day(low), day(high) + 1)
    months = [text_of(number, "date")[:7] for number in days]
    expected = [number for number, (a, b) in zip(days, zip(["", *months], months, strict=False), strict=True) if a != b]
    np.testing.assert_array_equal(periods(day(low), day(high), Every(every="month"), "date"), expected)


def test_a_date_has_no_hours() -> None:
    with pytest.raises(ValueError, match="a date has no hours: kind: datetime has them"):
        periods(0, 9, Every(every="hour"), "date")


DAYS = {"name": "day", "kind": "date", "bounds": ["2023-12-30", "2024-03-10"]}


def test_a_schema_says_days_as_it_was_told() -> None:
    told = DAYS | {"bins": {"edges": ["2023-12-30", "2024-01-01"]}, "heaps": ["2024-02-02", "2024-01-15"]}
    attribute = Attribute.model_validate(told)
    written = attribute.model_dump(mode="json", exclude_defaults=True)
    assert written == told | {"heaps": ["2024-01-15", "2024-02-02"]}
    assert Attribute.model_validate(written) == attribute
    assert Schema(attributes=(attribute,)).fingerprint == Schema.model_validate({"attributes": [told]}).fingerprint


def test_levels_by_the_calendar() -> None:
    attribute = Attribute.model_validate(DAYS | {"levels": [{"every": "month"}, {"every": "year"}]})
    months, years = attribute.level_maps
    assert np.bincount(months).tolist() == [2, 31, 29, 10]
    assert np.bincount(years).tolist() == [2, 70]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"bounds": [0, 1], "kind": "categorical", "values": ["a"]}, "takes `values` only"),
        ({"bounds": ["2024-03-10", "2023-12-30"]}, "the lower bound exceeds the upper bound"),
        ({"bounds": ["2024-02-30", "2024-03-01"]}, "expected a date in quotes, such as '2024-02-29'"),
        ({"kind": "integer", "bounds": [0, 9], "bins": {"every": "month"}}, "those of kind: date or datetime"),
        ({"kind": "integer", "bounds": [0, 9], "format": "%d"}, "those of kind: date or datetime"),
        ({"kind": "integer", "bounds": [0, 9], "levels": [{"every": "month"}]}, "need a date or a datetime"),
        ({"bins": {"every": "hour"}}, "a date has no hours"),
        ({"bins": {"edges": ["2024-01-01"]}}, "the first is 2023-12-30, the last at most 2024-03-10"),
        ({"heaps": ["2025-01-01"], "bins": {"every": "month"}}, "from 2023-12-30 on"),
        ({"kind": "datetime", "bounds": ["2024-01-01", "2024-01-03"]}, "the domain exceeds 65536 values"),
    ],
)
def test_wrong_attributes_of_days(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Attribute.model_validate(DAYS | settings)


def test_conditions_on_days() -> None:
    schema = Schema.model_validate({"attributes": [DAYS | {"bins": {"every": "month"}}]})
    ((mask,),) = (tuple(box.values()) for box in parse_condition("day >= '2024-01-01'", schema).boxes)
    assert mask.tolist() == [False, True, True, True]
    for text, message in (
        ("day < '2024-01-15'", "2024-01-15 is inside of the bin from 2024-01-01 to 2024-01-31"),
        ("day < 'soon'", "expected a date in quotes"),
    ):
        with pytest.raises(SpecError, match=message):
            parse_condition(text, schema)
