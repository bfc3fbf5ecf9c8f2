"""Tables that are no files and change while a release runs: nothing of another reading is published."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import dpdist
from dpdist.errors import ReleaseConflict


@pytest.fixture
def ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dpdist.Ledger:
    monkeypatch.chdir(tmp_path)
    made = dpdist.Ledger("sqlite:///ledger.db")
    made.create("people", epsilon=1, delta=1e-8)
    return made


def people() -> pd.DataFrame:
    return pd.DataFrame({"age": [18 + i % 60 for i in range(6_000)]})


def spec(name: str) -> dict[str, Any]:
    return {
        "kind": "histogram",
        "name": name,
        "dataset": "people",
        "schema": {"attributes": [{"name": "age", "kind": "integer", "bounds": [18, 90]}]},
        "data": {"minimum_records": 5_000},
        "output": {"path": f"out/{name}"},
        "work": "work",
        "privacy": {"epsilon": 0.01},
        "histograms": [{"columns": ["age"]}],
    }


@pytest.mark.parametrize("changes", [True, False])
def test_a_lazy_frame_is_the_same_whenever_it_is_computed(ledger: dpdist.Ledger, changes: bool) -> None:
    frames = pytest.importorskip("dask.dataframe")
    readings = []

    def part(_: int) -> pd.DataFrame:
        readings.append(1)
        found = people()
        return found.iloc[1:] if changes and len(readings) > 1 else found

    frame = frames.from_map(part, range(1), meta=people().iloc[:0], enforce_metadata=False)
    if changes:
        with pytest.raises(ReleaseConflict, match=r"changed while it was read.*persist"):
            dpdist.release(spec("lazy"), data=frame, ledger=ledger)
        assert not list(Path("out/lazy").rglob("*.parquet"))
    else:
        dpdist.release(spec("lazy"), data=frame, ledger=ledger)
    assert len(readings) > 1


def test_memory_that_changes_while_it_is_read_is_refused(ledger: dpdist.Ledger) -> None:
    frame = people()

    def change(*_: object) -> None:
        frame.iloc[0, 0] = 89

    with pytest.raises(ReleaseConflict, match="the input changed while it was read"):
        dpdist.release(spec("memory"), data=frame, ledger=ledger, progress=change)
    assert not Path("out/memory/_manifest.json").exists()
