"""A hold-out that is not one is found out; one that is, is not."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from releases import table

from dpdist.evaluation.records import stacked, take
from dpdist.evaluation.request import Request
from dpdist.evaluation.run import run_evaluation
from dpdist.evaluation.utility.checks import holdout_section
from dpdist.privacy.arrays import Codes
from tests.evaluate.conftest import Made


def people(rows: int, rng: np.random.Generator, *, values: int) -> Codes:
    """Records whose attributes depend on each other, a few of them popular."""
    first = np.minimum(rng.geometric(0.2, rows), values - 1)
    rest = [np.where(rng.random(rows) < 0.5, first, rng.integers(0, values, rows)) for _ in range(4)]
    return [column.astype(np.uint8) for column in (first, *rest)]


@pytest.mark.parametrize("values", [2, 6, 40])
def test_a_random_part_of_the_population_is_a_holdout(values: int) -> None:
    for seed in range(15):
        rng = np.random.default_rng([seed, values])
        assert holdout_section(people(6_000, rng, values=values), people(1_500, rng, values=values), seed=seed) is None


@pytest.mark.parametrize("share", [1.0, 0.2])
def test_records_of_the_table_are_no_holdout(share: float) -> None:
    rng = np.random.default_rng(0)
    training, others = people(6_000, rng, values=40), people(2_000, rng, values=40)
    cut = round(share * 2_000)
    mixed = stacked(take(training, np.arange(cut)), take(others, np.arange(cut, 2_000)))
    section = holdout_section(training, mixed, seed=0)
    assert section.state == "bad"
    unlike = section.figures["unlike"]
    assert unlike["hold-out"] < (1 - share / 2) * unlike["real"]


def test_a_table_without_repeated_records() -> None:
    """Made distinct before it was split: nothing is equal on either side."""
    rng = np.random.default_rng(1)
    rows = np.unique(np.stack(people(20_000, rng, values=12), axis=1), axis=0)
    rng.shuffle(rows)
    columns = list(rows.T)
    half = len(rows) // 2
    assert holdout_section(take(columns, np.arange(half)), take(columns, np.arange(half, len(rows))), seed=0) is None


def test_few_records_say_nothing() -> None:
    rng = np.random.default_rng(2)
    training = people(5, rng, values=40)
    assert holdout_section(training, take(training, np.arange(0)), seed=0) is None
    assert holdout_section(training, take(training, np.arange(2)), seed=0) is None


def test_a_copy_of_the_table_under_another_name_is_not_used(made: Made, tmp_path: Path) -> None:
    real = table(30_000).slice(0, 3_000)
    pq.write_table(real, tmp_path / "real.parquet")
    pq.write_table(real.take(np.random.default_rng(0).permutation(3_000)[:900]), tmp_path / "copy.parquet")
    asked = Request(
        release=made.release,
        against=(str(tmp_path / "real.parquet"),),
        holdout=(str(tmp_path / "copy.parquet"),),
        output=tmp_path / "page",
        train=60,
        test=60,
        cluster="threads",
    )
    done = run_evaluation(asked)
    states = {item["name"]: item for item in done.verdicts}
    assert states["holdout"]["state"] == "bad"
    for name in ("copies", "membership", "linkage", "inference"):
        assert states[name]["verdict"].startswith("Does not apply")
        assert "not used" in states[name]["verdict"]
    assert json.loads(Path(done.figures).read_text())["sections"]["models"]["figures"]["held_out"] is False
