"""Schemas: domains, buckets, policies and the errors of a wrong one."""

import datetime as dt
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from releases import SCHEMA, project

from dpdist.errors import SpecError
from dpdist.spec.attribute import Attribute
from dpdist.spec.conditions import parse_condition
from dpdist.spec.groups import (
    MAX_CARDINALITY,
    Category,
    Count,
    Edges,
    Every,
    Groups,
    Width,
    number_of,
    periods,
    text_of,
)
from dpdist.spec.reader import dated, json_schema, load
from dpdist.spec.schema import Schema
from dpdist.spec.validation import parse_overrides, validation_message

NONE = {"category": "none"}
RELEASES = Path(__file__).parents[2] / "deploy" / "releases"


def test_integer_domain_and_width_buckets() -> None:
    age = Attribute(name="age", kind="integer", bounds=(17, 96), buckets=Width(width=10))
    assert (age.cardinality, age.dtype, age.bucket_count) == (80, np.uint8, 8)
    np.testing.assert_array_equal(age.bucket_map, np.arange(80) // 10)


def test_missing_category_is_the_last_code_with_a_bucket_of_its_own() -> None:
    work = Attribute(
        name="w",
        kind="categorical",
        values=("a", "b", "c"),
        missing=Category(category="?"),
        buckets=Groups(groups=(("a", "c"), ("b",))),
    )
    assert (work.missing_code, work.cardinality) == (3, 4)
    assert work.bucket_map.tolist() == [0, 1, 0, 2]


@given(lo=st.integers(-(10**6), 10**6), span=st.integers(1, 5000), bins=st.integers(1, 200))
def test_equal_bins_cover_the_bounds_with_widths_one_apart(lo: int, span: int, bins: int) -> None:
    bins = min(bins, span)
    edges = Attribute(name="x", kind="integer", bounds=(lo, lo + span - 1), bins=Count(count=bins)).bin_edges
    widths = np.diff([*edges.tolist(), lo + span])
    assert edges[0] == lo
    assert widths.min() >= 1
    assert widths.max() - widths.min() <= 1


def test_bucket_edges_of_binned_integers() -> None:
    gain = Attribute(
        name="g", kind="integer", bounds=(0, 99), bins=Edges(edges=(0, 1, 10, 50)), buckets=Edges(edges=(0, 10))
    )
    assert gain.bucket_map.tolist() == [0, 0, 1, 1]


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"kind": "integer"}, "declare its `bounds`"),
        ({"kind": "integer", "bounds": (5, 1)}, "lower bound exceeds"),
        ({"kind": "integer", "bounds": (0, 10), "bins": {"edges": (1, 2)}}, "the first is 0, the last at most 10"),
        ({"kind": "integer", "bounds": (0, 3), "bins": {"count": 5}}, "more bins than integers"),
        ({"kind": "integer", "bounds": (0, MAX_CARDINALITY)}, "declare `bins`"),
        ({"kind": "integer", "bounds": (0, 9), "bins": {"edges": (0, 5, 5)}}, "strictly increasing"),
        ({"kind": "integer", "bounds": (0, 2**63), "bins": {"count": 2}}, "within -2"),
        ({"kind": "categorical", "values": (0, 2**63)}, "within -2"),
        ({"kind": "categorical", "values": ("a", "b"), "missing": {"category": "a"}}, "also a declared value"),
        ({"kind": "integer", "bounds": (0, 9.5)}, "of integers are integers"),
        ({"kind": "integer", "bounds": (0, 9), "bins": {"edges": (0, 2.5)}}, "of integers are integers"),
        ({"kind": "number"}, "declare its `bounds`"),
        ({"kind": "number", "bounds": (0, 1), "values": (1,)}, "takes `bounds`, not `values`"),
        ({"kind": "number", "bounds": (1, 1)}, "below the upper bound"),
        ({"kind": "number", "bounds": (0, float("inf"))}, "finite number"),
        ({"kind": "number", "bounds": (float("nan"), 1)}, "finite number"),
        ({"kind": "number", "bounds": (-1.7e308, 1.7e308)}, "too far apart"),
        ({"kind": "number", "bounds": (0, 1), "bins": {"edges": (0.1, 0.5)}}, "do not cover the domain"),
        ({"kind": "number", "bounds": (0, 1), "bins": {"edges": (0, 1)}}, "do not cover the domain"),
        ({"kind": "number", "bounds": (0, 1), "bins": {"edges": (0, 0.5, 0.5)}}, "strictly increasing"),
        ({"kind": "number", "bounds": (1, 1 + 1e-15), "bins": {"count": 50}}, "more bins than floats"),
        ({"kind": "number", "bounds": (0, 1), "bins": {"count": MAX_CARDINALITY}, "missing": NONE}, "exceeds"),
        ({"kind": "number", "bounds": (0, 1), "missing": NONE}, "needs `bins`"),
        ({"kind": "number", "bounds": (0, 1), "out_of_domain": NONE}, "needs `bins`"),
        ({"kind": "number", "bounds": (0, 1), "buckets": {"width": 2}}, "need `bins`"),
        ({"kind": "number", "bounds": (0, 1), "labels": ("x",)}, "need `bins`"),
        ({"kind": "number", "bounds": (0, 1), "aliases": {"x": 1}}, "alias points"),
        ({"kind": "number", "bounds": (0, 1), "bins": {"count": 2}, "buckets": {"groups": ((0, 1),)}}, "by {width"),
        ({"kind": "number", "bounds": (0, 1), "bins": {"count": 2}, "labels": ("x",)}, "expected 2 labels"),
        ({"kind": "number", "bounds": (0, 1), "bins": {"count": 2}, "out_of_domain": NONE}, "must be a value"),
        ({"kind": "number", "bounds": (0, 99999), "bins": {"edges": (0, 1, 99999)}}, "below the upper bound 99999"),
        ({"kind": "categorical"}, "declare its `values`"),
        ({"kind": "categorical", "values": ("a", "a")}, "declared twice"),
        ({"kind": "categorical", "values": ("a", 1)}, "all integers or all texts"),
        ({"kind": "categorical", "values": ("a", "b"), "labels": ("x",)}, "expected 2 labels"),
        ({"kind": "categorical", "values": ("a", "b"), "out_of_domain": "clip"}, "needs an ordered"),
        ({"kind": "categorical", "values": ("a", "b"), "out_of_domain": {"category": "z"}}, "must be a value"),
        ({"kind": "categorical", "values": ("a", "b"), "aliases": {"A": "z"}}, "alias points"),
        ({"kind": "categorical", "values": ("a", "b"), "buckets": (1,)}, "expected 2 bucket numbers"),
        ({"kind": "categorical", "values": ("a", "b"), "buckets": {"groups": (("a",),)}}, "exactly one bucket"),
        ({"kind": "categorical", "values": ("a", "b"), "buckets": {"edges": (0,)}}, "need an integer"),
    ],
)
def test_a_wrong_attribute_says_what_is_wrong(fields: dict, text: str) -> None:
    with pytest.raises(ValidationError, match=text):
        Attribute.model_validate({"name": "x", **fields})


