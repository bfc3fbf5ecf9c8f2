"""One frame of many types, from five packages: released in the types it came in."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import dpdist

ROWS = 6_000


def mixed() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    times = pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(0, 900 * 86_400, ROWS), unit="s")
    days = np.datetime64("1950-01-01") + rng.integers(0, 20_000, ROWS)
    drugs = np.array([f"d{k:04d}" for k in range(3_000)])
    return pd.DataFrame(
        {
            "patient_id": np.arange(ROWS),
            "at": times,
            "born": pd.Series(days).dt.date,
            "smokes": rng.random(ROWS) < 0.3,
            "dose": np.where(rng.random(ROWS) < 0.2, np.nan, np.round(rng.normal(5, 1, ROWS), 2)),
            "drug": drugs[np.minimum(rng.geometric(0.1, ROWS), 3_000) - 1],
            "children": pd.array(np.where(rng.random(ROWS) < 0.2, None, rng.poisson(1, ROWS)), dtype="Int64"),
            "stage": pd.Categorical(rng.choice(["I", "II", "III"], ROWS), ["I", "II", "III"], ordered=True),
            "notes": [f"free text {k}" for k in range(ROWS)],
        }
    )


def dask(frame: pd.DataFrame) -> Any:
    import dask.dataframe

    return dask.dataframe.from_pandas(frame.assign(born=pd.to_datetime(frame["born"])), npartitions=2)


FORMS: dict[str, Callable[[pd.DataFrame], Any]] = {
    "pandas": lambda frame: frame,
    "Arrow": lambda frame: pa.Table.from_pandas(frame, preserve_index=False),
    "Polars": pl.from_pandas,
    "DuckDB": lambda frame: duckdb.connect().from_arrow(pa.Table.from_pandas(frame, preserve_index=False)),
    "Dask": dask,
}


def types_of(table: Any) -> dict[str, Any]:
    if isinstance(table, pd.DataFrame):
        return {name: str(kind) for name, kind in table.dtypes.items()}
    if isinstance(table, pl.DataFrame):
        return dict(table.schema)
    if hasattr(table, "_meta"):  # of Dask
        table = pa.Table.from_pandas(table._meta, preserve_index=False)
    if isinstance(table, duckdb.DuckDBPyRelation):
        table = table.to_arrow_table()
    return {field.name: field.type for field in table.schema}


@pytest.mark.parametrize("form", FORMS)
def test_a_frame_of_many_types_comes_back_in_its_types(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    given = FORMS[form](mixed())
    public: dict[str, Any] = {
        "at": {"kind": "datetime", "bounds": ["2020-01-01", "2022-12-31"], "bins": {"every": "month"}},
        "stage": ["I", "II", "III"],
    }
    if form != "Dask":
        public["born"] = ("1950-01-01", "2004-12-31")
    found = dpdist.Synthesizer.from_frame(
        given,
        epsilon=3,
        delta=1e-9,
        drop=["patient_id", "notes"],
        public=public,
        ledger=dpdist.Ledger(f"sqlite:///{tmp_path}/ledger.db"),
    )
    released = found.fit(given).sample(2_000)
    expected = {name: kind for name, kind in types_of(given).items() if name not in ("patient_id", "notes")}
    assert types_of(released) == expected
    if form == "pandas":
        assert released["stage"].cat.ordered
        assert 0.1 < released["children"].isna().mean() < 0.3
        assert released["dose"].dropna().mul(100).round(6).mod(1).max() == 0
        assert released["at"].between("2020-01-01", "2023-01-01").all()
