"""Names by date: what they are, which are refused, and which day counts."""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import Any

import jsonschema
import pytest
import yaml
from releases import SCHEMA, project

from dpdist.errors import SpecError
from dpdist.spec.reader import dated, json_schema, load
from dpdist.spec.validation import parse_overrides

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