def test_numbers_with_and_without_bins() -> None:
    plain = Attribute(name="x", kind="number", bounds=(0, 1))
    assert (plain.bounds, plain.is_continuous, plain.is_binned, plain.dtype) == ((0.0, 1.0), True, False, np.float64)
    assert plain == Attribute.model_validate({"name": "x", "kind": "number", "bounds": [0.0, "1e0"]})
    for word in ("cardinality", "bucket_map", "bucket_count"):
        with pytest.raises(SpecError, match="attribute 'x' is a continuous number, which has no codes: declare `bins`"):
            getattr(plain, word)
    schema = Schema(attributes=(Attribute(name="n", kind="integer", bounds=(0, 1)), plain))
    assert schema.continuous == ("x",)
    with pytest.raises(SpecError, match="'x' is a continuous"):
        schema.cardinalities  # noqa: B018
    binned = Attribute(
        name="x", kind="number", bounds=(-1, 1), bins=Count(count=4), buckets=Edges(edges=(-1, 0)), missing=NONE
    )
    np.testing.assert_array_equal(binned.bin_edges, [-1, -0.5, 0, 0.5])
    assert (binned.cardinality, binned.missing_code, binned.dtype) == (5, 4, np.uint8)
    assert binned.bucket_map.tolist() == [0, 0, 1, 1, 2]
    edges = Attribute(name="x", kind="number", bounds=(0, 2), bins=Edges(edges=(0, 1)), buckets=Width(width=2))
    assert (edges.bin_edges.tolist(), edges.bin_edges.dtype, edges.bucket_count) == ([0.0, 1.0], np.float64, 1)
    assert Attribute.model_validate_json(binned.model_dump_json()) == binned


