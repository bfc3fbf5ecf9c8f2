"""Two-stage releases as flows: what is not differentially private says so first, and both guarantees are run."""

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from flowruns import shown_artifacts

from dpdist.errors import GuaranteeRefused
from dpdist.ledger import Books
from dpdist.publish.verify import verify

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]
ROWS = 613


def project(folder: Path, name: str, *, guarantees: tuple[str, ...], rows: int = ROWS) -> dict[str, Any]:
    """A table, a ledger and a spec, of guarantee dp where that is all the data set allows, else lid."""
    rng = np.random.default_rng(0)
    x = rng.normal(0.5, 0.15, (rows, 2)).clip(0, 1)
    pq.write_table(pa.table({"x": x[:, 0], "z": x[:, 1], "y": np.sin(3 * x[:, 0]) + x[:, 1]}), folder / "t.parquet")
    url = f"sqlite:///{folder}/ledger.db"
    ledger = Books.open(url)
    ledger.create_dataset("d", epsilon=10, delta="1e-5", guarantees=guarantees)
    ledger.close()
    bounds = {"x": [0, 1], "z": [0, 1], "y": [0, 2]}
    return {
        "kind": "two-stage",
        "name": name,
        "dataset": "d",
        "schema": {"attributes": [{"name": n, "kind": "number", "bounds": b} for n, b in bounds.items()]},
        "data": {"path": str(folder / "t.parquet"), "minimum_records": 500},
        "output": {"path": str(folder / "release")},
        "ledger": url,
        "work": str(folder / "work"),
        "cluster": {"mode": "threads"},
        "privacy": {"guarantee": "lid", "disclosure": {"lid": 0.5, "eta": 0.001}},
        "prediction": {"response": "y"},
    }


def private(tree: dict[str, Any]) -> dict[str, Any]:
    """The same release as the private variant."""
    return tree | {
        "privacy": {"guarantee": "dp", "epsilon": 3, "delta": 1e-6},
        "prediction": {"response": "y", "records": 300},
    }


def test_flows_of_both_guarantees(tmp_path: Path, prefect_home: tuple[Path, ...]) -> None:
    from flows.release import release

    logging.getLogger("prefect").setLevel(logging.INFO)
    tree = project(tmp_path, "published", guarantees=("dp", "lid"))
    assert release(tree) == tree["output"]["path"]
    assert verify(tree["output"]["path"]).records == ROWS
    dp = private(tree) | {"name": "private", "output": {"path": str(tmp_path / "private")}}
    assert release(dp) == dp["output"]["path"]
    assert verify(dp["output"]["path"]).records == 300
    shown = {key: artifact.data for key, artifact in shown_artifacts().items()}
    first, second, *rows = json.loads(shown["d-published-plan"])
    assert first["item"] == "release"
    assert "NOT differentially private" in first["value"]
    assert second["item"] == "guarantee"
    assert second["value"].startswith("Not differentially private")
    assert {row["item"] for row in rows} >= {"original", "disclosure", "alpha", "inputs", "regression"}
    assert "**Guarantee.** Not differentially private" in shown["d-published-guarantee"]
    assert "no budget covers" in shown["d-published-guarantee"]
    assert "Not differentially private" not in shown["d-private-plan"] + shown["d-private-guarantee"]
    assert "at delta 1e-6 (add/remove adjacency)" in shown["d-private-plan"]
    assert "add/remove" in shown["d-private-guarantee"]
    stages = {"published": ("read", "synthesise", "regress", "predict"), "private": ("measure", "fit", "draw")}
    for name, own in stages.items():
        assert set(shown) >= {f"d-{name}-{step}" for step in ("charge", *own, "write", "publish")}
    assert "d-private-regress" not in shown


def test_a_flow_refuses_what_the_data_set_does_not_allow(tmp_path: Path, prefect_home: tuple[Path, ...]) -> None:
    from flows.release import release

    with pytest.raises(GuaranteeRefused, match="not 'lid'"):
        release(project(tmp_path, "refused", guarantees=("dp",)))
    assert not (tmp_path / "release" / "_manifest.json").exists()
