"""Days and moments as integers, and the periods of the calendar."""

from __future__ import annotations

import datetime as dt
from datetime import UTC, date, datetime
from typing import Any

import jsonschema
import numpy as np
import pytest
import yaml
from pydantic import ValidationError
from releases import SCHEMA, project

from dpdist.errors import SpecError
from dpdist.spec.conditions import parse_condition
from dpdist.spec.groups import Every, number_of, periods, text_of
from dpdist.spec.reader import dated, json_schema, load
from dpdist.spec.schema import Attribute, Schema
from dpdist.spec.validation import parse_overrides


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


# --- Names by date: what they are, which are refused, and which day counts


MARCH = date(2026, 3, 1)


def tree(name: str, output: str, data: Any = "table.parquet", **more: Any) -> dict[str, Any]:
    return {"name": name, "output": {"path": output}, "data": {"path": data}, **more}


@pytest.mark.parametrize(
    ("name", "output", "expected"),
    [
        ("acs-{date:%Y}", "out/{date:%Y}", ("acs-2026", "out/2026")),
        ("acs-{date:%Y-%m}", "out/{date:%Y}/{date:%m}", ("acs-2026-03", "out/2026/03")),
        ("acs-{date:%Y%m%d}", "out/{date:%Y-%j}", ("acs-20260301", "out/2026-060")),
        ("acs-{date:%G.%V}", "s3://b/{date:%G-%V}", ("acs-2026.09", "s3://b/2026-09")),
        ("acs", "out", ("acs", "out")),
    ],
)
def test_a_name_and_its_folder_follow_the_date(name: str, output: str, expected: tuple[str, str]) -> None:
    given = tree(name, output)
    made = dated(given, day=MARCH)
    assert (made["name"], made["output"]["path"]) == expected
    assert given == tree(name, output)  # a service may use the mapping again next month


def test_the_input_may_follow_too_and_the_setting_comes_before_the_day() -> None:
    given = tree("acs-{date:%Y-%m}", "o/{date:%Y-%m}", ["old.csv", "{date:%Y}/{date:%m}.csv"], date="2026-02-28")
    assert dated(given, day=MARCH) == tree("acs-2026-02", "o/2026-02", ["old.csv", "2026/02.csv"])


def test_the_day_is_that_of_utc() -> None:
    before = datetime.now(UTC).date()
    made = dated(tree("a-{date:%Y-%m-%d}", "{date:%Y-%m-%d}"))
    assert made["name"] in {f"a-{before}", f"a-{datetime.now(UTC).date()}"}


@pytest.mark.parametrize(
    ("wrong", "match"),
    [
        (tree("acs-{date:%m}", "o/{date:%m}"), "name: this date would name different periods alike"),
        (tree("acs-{date:%G-%m}", "o/{date:%G-%m}"), "name: this date"),  # 29 December is in week 1 of the next year
        (tree("acs-{date:%Y-%V}", "o/{date:%Y-%V}"), "name: this date"),
        (tree("acs-{date:%B %Y}", "o/{date:%Y-%m}"), "name: this date"),
        (tree("acs-{date:%Y%%}", "o/{date:%Y}"), "name: this date"),
        (tree("acs-{date}", "o/{date:%Y}"), "name: this date"),
        (tree("acs-{date:%Y-%m}", "o"), "output.path: it changes never and the name every month"),
        (tree("acs-{date:%Y-%m}", "o/{date:%Y-%m-%d}"), "output.path: it changes every day"),
        (tree("acs", "o/{date:%Y-%m}"), "put the date into the name, too"),
        (tree("acs-{date:%Y}", "o/{date:%Y}", "{date:%Y-%m}.csv"), "data.path: it changes every month"),
        (tree("acs", "o", date="2026-03-01"), "date: the name of the spec does not depend on it"),
        (tree("acs-{date:%Y}", "o/{date:%Y}", date="2026-03"), "date: expected a day such as"),
        (tree("acs-{date:%Y}", "o/{date:%Y}", date="2026-02-30"), "date: expected a day such as"),
    ],
)
def test_what_would_name_two_releases_alike_is_refused(wrong: dict[str, Any], match: str) -> None:
    with pytest.raises(SpecError, match=match):
        dated(wrong, day=MARCH)


def test_a_spec_file_with_dates_fits_the_json_schema_and_loads(tmp_path: Any) -> None:
    written = project(tmp_path, rows=100).model_dump(mode="json", by_alias=True)
    written |= {"schema": SCHEMA, "name": "acs-{date:%Y-%m}", "date": "2026-01-31"}
    written["output"]["path"] = f"{tmp_path}/{{date:%Y-%m}}"
    jsonschema.validate(written, json_schema())
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(written | {"name": "no blanks"}, json_schema())
    path = tmp_path / "spec.yaml"
    path.write_text(yaml.safe_dump(written))
    january = load(path)
    again = load(path, parse_overrides(["date=2026-04-01"]), day=MARCH)
    assert (january.name, again.name) == ("acs-2026-01", "acs-2026-04")
    assert again.output.path == f"{tmp_path}/2026-04"
    assert january.fingerprint != again.fingerprint
    with pytest.raises(SpecError, match=r"spec\.yaml: date: expected a day"):
        load(path, {"date": 2026})
