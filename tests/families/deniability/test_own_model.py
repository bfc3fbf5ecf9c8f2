"""Generative models of the user's own under the privacy test, against brute force in tiny universes."""

import json
import math
from collections.abc import Callable
from contextlib import closing
from fractions import Fraction
from functools import partial
from itertools import product
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from mixture import MixtureOfProducts, fit
from releases import KEY, SCHEMA, project

from dpdist.cluster.cluster import Cluster
from dpdist.cluster.executor import InProcess
from dpdist.errors import GuaranteeRefused, SpecError
from dpdist.evaluation.attacks.membership import mechanism_of_release
from dpdist.families.base.registry import make_plan
from dpdist.families.deniability.claims import claims
from dpdist.families.deniability.deniability import CandidateRecords, PrivacyTest, candidate_batch
from dpdist.families.deniability.graph import candidate_batches, first_passing, released_parts, sharded_seeds
from dpdist.families.deniability.own_model import OwnSynthesizer
from dpdist.families.deniability.prefixes import SeedIndex, seed_keys
from dpdist.families.deniability.spec import PlausibleDeniabilitySpec
from dpdist.ledger import Books
from dpdist.ledger.keys import KeyRef, load_noise
from dpdist.ledger.statement import budget_sentence
from dpdist.lifecycle.run import run_release
from dpdist.privacy import accountant
from dpdist.privacy.arrays import Codes, Floats
from dpdist.privacy.deniability import SeedRecords
from dpdist.privacy.events import ApproximateDP, Composed, RandomSplit
from dpdist.privacy.noise import Noise
from dpdist.publish.verify import read_release, verify
from dpdist.spec.schema import Schema
from dpdist.spec.validation import change

NOISE = Noise(bytes(range(32)))
SIZES = (2, 3)
TINY = Schema.model_validate(
    {
        "attributes": [
            {"name": n, "kind": "categorical", "values": list(range(k))} for n, k in zip("ab", SIZES, strict=True)
        ]
    }
)
UNIVERSE = list(product(*map(range, SIZES)))
TEST = PrivacyTest(k=95, gamma=2, epsilon0=0.5)
PValue = Callable[[np.ndarray, np.ndarray], float]


def tiny() -> MixtureOfProducts:
    return MixtureOfProducts([1, 2], [[[0.9, 0.1], [0.2, 0.8]], [[0.7, 0.2, 0.1], [0.1, 0.0, 0.9]]])


def exact(model: MixtureOfProducts, seed: tuple[int, ...], record: tuple[int, ...]) -> Fraction:
    """The probability of a record given a seed, from the tables alone."""
    tables = [[[Fraction(int(p), 1 << 32) for p in row] for row in table] for table in model.tables]

    def likelihood(c: int, y: tuple[int, ...]) -> Fraction:
        return math.prod((table[c][code] for table, code in zip(tables, y, strict=True)), start=Fraction(1))

    joint = [Fraction(float(w)) * likelihood(c, seed) for c, w in enumerate(model.weights)]
    return sum((a / sum(joint) * likelihood(c, record) for c, a in enumerate(joint)), Fraction(0))


def columns(records: list[tuple[int, ...]]) -> Codes:
    return [np.array(column, np.uint8) for column in zip(*records, strict=True)]


def test_a_mixture_draws_with_the_probabilities_that_it_states(chi_square: PValue) -> None:
    model, records = tiny(), columns(UNIVERSE)
    stated = model.log_prob([column[:, np.newaxis] for column in records], records)
    expected = np.array([[float(exact(model, s, y)) for s in UNIVERSE] for y in UNIVERSE])
    np.testing.assert_allclose(np.exp(stated), expected, rtol=1e-7)  # posteriors are rounded to 2**-32
    np.testing.assert_allclose(expected.sum(axis=0), 1, rtol=1e-12)
    times = 20_000
    seeds = [column.repeat(times) for column in records]
    drawn = OwnSynthesizer(model, TINY, 2.0).propose(NOISE, seeds, 0, times * len(UNIVERSE)).codes
    for place in range(len(UNIVERSE)):
        a, b = (column[place * times : (place + 1) * times].astype(int) for column in drawn)
        seen = np.bincount(a * SIZES[1] + b, minlength=len(UNIVERSE))
        assert chi_square(seen, expected[:, place] * times) > 1e-6
        assert chi_square(seen, expected[:, place - 1] * times) < 1e-6 or np.allclose(
            expected[:, place], expected[:, place - 1], atol=0.02
        )