@given(low=st.floats(-1e6, 1e6), width=st.floats(1e-3, 1e6), count=st.integers(1, 500))
def test_equal_bins_of_a_number_are_those_of_numpy(low: float, width: float, count: int) -> None:
    bounds = (low, low + width)
    edges = Attribute(name="x", kind="number", bounds=bounds, bins=Count(count=count)).bin_edges
    np.testing.assert_array_equal([*edges, bounds[1]], np.histogram_bin_edges([], count, bounds))


def test_names_differ() -> None:
    x = Attribute(name="x", kind="integer", bounds=(0, 1))
    with pytest.raises(ValidationError, match="names must differ"):
        Schema(attributes=(x, x))


def test_fingerprint_follows_the_content() -> None:
    x = Attribute(name="x", kind="integer", bounds=(0, 1))
    same = Attribute(name="x", kind="integer", bounds=(0, 1))
    other = Attribute(name="x", kind="integer", bounds=(0, 2))
    assert Schema(attributes=(x,)).fingerprint == Schema(attributes=(same,)).fingerprint
    assert Schema(attributes=(x,)).fingerprint != Schema(attributes=(other,)).fingerprint


def test_errors_of_a_schema_file(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="cannot read"):
        Schema.from_yaml(tmp_path / "none.yaml")
    bad = tmp_path / "bad.yaml"
    bad.write_text("attributes: [")
    with pytest.raises(SpecError, match="not valid YAML"):
        Schema.from_yaml(bad)
    bad.write_text("attributes: [{name: x, kind: integer}]")
    with pytest.raises(SpecError, match="declare its `bounds`"):
        Schema.from_yaml(bad)


def test_the_papers_schema_has_the_papers_domains_and_buckets(shared_data) -> None:
    schema = Schema.from_yaml(RELEASES / "schemas" / "acs2013.yaml")
    domains = [line.split(",") for line in shared_data("acs2013_sgf_attrs.csv").read_text().splitlines()]
    groups = [line.split(",") for line in shared_data("acs2013_sgf_grps.csv").read_text().splitlines()]
    assert len(domains) == len(schema.attributes)
    for attribute, (name, *codes), group in zip(schema.attributes, domains, groups, strict=True):
        assert attribute.name == name.strip()
        declared = attribute.values or attribute.bin_edges.tolist()
        assert [int(code) for code in codes] == list(declared)
        wanted = np.array(group, int)
        same = attribute.bucket_map[:, None] == attribute.bucket_map
        np.testing.assert_array_equal(same, wanted[:, None] == wanted)


def test_equality_is_by_field_also_when_arrays_are_cached() -> None:
    a = Schema(attributes=(Attribute(name="x", kind="integer", bounds=(0, 10**15), bins=Count(count=20_000)),))
    b = Schema.model_validate(a.model_dump())
    assert (np.diff(a.attributes[0].bin_edges) > 0).all()
    assert a == b
    assert hash(a) == hash(b)
    assert a != Schema(attributes=(Attribute(name="x", kind="integer", bounds=(0, 1)),))


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        (5, "attributes: expected a list"),
        ([], "attributes: expected at least 1 item(s)"),
        (["x"], "attributes.0: expected a section"),
        ([{"name": "a", "kind": "ordinal", "values": [None]}], "attributes.0.values.0: expected an integer or a text"),
        (
            [{"name": "a", "kind": "ordinal"}],
            "attributes.0: attribute 'a': declare its `values`, such as [north, south]",
        ),
    ],
)
def test_one_line_says_what_is_wrong(attributes: object, message: str) -> None:
    with pytest.raises(ValidationError) as refused:
        Schema.model_validate({"attributes": attributes})
    assert validation_message(refused.value) == message


@pytest.mark.parametrize("text", ["", "- attributes\n"])
def test_a_file_without_settings_is_no_schema(text: str, tmp_path: Path) -> None:
    (tmp_path / "schema.yaml").write_text(text)
    with pytest.raises(SpecError, match="is not a schema: expected a mapping with `attributes`"):
        Schema.from_yaml(tmp_path / "schema.yaml")


def test_of_a_file_that_is_no_schema_nothing_is_told(tmp_path: Path) -> None:
    (tmp_path / "key.json").write_text('{"wrapped": "c2VjcmV0", "kid": 7}')
    with pytest.raises(SpecError, match=r"is not a schema: expected the settings attributes") as refused:
        Schema.from_yaml(tmp_path / "key.json")
    assert "wrapped" not in str(refused.value)
    assert "kid" not in str(refused.value)


# --- Days and moments as integers, and the periods of the calendar


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
