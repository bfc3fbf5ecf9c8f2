"""Orders tried on the table itself: what they cost, which one is released, and from which records."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from attempts import attempt_of, run_stages
from families.mixing.test_release import KEY, SCHEMA, spec
from pydantic import ValidationError

from dpdist.data.source import TableSource
from dpdist.data.table import Table, open_table
from dpdist.families.base.attempt import Attempt
from dpdist.families.mixing.mixture import Mixer, clip_rows
from dpdist.families.mixing.plan import plan
from dpdist.families.mixing.restore import mixture_sums
from dpdist.families.mixing.scaling import declared_encoding
from dpdist.families.mixing.selection import Discriminant, SelectionPlan, discriminant, score
from dpdist.privacy import accountant
from dpdist.privacy.events import Parallel, RandomSplit, SubsampledGaussian
from dpdist.privacy.noise import Noise
from dpdist.spec.schema import Schema

SEARCH = {"candidates": [8, 64]}
CLASSES = {"low": {"minimum": 12_000, "records": 900}, "high": {"minimum": 5_000, "records": 300}}


@pytest.fixture(scope="module")
def made() -> SelectionPlan:
    planned = plan(spec(order=SEARCH, classes=CLASSES))
    assert isinstance(planned, SelectionPlan)
    return planned


def gaussians(event: Any) -> list[SubsampledGaussian]:
    if isinstance(event, SubsampledGaussian):
        return [event]
    return [found for part in getattr(event, "events", ()) for found in gaussians(part)]


def test_every_candidate_is_charged_and_the_budget_is_filled(made: SelectionPlan) -> None:
    assert 10 * (1 - 6e-3) <= made.epsilon <= 10
    assert isinstance(made.event, RandomSplit)
    (share, classes), (rest, choice) = made.event.stages
    assert (share, rest) == (0.9, pytest.approx(0.1))
    assert isinstance(classes, Parallel)
    mixed = classes.events
    assert choice == made.choice.event
    assert 0 < choice.delta < 1e-15  # what its samplers lose
    assert accountant.epsilon(choice, delta=1e-15) == 5
    assert accountant.epsilon(classes, delta=made.delta) > 10.1  # by itself: a record is mixed or held out
    for event, place in zip(mixed, range(2), strict=True):
        charged = gaussians(event)
        expected = [one.classes[place].mixtures.event(one.sigma_over_clip) for one in made.candidates]
        assert charged == expected
    low = made.candidates[0].classes[0]
    assert low.check.minimum < 12_000 * 9 / 10  # of the records that are mixed
    assert low.mixtures.sampling_rate == 8 / low.check.minimum


def test_what_is_planned_is_told(made: SelectionPlan) -> None:
    text = made.explain()
    assert "Orders      8 (noise" in text
    assert "10% of the records" in text
    assert "Mixtures " not in text
    parameters = made.public_parameters()
    assert [one["order"] for one in parameters["candidates"]] == [8, 64]
    assert "order" not in parameters
    assert json.dumps(made.to_json())


@pytest.mark.parametrize(
    ("order", "message"),
    [({"candidates": [4]}, "at least 2"), ({"candidates": [4, 4]}, "twice"), ({"candidates": [4, 4000]}, "from 1 to")],
)
def test_searches_that_make_no_sense_are_refused(order: Any, message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        spec(order=order)


def test_a_discriminant_of_mixtures_tells_the_classes_apart() -> None:
    rng = np.random.default_rng(0)
    centres = np.array([[0.3, 0.0, 0.0], [-0.3, 0.1, 0.0]])
    rows = [clip_rows(rng.normal(centre, [0.25, 0.05, 0.3], size=(4000, 3)), clip=2.0) for centre in centres]
    mixer = Mixer(order=16, clip=2.0, sigma=0.02, name="x")
    sums = {k: mixture_sums(mixer.mixtures(Noise(bytes([k]) * 32), rows[k], 0, 2000)) for k in range(2)}
    told = discriminant(sums, order=16, sigma=0.02)
    within = np.diag(np.array([0.25, 0.05, 0.3]) ** 2)
    best = np.linalg.solve(within, centres[0] - centres[1])
    direction = told.weights[:, 0] - told.weights[:, 1]
    assert direction @ best / np.linalg.norm(direction) / np.linalg.norm(best) > 0.98
    right = sum(told.correct(rows[k], k) for k in range(2)) / 8000
    assert right > 0.88
    assert told.correct(rows[0], 7) == 0  # a class that was left out


def test_one_record_moves_a_score_by_at_most_one() -> None:
    encoding = declared_encoding(Schema.model_validate(SCHEMA), class_attribute="class")
    rng = np.random.default_rng(1)
    codes = [[rng.integers(0, 60, 50).astype(np.uint8), rng.integers(0, 3, 50).astype(np.uint8)] for _ in range(2)]
    weights = rng.normal(size=(encoding.width, 2))
    told = Discriminant((0, 1), weights, -encoding.encode(codes[0]).mean(axis=0) @ weights)
    whole = score(codes, encoding, 1.2, told)
    changes = []
    for row in range(50):
        without = [[np.delete(column, row) for column in codes[0]], codes[1]]
        changes.append(whole - score(without, encoding, 1.2, told))
    assert set(changes) == {0, 1}


def test_a_record_is_told_alike_in_any_company() -> None:
    """Where two classes tie but for rounding, which a matrix product does by the rows beside it."""
    rng = np.random.default_rng(3)
    weights = rng.normal(size=108)
    told = Discriminant((0, 1), np.stack([weights, rng.permutation(weights)], axis=1), np.zeros(2))
    rows = clip_rows(np.full((63, 108), 0.1), clip=2.0)
    assert [told.correct(rows[:count], 0) for count in (1, 3, 4, 7, 63)] == [1, 3, 4, 7, 63]  # ties: the first


def released(folder: Path, out: Path, made: SelectionPlan, *, partitions: int) -> Attempt[Any, Any]:
    return run_stages(attempt_of(made.spec, out, table=opened(folder, made, partitions), key=KEY))


def opened(folder: Path, made: SelectionPlan, partitions: int) -> Table:
    return open_table(TableSource(paths=(str(folder),)), made.spec.table, partitions=partitions)


def test_the_order_that_tells_more_is_released(tmp_path: Path, made: SelectionPlan) -> None:
    rng = np.random.default_rng(2)
    label = (rng.random(20_000) < 0.3).astype(int)
    age = np.clip(rng.normal(25 + 10 * label, 8), 0, 59).astype(int)
    sex = np.array(["F", "M"])[rng.integers(0, 2, 20_000)]
    people = pa.table({"age": age, "class": np.array(["low", "high"])[label], "sex": sex})
    pq.write_table(people, tmp_path / "people.parquet")
    first, again = (released(tmp_path / "people.parquet", tmp_path / str(n), made, partitions=n) for n in (1, 5))
    assert [part.sha256 for part in first.parts] == [part.sha256 for part in again.parts]
    scores = first.operator["scores"]
    assert first.public["order"] == max(scores, key=scores.__getitem__)
    assert min(scores.values()) > 1_250  # of 2,000: both have learned something
    sizes = first.operator["class_sizes"]
    assert sum(sizes.values()) == pytest.approx(18_000, abs=400)
    assert max(scores.values()) <= 20_000 - sum(sizes.values())  # only held-out records are scored
    table = pa.concat_tables([pq.read_table(f"{first.output.uri}/{part.name}") for part in first.parts])
    assert table.num_rows == 1_200
    ages = np.array(table["age"])[np.array(table["class"].to_pylist()) == "high"]
    assert ages.mean() == pytest.approx(35, abs=1)
