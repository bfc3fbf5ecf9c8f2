import math

import numpy as np
import pytest

from dpdist.families.mixing import scaling
from dpdist.privacy import accountant
from dpdist.privacy.noise import Noise
from dpdist.spec.schema import Schema

NOISE = Noise(bytes(range(32)))

SCHEMA = Schema.model_validate(
    {
        "attributes": [
            {"name": "age", "kind": "integer", "bounds": [17, 96], "missing": {"category": "unknown"}},
            {"name": "sex", "kind": "categorical", "values": ["Female", "Male"]},
            {"name": "gain", "kind": "integer", "bounds": [0, 99], "bins": {"edges": [0, 1, 50]}},
            {"name": "rank", "kind": "ordinal", "values": ["low", "mid", "high"]},
            {"name": "income", "kind": "categorical", "values": ["<=50K", ">50K"]},
            {"name": "work", "kind": "categorical", "values": ["a", "b"], "missing": {"category": "none"}},
            {"name": "fixed", "kind": "integer", "bounds": [3, 3]},
        ]
    }
)
FEATURES = tuple(a for a in SCHEMA.attributes if a.name != "income")
ENCODING = scaling.declared_encoding(SCHEMA, class_attribute="income")


def records(n: int, seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.integers(0, a.cardinality, n).astype(a.dtype) for a in FEATURES]


def test_declared_encoding():
    assert ENCODING.names == (
        "age",
        "age=unknown",
        "sex=Female",
        "sex=Male",
        "gain",
        "rank",
        "work=a",
        "work=b",
        "work=none",
        "fixed",
    )
    assert ENCODING.width == len(ENCODING.names)
    codes = [np.array([c], a.dtype) for c, a in zip([79, 1, 2, 1, 2, 0], FEATURES, strict=True)]
    gain = (50 + 99) / 2 / 99 * 2 - 1
    assert ENCODING.encode(codes)[0] == pytest.approx([1, 0, 0, 1, gain, 0, 0, 0, 1, 0])
    missing = [np.array([c], a.dtype) for c, a in zip([80, 0, 0, 0, 0, 0], FEATURES, strict=True)]
    assert ENCODING.encode(missing)[0] == pytest.approx([0, 1, 1, 0, -1, -1, 1, 0, 0, 0])


def test_no_record_exceeds_the_largest_norm_and_one_attains_it():
    norms = np.linalg.norm(ENCODING.encode(records(20_000)), axis=1)
    assert norms.max() <= ENCODING.largest_norm
    assert norms.max() >= 0.999 * ENCODING.largest_norm


def test_decoding_inverts_encoding():
    codes = records(5000)
    decoded = ENCODING.decode(ENCODING.encode(codes))
    for before, after, attribute in zip(codes, decoded, FEATURES, strict=True):
        assert after.dtype == attribute.dtype
        assert np.array_equal(before, after)


def test_any_vector_decodes_into_the_domain_and_to_the_nearest_value():
    vectors = np.random.default_rng(1).normal(size=(2000, ENCODING.width)) * 3
    decoded = ENCODING.decode(vectors)
    at = 0
    for codes, table, attribute in zip(decoded, ENCODING.tables, FEATURES, strict=True):
        piece = vectors[:, at : at + table.shape[1]]
        at += table.shape[1]
        distances = ((piece[:, None, :] - table[None]) ** 2).sum(axis=2)
        assert codes.max() < attribute.cardinality
        chosen = np.take_along_axis(distances, codes[:, None].astype(np.int64), axis=1)[:, 0]
        assert chosen == pytest.approx(distances.min(axis=1))


def test_wide_domains_decode_exactly():
    attribute = {"name": "x", "kind": "integer", "bounds": [0, 65_535]}
    label = {"name": "y", "kind": "categorical", "values": ["a", "b"]}
    encoding = scaling.declared_encoding(Schema.model_validate({"attributes": [attribute, label]}), class_attribute="y")
    codes = [np.arange(65_536, dtype=np.uint16)]
    assert np.array_equal(encoding.decode(encoding.encode(codes))[0], codes[0])


def sums_of(codes: list[np.ndarray], encoding: scaling.Encoding = ENCODING) -> list[np.ndarray]:
    return [scaling.moment_sums(encoding, place, column) for place, column in enumerate(codes)]


def statistic(codes: list[np.ndarray]) -> np.ndarray:
    """The sums that get noise, without noise: what `noisy_moments` adds up, record by record."""
    columns = [np.ones(len(codes[0]))]
    for column, table, attribute in zip(codes, ENCODING.tables, FEATURES, strict=True):
        values = table[column]
        columns += list(values.T) + ([] if attribute.kind == "categorical" else [values[:, 0] ** 2])
    return np.rint(np.stack(columns, axis=1) / scaling.MOMENT_GRID) * scaling.MOMENT_GRID


def test_no_record_moves_the_sums_by_more_than_the_sensitivity():
    plan = scaling.moment_plan(ENCODING, epsilon=1, delta=1e-6)
    norms = np.linalg.norm(statistic(records(20_000)), axis=1)
    assert norms.max() <= plan.sensitivity
    assert norms.max() >= 0.999 * plan.sensitivity
    assert accountant.epsilon(plan.event, delta=1e-6) <= 1


