"""Releases of statistics: their manifest counts cells, and verification looks at types and numbers."""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from manifests import manifest_of
from pydantic import ValidationError

from dpdist.errors import VerificationFailed
from dpdist.privacy.events import DiscreteLaplace
from dpdist.privacy.guarantee import DifferentialPrivacy
from dpdist.publish.manifest import MANIFEST, Manifest, publish
from dpdist.publish.part_format import PartFormat
from dpdist.publish.parts import STATISTICS, arrow_schema, part_name, write_part
from dpdist.publish.verify import read_release, verify
from dpdist.spec.schema import Attribute, Schema
from dpdist.storage.store import Store

SCHEMA = Schema(attributes=(Attribute(name="n", kind="integer", bounds=(0, 3)),))
ATTEMPT = "0123abcd-4567"


def statistics(noisy: list[Any], value: list[Any], schema: pa.Schema = STATISTICS) -> pa.Table:
    texts = [pa.array(["x"] * len(noisy)).dictionary_encode() for _ in range(3)]
    errors = pa.array([1.0] + [None] * (len(noisy) - 1), pa.float64())
    return pa.Table.from_arrays([*texts, pa.array(noisy), pa.array(value), errors], schema=schema)


def released(place: Path, table: pa.Table, **form: Any) -> Manifest:
    store = Store(str(place))
    part = write_part(store, part_name(ATTEMPT, 0), table)
    manifest = manifest_of(
        guarantees=[DifferentialPrivacy(epsilon=1, delta=0, adjacency="add/remove", covers="the whole release")],
        kind="histogram",
        name="one",
        attempt=ATTEMPT,
        created=date(2026, 1, 1),
        parameters={"event": DiscreteLaplace(scale=1.0).to_json()},
        spec_sha256="0" * 64,
        spec={},
        table=SCHEMA,
        form=PartFormat(layout="statistics", **form),
        parts=[part],
    )
    return publish(store, manifest)


def test_cells_are_counted_and_records_are_not_there(tmp_path: Path) -> None:
    manifest = released(tmp_path, statistics([-1.0, 2.5], [0.0, 2.0]), non_negative=True)
    fields = json.loads((tmp_path / MANIFEST).read_bytes())
    assert (fields["cells"], "records" in fields, manifest.counted, manifest.rows) == (2, False, "cells", 2)
    assert fields["format"] == {"layout": "statistics", "non_negative": True, "values": "values", "bins": "uniform"}
    assert Manifest.from_bytes(manifest.to_bytes()) == manifest
    report = verify(tmp_path)
    assert (report.cells, report.records, report.counted) == (2, 0, "2 cells")
    assert report.to_json()["cells"] == 2
    assert "records" not in report.to_json()
    assert read_release(tmp_path).schema.equals(STATISTICS)
    assert arrow_schema(SCHEMA, PartFormat(layout="statistics")) == STATISTICS


@pytest.mark.parametrize(
    ("noisy", "value", "promise", "column"),
    [
        ([1.0, np.inf], [1.0, 1.0], False, "noisy"),
        ([1.0, np.nan], [1.0, 1.0], False, "noisy"),
        ([1.0, 1.0], [1.0, np.nan], False, "value"),
        ([1.0, 1.0], [1.0, -0.5], True, "value"),
    ],
)
def test_numbers_that_are_no_statistics_are_refused(
    tmp_path: Path, noisy: list[float], value: list[float], promise: bool, column: str
) -> None:
    released(tmp_path, statistics(noisy, value), non_negative=promise)
    with pytest.raises(VerificationFailed, match=f"part-00000.parquet: column '{column}' holds values outside"):
        verify(tmp_path)


def test_negative_values_are_fine_where_nothing_is_promised(tmp_path: Path) -> None:
    released(tmp_path, statistics([-1.0], [-1.0]))
    assert verify(tmp_path).cells == 1


def test_other_columns_are_refused(tmp_path: Path) -> None:
    other = pa.schema([*list(STATISTICS)[:4], pa.field("value", pa.int64(), nullable=False), STATISTICS[5]])
    released(tmp_path, statistics([1.0], [1], other))
    with pytest.raises(VerificationFailed, match="part-00000"):
        verify(tmp_path)


def test_records_and_cells_exclude_each_other(tmp_path: Path) -> None:
    manifest = released(tmp_path, statistics([1.0], [1.0]))
    fields = manifest.model_dump()
    for changes in ({"cells": None}, {"records": 1}, {"cells": 2}, {"format": PartFormat()}):
        with pytest.raises(ValidationError, match="cells"):
            Manifest(**{**fields, **changes})
