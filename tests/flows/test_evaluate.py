"""The evaluation as a flow: the page is on the worker's machine, and Prefect holds nothing of it."""

import json
import logging
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from flowruns import shown_artifacts
from releases import project, table

from dpdist.lifecycle.run import run_release

pytestmark = [
    pytest.mark.usefixtures("undrawn"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]


def test_the_page_is_written_and_prefect_knows_where_only(
    tmp_path: Path, prefect_home: tuple[Path, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    import flows.evaluate

    logging.getLogger("prefect").setLevel(logging.INFO)
    spec = project(tmp_path)
    run_release(spec)
    monkeypatch.setenv("DPDIST_PAGES", str(tmp_path))
    page = flows.evaluate.evaluate(
        release=spec.output.path,
        output="page",
        spec=spec.model_dump(mode="json", by_alias=True, exclude_none=True),
        options={"attacks": False, "train": 60, "test": 60, "publish": 0.25},
    )
    assert page == str(tmp_path / "page" / "evaluation.html")
    figures = json.loads((tmp_path / "page" / "evaluation.json").read_text())
    assert (tmp_path / "page" / "publishable.json").exists()
    artifacts = shown_artifacts()
    assert "evaluation-release-page" in artifacts
    assert "confidential" in str(artifacts["evaluation-release-page"].data)
    time.sleep(1)  # logs are sent in batches
    held = b"".join(path.read_bytes() for folder in prefect_home for path in folder.rglob("*") if path.is_file())
    for section in figures["sections"].values():
        assert section["verdict"].encode() not in held
    distances: dict[str, Any] = figures["sections"]["marginals"]["figures"]["distances"]
    told = {repr(distance) for distance in distances.values() if len(repr(distance)) > 12}
    assert told, "a short number may be anything"
    assert not any(distance.encode() in held for distance in told)


def test_what_is_wrong_is_told_without_a_page(
    tmp_path: Path, prefect_home: tuple[Path, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    import flows.evaluate
    from dpdist.errors import DataNotFound, SpecError

    monkeypatch.setenv("DPDIST_PAGES", str(tmp_path / "pages"))
    with pytest.raises(DataNotFound, match="no finished release"):
        flows.evaluate.evaluate(release=str(tmp_path), output="page", against=["x.parquet"])
    for output in ("../page", str(tmp_path / "page")):
        with pytest.raises(SpecError, match=r"leaves the folder of pages.*DPDIST_PAGES"):
            flows.evaluate.evaluate(release=str(tmp_path), output=output, against=["x.parquet"])
    for options in ({"ledger": "sqlite:///mine.db"}, {"output": "s3://public/page"}, {"cluster": "tcp://there:1"}):
        with pytest.raises(SpecError, match="options: expected some of target"):
            flows.evaluate.evaluate(release=str(tmp_path), output="page", against=["x.parquet"], options=options)
    assert not list(tmp_path.rglob("page"))


def test_pages_stay_below_the_prefix_that_the_worker_names(monkeypatch: pytest.MonkeyPatch) -> None:
    from dpdist.errors import SpecError
    from flows.server import page_address

    monkeypatch.setenv("DPDIST_PAGES", "s3://secret/pages/")
    assert page_address("acs/first") == "s3://secret/pages/acs/first"
    for path in ("../first", "acs/../../x", "s3://public/page", "/page", "acs//x", ""):
        with pytest.raises(SpecError, match="leaves the folder of pages"):
            page_address(path)


def test_what_a_table_is_refused_for_is_told_on_the_page_alone(
    tmp_path: Path, prefect_home: tuple[Path, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever starts an evaluation could ask for any value: by a release with a schema that leaves it out."""
    import flows.evaluate

    spec = project(tmp_path)
    run_release(spec)
    monkeypatch.setenv("DPDIST_PAGES", str(tmp_path / "pages"))
    rows = table(200).to_pylist()
    tables = {
        "outside": pa.Table.from_pylist([*rows[:100], rows[0] | {"region": "planted-value"}, *rows[100:]]),
        "empty": table(0),
        "typed": table(200).set_column(0, "region", pa.array([[1]] * 200)),
    }
    for name, against in tables.items():
        pq.write_table(against, tmp_path / f"{name}.parquet")
        page = flows.evaluate.evaluate(
            release=spec.output.path,
            output=name,
            against=[str(tmp_path / f"{name}.parquet")],
            options={"attacks": False},
        )
        assert page == str(tmp_path / "pages" / name / "evaluation.html")
        assert "ended early" in Path(page).read_text()
    assert "column &#39;region&#39;" in (tmp_path / "pages" / "outside" / "evaluation.html").read_text()
    time.sleep(1)  # logs are sent in batches
    held = b"".join(path.read_bytes() for folder in prefect_home for path in folder.rglob("*") if path.is_file())
    for told in (b"OutOfDomain", b"EmptyTable", b"ColumnMismatch", b"outside the declared domain", b"no rows"):
        assert told not in held