def test_moments_approach_the_truth_as_the_noise_falls():
    codes = records(50_000)
    plan = scaling.moment_plan(ENCODING, epsilon=1e3, delta=1e-6)
    moments = scaling.noisy_moments(NOISE, ENCODING, len(codes[0]), sums_of(codes), plan, minimum=1)
    rows = ENCODING.encode(codes).astype(np.float64)
    assert moments.mean == pytest.approx(rows.mean(axis=0), abs=1e-3)
    ordered = [0, 4, 5]
    assert moments.deviation[ordered] == pytest.approx(rows.std(axis=0)[ordered], abs=1e-3)
    assert np.all(np.delete(moments.deviation, [*ordered, 9]) == 1)
    scaled = moments.scaled(ENCODING, divide=True)
    standard = scaled.encode(codes).astype(np.float64)
    assert standard.mean(axis=0) == pytest.approx(np.zeros(ENCODING.width), abs=0.1)
    assert standard.std(axis=0)[ordered] == pytest.approx(np.ones(3), abs=1e-2)
    assert moments.norm(divide=True) == pytest.approx(math.sqrt((standard**2).sum(axis=1).mean()), abs=0.02)
    centred = rows - rows.mean(axis=0)
    assert moments.norm(divide=False) == pytest.approx(math.sqrt((centred**2).sum(axis=1).mean()), abs=0.02)
    assert moments.scaled(ENCODING, divide=False).encode(codes) == pytest.approx(centred, abs=1e-2)
    for before, after in zip(codes, scaled.decode(standard), strict=True):
        assert np.array_equal(before, after)


def test_moments_carry_the_stated_noise():
    codes = records(1000)
    plan = scaling.moment_plan(ENCODING, epsilon=1, delta=1e-6)
    sums = statistic(codes).sum(axis=0)
    sums += NOISE.grid_gaussian("m", len(sums), sigma=plan.sigma, grid=scaling.MOMENT_GRID)
    moments = scaling.noisy_moments(NOISE, ENCODING, 1000, sums_of(codes), plan, minimum=10**9, name="m")
    assert moments.mean[0] * 10**9 == pytest.approx(sums[1], abs=1e-6)


def test_moments_of_an_empty_table_are_usable():
    plan = scaling.moment_plan(ENCODING, epsilon=0.1, delta=1e-6)
    nobody = [column[:0] for column in records(10)]
    moments = scaling.noisy_moments(NOISE, ENCODING, 0, sums_of(nobody), plan, minimum=1)
    assert moments.norm(divide=True) > 0
    scaled = moments.scaled(ENCODING, divide=True)
    assert np.all(np.isfinite(scaled.encode(records(10))))


INCOME = Schema.model_validate(
    {
        "attributes": [
            {"name": "income", "kind": "number", "bounds": [0.0, 50.0]},
            {"name": "sex", "kind": "categorical", "values": ["F", "M"]},
            {"name": "height", "kind": "number", "bounds": [1.0, 2.0], "bins": {"count": 4}},
        ]
    }
)


def test_continuous_numbers_are_scaled_by_their_bounds_and_back():
    encoding = scaling.declared_encoding(INCOME, class_attribute="sex")
    income, height = np.array([0.0, 12.5, 50.0]), np.array([0, 3, 1], np.uint8)
    rows = encoding.encode([income, height])
    assert rows[:, 0] == pytest.approx([-1, -0.5, 1])
    assert rows[:, 1] == pytest.approx([-0.75, 0.75, -0.25])  # centres of the bins
    assert encoding.largest_norm == pytest.approx(math.hypot(1, 0.75), rel=1e-5)
    back = encoding.decode(rows)
    assert back[0] == pytest.approx(income, abs=1e-5)
    assert np.array_equal(back[1], height)
    wild = encoding.decode(np.array([[7.0, 0.0], [-9.0, 0.0]]))
    assert wild[0].tolist() == [50.0, 0.0]


def test_moments_of_continuous_numbers():
    encoding = scaling.declared_encoding(INCOME, class_attribute="sex")
    rng = np.random.default_rng(0)
    codes = [rng.uniform(0, 50, 30_000), rng.integers(0, 4, 30_000).astype(np.uint8)]
    plan = scaling.moment_plan(encoding, epsilon=1e3, delta=1e-6)
    assert plan.sensitivity == pytest.approx(math.sqrt(1 + 2 + 0.75**2 + 0.75**4), rel=1e-4)
    moments = scaling.noisy_moments(NOISE, encoding, 30_000, sums_of(codes, encoding), plan, minimum=1)
    rows = encoding.encode(codes).astype(np.float64)
    assert moments.mean == pytest.approx(rows.mean(axis=0), abs=1e-3)
    assert moments.deviation == pytest.approx(rows.std(axis=0), abs=1e-3)
    scaled = moments.scaled(encoding, divide=True)
    assert scaled.decode(scaled.encode(codes))[0] == pytest.approx(codes[0], abs=1e-4)
