"""Schemas: domains, buckets, policies and the errors of a wrong one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from dpdist.errors import SpecError
from dpdist.spec.groups import Edges, Groups, Width
from dpdist.spec.schema import MAX_CARDINALITY, Attribute, Category, Count, Schema
from dpdist.spec.validation import validation_message

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
