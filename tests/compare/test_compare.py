"""What the comparison with other packages measures, and how it treats those that fail."""

import importlib.util
import sys
from itertools import combinations
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from dpdist.spec.schema import Schema

FOLDER = Path(__file__).parents[1] / "benchmarks" / "peers"
SCHEMA = Schema.model_validate(
    {
        "attributes": [
            {"name": "a", "kind": "integer", "bounds": [0, 4], "buckets": {"width": 2}},
            {"name": "b", "kind": "categorical", "values": ["x", "y", "z"], "missing": {"category": "?"}},
            {"name": "c", "kind": "categorical", "values": [0, 1]},
            {"name": "d", "kind": "ordinal", "values": [1, 2, 3]},
        ]
    }
)


@pytest.fixture(scope="module")
def run() -> ModuleType:
    sys.path.insert(0, str(FOLDER))
    try:
        spec = importlib.util.spec_from_file_location("compare_run", FOLDER / "run.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules["compare_run"] = module
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(FOLDER))
    return module


def records(rows: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    codes = np.stack([rng.integers(0, size, rows) for size in SCHEMA.cardinalities], axis=1)
    codes[:, 2] = (codes[:, 0] > 2) ^ (rng.random(rows) < 0.1)
    return codes.astype(np.uint16)


def test_distances_are_those_of_the_definition(run: ModuleType) -> None:
    train, test, other = records(400, 0), records(200, 1), records(300, 2)
    quality = run.Quality(train, test, SCHEMA, target="c", seed=0)
    found = quality.of(other)
    for number in (1, 2, 3):
        distances = []
        for places in combinations(range(4), number):
            shares = []
            for table in (train, other):
                rows, counts = np.unique(table[:, places], axis=0, return_counts=True)
                shares.append(dict(zip(map(tuple, rows.tolist()), counts / len(table), strict=True)))
            cells = set(shares[0]) | set(shares[1])
            distances.append(sum(abs(shares[0].get(c, 0) - shares[1].get(c, 0)) for c in cells) / 2)
        assert found[f"tvd_{number}"] == pytest.approx(np.mean(distances), abs=1e-4)
    same = quality.of(train)
    assert (same["tvd_1"], same["tvd_2"], same["tvd_3"]) == (0, 0, 0)
    assert same["accuracy_forest"] > 0.8
    shuffled = np.stack([np.random.default_rng(i).permutation(train[:, i]) for i in range(4)], axis=1)
    assert quality.of(shuffled)["accuracy_boosting"] < 0.7


def test_codes_have_a_schema_of_their_own(run: ModuleType) -> None:
    coded = Schema.model_validate(run.coded(SCHEMA))
    assert coded.cardinalities == SCHEMA.cardinalities
    assert coded.bucket_counts == SCHEMA.bucket_counts
    for a, b in zip(coded.attributes, SCHEMA.attributes, strict=True):
        assert (a.bucket_map == b.bucket_map).all()


@pytest.mark.slow
def test_commands_are_measured_stopped_and_told_when_they_fail(run: ModuleType, tmp_path: Path) -> None:
    python, ample = sys.executable, run.Limit(60, 600)
    busy = run.measured([python, "-c", "import time; x = bytearray(200_000_000); time.sleep(2)"], tmp_path, ample)
    assert busy["failed"] is None
    assert busy["peak_mb"] > 150
    assert run.measured([python, "-c", "raise SystemExit(3)"], tmp_path, ample)["failed"] == "failed with code 3"
    late = run.measured([python, "-c", "while True: pass"], tmp_path, run.Limit(3, 600))
    assert late["failed"] == "stopped after 3 CPU seconds"
    asleep = run.measured([python, "-c", "import time; time.sleep(600)"], tmp_path, run.Limit(30, 2))
    assert asleep["failed"] == "stopped by the clock"
    assert asleep["seconds"] < 60


def test_every_peer_has_a_method_and_nothing_of_it_is_a_dependency(run: ModuleType) -> None:
    text = (FOLDER / "peer.py").read_text()
    for name in run.PEERS:
        assert f'"{name}": ' in text
    project = (FOLDER.parents[2] / "pyproject.toml").read_text().lower()
    for package in ("dpmm", "smartnoise", "datasynthesizer", "mbi="):
        assert package not in project
