"""Spec, plan and stages of a central mixing release, from a table to its parts."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from attempts import attempt_of, run_stages
from dask import delayed
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from reading import readable

from dpdist.cluster.cluster import Cluster
from dpdist.cluster.executor import DaskTasks, Executor, InProcess
from dpdist.errors import AccountingError, CheckFailed, OutOfDomain, SpecError
from dpdist.families.base.attempt import Attempt
from dpdist.families.mixing import classes
from dpdist.families.mixing.budget import ORDERS, best_order, common_noise, compare, divide_budget, order_choices
from dpdist.families.mixing.mixing_plan import MixingPlan
from dpdist.families.mixing.mixture import BLOCK_BYTES, Mixer, block_of, clip_rows, piece_of
from dpdist.families.mixing.plan import plan
from dpdist.families.mixing.plan import planned as planned_without_search
from dpdist.families.mixing.scaling import declared_encoding
from dpdist.families.mixing.spec import MixingSpec
from dpdist.families.mixing.stages import sums_of_mixtures
from dpdist.ledger.keys import KeyRef, load_noise
from dpdist.privacy import accountant
from dpdist.privacy.events import ApproximateDP, Composed, Parallel
from dpdist.privacy.mixtures import ClassMixtures
from dpdist.privacy.noise import Noise
from dpdist.spec.schema import Schema

KEY = bytes(range(32)).hex()
ROWS = 20_000
SCHEMA = {
    "attributes": [
        {"name": "age", "kind": "integer", "bounds": [0, 59]},
        {"name": "class", "kind": "categorical", "values": ["low", "high", "rare"]},
        {"name": "sex", "kind": "categorical", "values": ["F", "M"], "missing": {"category": "?"}},
    ]
}


@pytest.fixture(scope="module")
def people(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = np.random.default_rng(1)
    label = rng.choice(3, ROWS, p=[0.7, 0.295, 0.005])
    age = np.clip(rng.normal(20 + 20 * label, 8, ROWS), 0, 59).astype(int)
    sex = rng.integers(0, 3, ROWS)
    table = pa.table(
        {
            "age": age,
            "class": np.array(["low", "high", "rare"])[label],
            "sex": pa.array(np.array(["F", "M", ""])[sex], pa.string(), mask=sex == 2),
        }
    )
    folder = tmp_path_factory.mktemp("people")
    pq.write_table(table, folder / "people.parquet", row_group_size=3000)
    return folder


def spec(folder: Path | str = "people.parquet", out: Path | str = "out", **changes: Any) -> MixingSpec:
    mixing: dict[str, Any] = {
        "class": "class",
        "classes": {"low": {"minimum": 12_000, "records": 9000}, "high": {"minimum": 5000, "records": 3000}},
        "order": 32,
    }
    return MixingSpec.model_validate(
        {
            "kind": "mixing",
            "name": "m",
            "dataset": "d",
            "schema": SCHEMA,
            "data": {"path": str(folder), "minimum_records": 15_000},
            "output": {"path": str(out), "rows_per_part": 5000},
            "privacy": {"epsilon": 10, "delta": 1e-5} | changes.pop("privacy", {}),
            "mixing": mixing | changes,
        }
    )


@lru_cache
def planned(changes: str) -> MixingPlan:
    return plan(spec(**json.loads(changes)))


def attempt(
    folder: Path, tmp_path: Path, *, partitions: int = 3, executor: Executor | None = None, **changes: Any
) -> Attempt[MixingSpec, MixingPlan]:
    made = spec(folder, tmp_path / "out", **changes)
    return attempt_of(made, tmp_path, partitions=partitions, executor=executor or Cluster(), key=KEY)


def released(made: Attempt[Any, Any]) -> pa.Table:
    run_stages(made)
    return pa.concat_tables([pq.read_table(made.output.uri + "/" + part.name) for part in made.parts])


def test_the_plan_fills_its_budget():
    made = planned("{}")
    assert 10 * (1 - 3e-3) <= made.epsilon <= 10
    assert isinstance(made.event, Parallel)
    assert made.epsilon == accountant.epsilon(made.event, delta=1e-5)
    high, low = made.classes
    assert low.mixtures.minimum == low.check.minimum < 12_000
    assert high.mixtures.sampling_rate == 32 / high.check.minimum
    text = made.explain()
    assert "class = high: 3,000 mixtures" in text
    assert "norm" in text
    out = made.to_json()
    assert out["parameters"]["order"] == 32
    assert out["parameters"]["clip"] == pytest.approx(np.sqrt(2), rel=1e-3)
    assert out["parameters"]["classes"][0]["declared_minimum"] == 5000


def test_every_class_carries_its_check_its_mixtures_the_moments_and_the_samplers():
    made = planned(json.dumps({"scaling": "standardised"}))
    assert made.clip is None
    for event in made.event.events:
        assert isinstance(event, Composed)
        checked, mixtures, moments, lost = event.events
        assert made.moments is not None
        assert moments == made.moments.event
        assert isinstance(lost, ApproximateDP)
        assert 0 < lost.delta < 1e-10
        assert checked in [part.check.event for part in made.classes]
        assert mixtures in [part.mixtures.event(made.sigma_over_clip) for part in made.classes]
    assert "Scaling" in made.explain()


def test_classes_that_cost_the_same_count_once():
    made = plan(spec(classes={name: {"minimum": 5000, "records": 1000} for name in ("low", "high")}))
    assert isinstance(made.event, Composed)


def test_auto_takes_an_order_by_public_numbers():
    made = spec(order="auto", classes={"low": {"minimum": 2000, "records": 500}})
    chosen = plan(made).order
    assert chosen in ORDERS
    compared = compare(made, orders=(chosen // 2, chosen, chosen * 2))
    smaller, same, larger = compared.choices
    assert same.noise_to_spread <= min(smaller.noise_to_spread, larger.noise_to_spread)
    assert compared.best is same
    assert f"here {chosen}" in compared.explain()
    assert compared.to_json()["order"] == chosen


def test_published_label_noise():
    made = planned(json.dumps({"noise_on_labels": "paper"}))
    assert made.label_sigma == pytest.approx(made.sigma_over_clip / np.sqrt(2))
    assert "protects nothing" in made.explain()
    assert planned("{}").label_sigma == 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"class": "wage"}, "no attribute 'wage'"),
        ({"classes": {"middle": {"minimum": 1, "records": 1}}}, "'middle' is no value .* are low, high, rare"),
        ({"classes": {}}, "at least 1 item"),
        ({"classes": {value: {"minimum": 5_000, "records": 1} for value in (1, "1")}}, "a class is there twice"),
        ({"classes": {"low": {"minimum": 0, "records": 1}}}, "greater than or equal to 1"),
        ({"order": 0}, "mixing.order"),
        ({"order": 4000}, "mixing.order"),
        ({"order": "best"}, "a number from 1 to 2048, or auto"),
        ({"clip": -1}, "greater than or equal to 0.000001"),
        ({"clip": 1e300}, "less than or equal to 1000000"),
        ({"privacy": {"epsilon": 28}}, "less than or equal to 27"),
        ({"privacy": {"epsilon": 0}}, "greater than or equal to 0.000001"),
        ({"surprise": 1}, "not permitted"),
    ],
)
def test_specs_that_make_no_sense_are_refused(changes, message):
    with pytest.raises(ValidationError, match=message):
        spec(**changes)


def test_covariances_of_a_wide_domain_are_refused_and_narrower_ones_counted():
    wide = {"attributes": [*SCHEMA["attributes"], {"name": "zip", "kind": "categorical", "values": [*range(5_000)]}]}
    with pytest.raises(SpecError, match=r"5,004 coordinates are too many.*spread to mixtures"):
        plan(spec().model_copy(update={"table": Schema.model_validate(wide)}))
    made = planned("{}")
    few = replace(made, spec=spec(spread="mixtures")).needs().task_bytes
    narrow = {"attributes": [*SCHEMA["attributes"], {"name": "zip", "kind": "categorical", "values": [*range(4_000)]}]}
    encoding = declared_encoding(Schema.model_validate(narrow), class_attribute="class")
    assert replace(made, encoding=encoding).needs().task_bytes > 8 * 8 * 4_000**2 > few


def test_plans_that_cannot_be_met_are_refused():
    with pytest.raises(SpecError, match="lower the order, or leave the class out"):
        plan(spec(classes={"low": {"minimum": 500, "records": 10}}, order=512))
    with pytest.raises(AccountingError, match=r"5 records of class 'low' are too few to be confirmed.*check_share"):
        plan(spec(classes={"low": {"minimum": 5, "records": 10}}, order=1))
    for changes in ({"classes": {"low": {"minimum": 5_000, "records": 10**11}}}, {"privacy": {"delta": 1e-13}}):
        with pytest.raises(SpecError, match="release fewer mixtures, or raise"):
            planned_without_search(spec(**changes), order=32, sigma_over_clip=1.0)
    with pytest.raises(SpecError, match="leave nothing"):
        plan(spec(scaling="standardised", privacy={"check_share": "19/20"}))


@pytest.mark.parametrize("shard_rows", [10_000, 700, 97])
def test_shards_and_blocks_do_not_change_the_mixtures(shard_rows, monkeypatch):
    encoding = declared_encoding(Schema.model_validate(SCHEMA), class_attribute="class")
    rng = np.random.default_rng(0)
    codes = [[rng.integers(0, 60, 2000).astype(np.uint8), rng.integers(0, 3, 2000).astype(np.uint8)]]
    mixer = Mixer(order=16, clip=1.2, sigma=0.1, name="mixing/0")
    rows = clip_rows(encoding.encode(codes[0]), clip=1.2)
    expected = mixer.mixtures(load_noise(KeyRef.fixed(KEY)), rows, 0, 500)
    monkeypatch.setattr(classes, "SHARD_BYTES", 4 * encoding.width * shard_rows)
    noise = load_noise(KeyRef.fixed(KEY))
    for block in (500, 128):
        spans = [(at, min(at + block, 500)) for at in range(0, 500, block)]
        blocks = [
            mixer.finish(noise, classes.class_sums(codes[0], encoding, mixer, noise, *span), span[0]) for span in spans
        ]
        assert np.array_equal(np.concatenate(blocks), expected)


@pytest.mark.parametrize("width", [1, 108, 800, 5_000, 1 << 26])
def test_what_is_released_does_not_depend_on_the_slots(width):
    for records in (1, 9_000, 1_000_000):
        for slots in (1, 2, 64):
            block = block_of(records, width=width, slots=slots)
            assert block % piece_of(width) == 0
            assert 4 * width * block <= BLOCK_BYTES or block == 1


@settings(max_examples=20, deadline=None)
@given(count=st.integers(1, 400), piece=st.integers(1, 60), block=st.integers(1, 20), other=st.integers(1, 20))
def test_sums_of_mixtures_do_not_depend_on_blocks(count, piece, block, other):
    mixtures = np.random.default_rng(count).normal(size=(count, 6)).astype(np.float32)
    sums = []
    for size in (block * piece, other * piece):
        blocks = [mixtures[at : at + size] for at in range(0, count, size)]
        sums.append(sums_of_mixtures(InProcess().tasks("spread"), blocks, block=size, piece=piece))
    assert sums[0].count == sums[1].count == count
    assert np.array_equal(sums[0].outer, sums[1].outer)
    assert np.array_equal(sums[0].total, sums[1].total)
    assert sums[0].outer == pytest.approx(mixtures.T.astype(float) @ mixtures, rel=1e-5, abs=1e-5)


def test_building_graphs_computes_nothing():
    def fail() -> None:
        raise AssertionError("computed")

    blocks = [delayed(fail)() for _ in range(5)]
    graph = sums_of_mixtures(DaskTasks("spread"), blocks, block=100, piece=50)
    keys = [str(key) for key in graph.dask if "fail" not in str(key)]
    assert len(keys) >= 6
    assert all(key.startswith("spread-") for key in keys)


@pytest.mark.parametrize("changes", [{"scaling": "standardised", "release": "vectors"}, {"scaling": "centred"}])
def test_a_release_depends_neither_on_partitions_nor_on_the_executor(people, tmp_path, changes):
    where = ((1, InProcess()), (16, Cluster()))
    one, other = (released(attempt(people, tmp_path / str(n), partitions=n, executor=on, **changes)) for n, on in where)
    assert one.equals(other)


def test_records_look_like_the_table(people, tmp_path):
    made = attempt(people, tmp_path)
    table = released(made)
    assert table.num_rows == 12_000
    assert [part.rows for part in made.parts] == [5000, 5000, 2000]
    assert table.column_names == ["age", "class", "sex"]
    label = np.array(table["class"].to_pylist())
    assert np.unique(label, return_counts=True)[1].tolist() == [3000, 9000]
    age = np.array(table["age"])
    assert age[label == "low"].mean() == pytest.approx(20, abs=1)
    assert age[label == "high"].mean() == pytest.approx(40, abs=1)
    assert age[label == "low"].std() == pytest.approx(8, abs=2)  # restored: mixtures of 32 have 8 / sqrt(32)
    assert made.public == {"classes_left_out": [], "clip": made.plan.clip}


def test_vectors_have_a_column_per_coordinate(people, tmp_path):
    made = attempt(people, tmp_path, release="vectors", spread="mixtures")
    table = released(made)
    assert table.column_names == ["age", "sex=F", "sex=M", "sex=?", "class"]
    assert table.schema.field("age").type == pa.float64()
    reach = made.plan.released.attributes[0].bounds[1]
    assert np.abs(table["age"].to_numpy()).max() < reach / 8  # never clipped
    shares = np.array([table[f"sex={value}"].to_numpy().mean() for value in ("F", "M", "?")])
    assert shares == pytest.approx([1 / 3] * 3, abs=0.02)


def test_label_noise_flips_labels_only_if_asked_for(people, tmp_path):
    noisy, clean = (
        attempt(people, tmp_path / name, noise_on_labels=name, spread="mixtures") for name in ("paper", "none")
    )
    for made in (noisy, clean):
        made.plan = replace(made.plan, sigma_over_clip=0.6)  # as for single records
    noisy, clean = released(noisy), released(clean)
    flipped = np.mean(np.array(noisy["class"].to_pylist()) != np.array(clean["class"].to_pylist()))
    assert 0.01 < flipped < 0.5
    assert noisy["age"].equals(clean["age"])


def test_a_class_below_its_minimum_is_left_out_and_named(people, tmp_path):
    classes = {"rare": {"minimum": 3000, "records": 100}, "high": {"minimum": 5000, "records": 3000}}
    said: list[str] = []
    made = attempt(people, tmp_path, classes=classes)
    made.progress = lambda stage, *_: said.append(stage)
    table = released(made)
    assert made.public["classes_left_out"] == ["rare"]
    assert "left out, its minimum not confirmed: class 'rare'" in said
    assert set(table["class"].to_pylist()) == {"high"}


def test_nothing_is_released_without_a_confirmed_class(people, tmp_path):
    made = attempt(people, tmp_path, classes={"rare": {"minimum": 3000, "records": 100}})
    with pytest.raises(CheckFailed, match="nothing is published") as error:
        released(made)
    assert "100" not in readable(str(error.value))
    assert made.parts == ()


def test_a_table_that_breaks_its_policies_is_refused_before_noise_is_drawn(tmp_path, monkeypatch):
    pq.write_table(pa.table({"age": [99], "class": ["low"], "sex": ["F"]}), tmp_path / "bad.parquet")
    made = attempt(tmp_path / "bad.parquet", tmp_path)
    drawn, told = [], []
    monkeypatch.setattr(Noise, "_words", lambda *_: drawn.append(True))
    made.before_noise = lambda: told.append(True)
    with pytest.raises(OutOfDomain, match="age"):
        run_stages(made)
    assert (drawn, told) == ([], [True])


def test_classes_share_mixtures_equally() -> None:
    minima = {"low": {"minimum": 12_000}, "high": {"minimum": 5_000}}
    shared = 1_201
    made = spec(classes=minima, records=shared)
    each = {value: one | {"records": 600} for value, one in minima.items()}
    assert made.decisive() == spec(classes=each).decisive()  # it is another way to write the same
    assert plan(made).event == plan(spec(classes=each)).event
    assert type(made).model_validate(made.model_dump(mode="json", by_alias=True)).mixing.classes == made.mixing.classes
    with pytest.raises(ValueError, match="or `records` of each class"):
        spec(classes=each, records=shared)
    with pytest.raises(ValueError, match="2 classes need a mixture each"):
        spec(classes=minima, records=1)
    with pytest.raises(ValueError, match="records"):
        spec(classes=minima)


DIVIDED = divide_budget(
    spec(classes={"low": {"minimum": 2100, "records": 500}, "high": {"minimum": 600, "records": 500}})
)


def test_orders_are_compared_without_a_record():
    orders = (64, 2, 8, 400, 1000)
    choices = list(order_choices(DIVIDED, orders))
    assert [choice.order for choice in choices] == [400, 64, 8, 2]
    noise = [choice.sigma_over_clip for choice in choices]
    assert noise == sorted(noise)
    for choice in choices:
        assert choice.noise_to_mean == pytest.approx(math.sqrt(DIVIDED.encoding.width) * choice.sigma_over_clip)
        assert choice.noise_to_spread == pytest.approx(choice.noise_to_mean * math.sqrt(choice.order))
    best = best_order(DIVIDED, orders)
    assert best == min(choices, key=lambda choice: choice.noise_to_spread).order
    assert best not in (2, 400)  # much noise at one end, no spread left at the other


def test_all_classes_have_the_noise_of_the_dearest():
    sigma = common_noise(DIVIDED, 8)
    costs = [
        ClassMixtures(minimum=minimum, order=8, records=count).epsilon(sigma, delta=DIVIDED.delta)
        for minimum, count in DIVIDED.sizes.values()
    ]
    assert DIVIDED.epsilon * (1 - 1e-3) <= max(costs) <= DIVIDED.epsilon


def test_orders_that_no_class_can_fill_are_refused():
    with pytest.raises(AccountingError, match="lower it"):
        next(order_choices(DIVIDED, (600,)))