class Powers:
    """A record repeats its seed with probability 1/4, and each of the five others has a power of one half."""

    draws = 1

    def __init__(self, schema: Schema) -> None:
        del schema
        self.table = np.array([4, 1, 4, 2, 1, 4]) / 16  # by the distance of places in the universe

    def _place(self, records: Codes) -> np.ndarray:
        return records[0].astype(np.int64) * SIZES[1] + records[1]

    def sample(self, seeds: Codes, uniforms: Floats) -> Codes:
        step = (self.table.cumsum() <= uniforms).sum(axis=1)
        place = (self._place(seeds) + step) % len(UNIVERSE)
        return [place // SIZES[1], place % SIZES[1]]

    def log_prob(self, records: Codes, seeds: Codes) -> Floats:
        return np.log(self.table[(self._place(records) - self._place(seeds)) % len(UNIVERSE)])


@pytest.mark.parametrize("gamma", [2.0, 4.0])
def test_plausible_seeds_are_those_of_the_papers_buckets(gamma: float) -> None:
    """Probabilities on the edges of buckets: 1/4 and 1/8 begin buckets of gamma 2, 1/4 and 1/16 those of gamma 4."""
    made = OwnSynthesizer(Powers(TINY), TINY, gamma)
    rng = np.random.default_rng(0)
    seeds = [rng.integers(0, size, 300).astype(np.uint8) for size in SIZES]
    index = SeedIndex(made.prefix_code, seed_keys(made.prefix_code, seeds))
    own = [column[:90] for column in seeds]
    candidates = made.propose(NOISE, own, 0, 90)
    powers = {4: 2, 2: 3, 1: 4}  # 4/16 = 2^-2
    per_bucket = {2.0: 1, 4.0: 2}[gamma]
    found = made.counts(index, candidates)[0]
    for i in range(90):
        y = int(candidates.codes[0][i]) * 3 + int(candidates.codes[1][i])

        def bucket(s: int, y: int = y) -> int:  # gamma^-(j+1) < p <= gamma^-j
            return powers[int(16 * made.model.table[(y - s) % 6])] // per_bucket  # type: ignore[attr-defined]

        places = seeds[0].astype(int) * 3 + seeds[1]
        same = sum(bucket(int(s)) == bucket(int(own[0][i]) * 3 + int(own[1][i])) for s in places)
        assert found[i] == same


def test_no_bucket_is_wider_than_gamma() -> None:
    class Given:
        draws = 0

        def log_prob(self, records: Codes, seeds: Codes) -> Floats:
            return -(records[0] + 0.0 * seeds[0])

    for gamma in (1.00001, 1.5, 2.0, 4.0, 1e6):
        made = OwnSynthesizer(Given(), TINY, gamma)  # type: ignore[arg-type]
        values = np.sort(np.random.default_rng(1).uniform(0, 40 * math.log(gamma), 200_000))
        buckets = made.buckets([values], [np.zeros(1)])
        for start in np.flatnonzero(np.diff(buckets, prepend=-1))[:1000]:
            inside = values[buckets == buckets[start]]
            assert inside[-1] - inside[0] + 2.0**-20 < math.log(gamma)  # log_prob may be 2**-21 off, twice
    with pytest.raises(SpecError, match=r"at least 1\.00001"):
        OwnSynthesizer(Given(), TINY, 1.000001)  # type: ignore[arg-type]


def test_records_that_a_seed_cannot_give_are_never_plausible() -> None:
    class Parity(Powers):
        def __init__(self, schema: Schema) -> None:
            self.table = np.array([1, 0, 1, 0, 2, 0]) / 4

        def log_prob(self, records: Codes, seeds: Codes) -> Floats:
            with np.errstate(divide="ignore"):
                return super().log_prob(records, seeds)

    made = OwnSynthesizer(Parity(TINY), TINY, 4.0)
    seeds = columns(UNIVERSE * 5)
    index = SeedIndex(made.prefix_code, seed_keys(made.prefix_code, seeds))
    candidates = made.propose(NOISE, seeds, 0, 30)
    assert set(made.counts(index, candidates)[0].tolist()) <= {5, 10}  # of 15 seeds of its parity
    odd = CandidateRecords(
        [candidates.codes[0], (candidates.codes[1] + 1) % 3], made.buckets(columns([(0, 1)] * 30), seeds)
    )
    impossible = odd.levels == odd.levels.min()
    assert impossible.any()
    assert not impossible.all()
    assert not made.counts(index, odd)[0][impossible].any()  # not even seeds that cannot give it either


@pytest.mark.parametrize(
    ("executor", "partitions", "shards", "batch"), [(InProcess(), 1, 1, 500), (Cluster(), 9, 7, 333)]
)
def test_the_release_is_that_of_numpy(executor: Any, partitions: int, shards: int, batch: int) -> None:
    rng = np.random.default_rng(2)
    seeds = [rng.integers(0, size, 200).astype(np.uint8) for size in SIZES]
    made, key = OwnSynthesizer(tiny(), TINY, TEST.gamma), KeyRef.fixed("5a" * 32)
    index = SeedIndex(made.prefix_code, seed_keys(made.prefix_code, seeds))
    expected = candidate_batch(load_noise(key), made, index, TEST, 0, 1500)
    assert 300 < len(expected) < 1400
    parts = [[column[i::partitions] for column in seeds] for i in range(partitions)]
    indexes = sharded_seeds(executor, parts, made.prefix_code, shards=shards)
    batches, counts = first_passing(
        executor,
        partial(candidate_batches, executor, made, TEST, indexes, key, batch_size=batch),
        records=300,
        at_least=1000,
        at_most=1500,
        batch_size=batch,
    )
    (codes,) = executor.compute(released_parts(executor, batches, counts, records=300, rows_per_part=300))
    for column, whole in zip(codes, expected.codes, strict=True):
        np.testing.assert_array_equal(column, whole[:300])


def test_one_release_is_within_its_bound() -> None:
    """All outcomes of one released record, with and without one more seed, against the dominating pair's curve."""
    model, k, gamma, epsilon0 = tiny(), 4, 2.0, 0.7
    stated = {pair: float(exact(model, *pair)) for pair in product(UNIVERSE, repeat=2)}
    made = OwnSynthesizer(model, TINY, gamma)
    few = [UNIVERSE[0]] * 60 + [UNIVERSE[5]] * 3

    def pt(count: int) -> float:  # Pr[count >= k + L], L discrete Laplace
        q, t = math.exp(-epsilon0), count - k
        return 1 - q ** (t + 1) / (1 + q) if t >= 0 else q**-t / (1 + q)

    def law(seeds: list[tuple[int, ...]]) -> tuple[np.ndarray, float]:
        mass = np.zeros(len(UNIVERSE))
        codes = columns(seeds)
        for place, y in enumerate(UNIVERSE):
            buckets = made.buckets(columns([y]), codes)
            for s, bucket in zip(seeds, buckets, strict=True):
                mass[place] += stated[s, y] * pt(int((buckets == bucket).sum()))
        return mass / mass.sum(), float(mass.sum())

    absent, passing = law(few)
    worst = 0.0
    for extra in UNIVERSE:
        present, _ = law([*few, extra])
        for delta in (0.02, 0.05):
            event = SeedRecords(k=k, gamma=gamma, epsilon0=epsilon0, passing_mass=passing, records=1)
            bound = math.exp(accountant.epsilon(event, delta=delta))
            for p, q in ((present, absent), (absent, present)):
                found = float(np.maximum(p - bound * q, 0).sum())
                assert found <= delta * (1 + 1e-6)
                worst = max(worst, found / delta)
    assert worst > 0.3


# --- releases ---------------------------------------------------------------------------------------------------------

HOOK = f"{__name__}:Public"


class Public(MixtureOfProducts):
    """A mixture that was fitted to another table of the schema."""

    def __init__(self, schema: Schema) -> None:
        rng = np.random.default_rng(3)
        sizes = schema.cardinalities
        low = [np.minimum(rng.geometric(min(3 / size, 0.7), 400) - 1, size - 1) for size in sizes]
        codes = [np.concatenate([column, size - 1 - column[:200]]) for column, size in zip(low, sizes, strict=True)]
        super().__init__(*fit(codes, sizes, components=2, rounds=5))


SETTINGS: dict[str, Any] = {
    "privacy": {
        "delta": 1e-7,
        "deniability": {"k": 300, "gamma": 4, "epsilon0": 0.1},
        "seed_check_epsilon": 1,
        "checked_candidates": 8_000,
    },
    "split": {"structure": 0, "parameters": 0.6, "seeds": 0.4},
    "model": {"hook": HOOK, "learned_from": "public"},
    "synthesis": {"records": 600, "minimum_pass_rate": 0.5, "max_check_plausible": 10_000},
}


@pytest.fixture
def spec(tmp_path: Any) -> PlausibleDeniabilitySpec:
    made = project(tmp_path, **SETTINGS)
    with closing(Books.open(made.ledger)) as ledger:
        ledger.create_dataset("trusting", epsilon="50", delta="1e-5", guarantees=("dp", "dp-declared"))
    return change(made, {"dataset": "trusting"})


def test_a_custodian_who_does_not_allow_declared_models_gets_none(spec: PlausibleDeniabilitySpec) -> None:
    with pytest.raises(GuaranteeRefused, match="dp-declared"):
        run_release(change(spec, {"dataset": "people"}), fixed_key=KEY)


def test_releases_are_the_same_on_any_executor(spec: PlausibleDeniabilitySpec) -> None:
    found = []
    for mode, partitions in (("in-process", 1), ("threads", 4)):
        path = f"{spec.output.path}-{mode}"
        settings = {"name": mode, "cluster.mode": mode, "cluster.partitions": partitions, "output.path": path}
        outcome = run_release(change(spec, settings), fixed_key=KEY)
        assert "for the whole release, if its model is as declared" in str(outcome.guarantee)
        assert verify(path).records == 600
        found.append(read_release(path).to_pydict())
    assert found[0] == found[1]
    with closing(Books.open(spec.ledger)) as ledger:
        assert "2 releases with a model that is believed as declared; epsilon" in budget_sentence(ledger, spec.dataset)


def test_what_is_charged(spec: PlausibleDeniabilitySpec) -> None:
    public = make_plan(spec)
    assert isinstance(public.event, RandomSplit)
    assert spec.plugins == {HOOK}
    assert "declared to be learned from public data" in public.explain()
    learned = make_plan(change(spec, {"model.learned_from": {"epsilon": 1.5, "delta": 1e-8}}))
    assert isinstance(learned.event, Composed)
    assert ApproximateDP(1.5, 1e-8, label="the model, as declared") in learned.event.events
    assert public.epsilon + 1.4 < learned.epsilon < public.epsilon + 1.6
    seeds = [stage for _, stage in public.event.stages if stage is not None]
    assert len(seeds) == 1
    assert any(isinstance(one, SeedRecords) and one.gamma == 4 for one in seeds[0].events)  # type: ignore[attr-defined]
    assert len(claims(public)) == 1  # type: ignore[arg-type]


def test_the_number_of_seeds_follows_from_what_is_checked(tmp_path: Any) -> None:
    tree = {name: value for name, value in SETTINGS.items() if name != "split"}
    base = project(tmp_path, **SETTINGS).model_dump(mode="json")
    del base["split"]
    made = type(project(tmp_path, **SETTINGS)).model_validate(base | {"synthesis": tree["synthesis"]})
    assert made.split.seeds == Fraction(10_000, 25_000)
    assert change(made, {"name": "again"}).split == made.split


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model.learned_from": None}, "say where the model's parameters come from"),
        ({"model.score": "cfs"}, "only learned_from is set"),
        ({"privacy.model": {"epsilon": 1, "delta": 1e-7}}, "no `model`"),
        ({"synthesis.omega": 2}, "draws all attributes"),
        ({"synthesis.max_check_plausible": 100}, "more records than"),
        ({"split.records": "all"}, "set `seeds` above 0"),
        ({"privacy.accept_per_record": True}, "the guarantee of the whole release only"),
        ({"privacy.deniability.test": "deterministic"}, "the guarantee of the whole release only"),
        ({"model": {"learned_from": "public"}, "privacy.model": {"epsilon": 1, "delta": 1e-7}}, "goes with model.hook"),
    ],
)
def test_settings_that_are_refused(spec: PlausibleDeniabilitySpec, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        make_plan(change(spec, settings))


def test_a_reader_runs_no_model_that_a_manifest_names(spec: PlausibleDeniabilitySpec) -> None:
    manifest: Any = SimpleNamespace(spec=json.loads(json.dumps(spec.public())), table=spec.table)
    assert mechanism_of_release(manifest, training=25_000, written=lambda codes: codes) is None


def test_a_class_of_this_process_is_a_hook(spec: PlausibleDeniabilitySpec) -> None:
    tree = spec.model_dump(mode="json")
    tree["model"]["hook"] = Public
    assert type(spec).model_validate(tree).model.hook == HOOK


@pytest.mark.parametrize(
    ("sample", "message"),
    [
        (lambda seeds, u: seeds[:1], "a code of each attribute"),
        (lambda seeds, u: [column[:-1] for column in seeds], "a code of each attribute"),
        (lambda seeds, u: [column.astype(float) for column in seeds], "a code of each attribute"),
        (lambda seeds, u: [column + 7 for column in seeds], "a code of each attribute"),
    ],
)
def test_models_that_return_something_else(sample: Any, message: str) -> None:
    model = Powers(TINY)
    model.sample = sample  # type: ignore[method-assign]
    with pytest.raises(SpecError, match=message):
        OwnSynthesizer(model, TINY, 2.0).propose(NOISE, columns(UNIVERSE), 0, 6)
    model = Powers(TINY)
    model.log_prob = lambda records, seeds: np.zeros(3)  # type: ignore[method-assign]
    with pytest.raises(SpecError, match="log_prob must return"):
        OwnSynthesizer(model, TINY, 2.0).propose(NOISE, columns(UNIVERSE), 0, 6)


def test_a_mixture_is_fitted() -> None:
    rng = np.random.default_rng(5)
    group = rng.integers(0, 2, 4_000)
    codes = [np.where(rng.random(4_000) < 0.9, group, 1 - group).astype(np.uint8) for _ in range(4)]
    weights, tables = fit(codes, (2, 2, 2, 2), components=2)
    assert weights.min() > 0.4
    assert all(0.85 < table.max(axis=1).min() < 0.95 for table in tables)
    assert len(SCHEMA["attributes"]) == 5
