"""Noisy sums over clients: the charge by enumeration, masks that hide, and a client that answers only its plan."""

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import reduce
from itertools import combinations, product
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from federations import NAMES, states, summing_federation
from scipy.stats import chi2, norm

from dpdist.accuracy.tables import Tables
from dpdist.data.count import PairCounts
from dpdist.families.base.registry import make_plan
from dpdist.families.synthesis.spec import WholeSynthesisSpec
from dpdist.families.synthesis.stages import SynthesisSession
from dpdist.federated import client
from dpdist.federated import session as own
from dpdist.federated.messages import LEAST_SIGMA, Masks, Message, public_key
from dpdist.federated.sums import Question, added, answer, part_of, tables_in, unmask
from dpdist.model.sums import AskedCounts, Sum
from dpdist.privacy.noise import Noise

CARDS = (3, 2)
ASKED = AskedCounts(CARDS)
SMALL = [table for table in product(range(4), repeat=2) if sum(table) <= 3]


def question(number: int = 0, sigma: float = 40.0, sums: tuple[Sum, ...] | None = None) -> Question:
    sums = (ASKED.single(0), ASKED.pair(0, 1)) if sums is None else sums
    return Question(number, f"step {number}", sums, (sigma,) * len(sums))


def keyed(count: int, context: str = "attempt/all") -> list[Masks]:
    private = [bytes([i + 1]) * 32 for i in range(count)]
    public = [public_key(key) for key in private]
    return [Masks.agree(key, [p for p in public if p != public_key(key)], context=context) for key in private]


def sent(held: Tables, asked: Question, noise: Noise, masks: Masks) -> np.ndarray:
    """What one of four honest clients sends."""
    return part_of([one.of(held) for one in asked.sums], asked, noise, masks, honest=4)


def tables(seed: int, rows: int = 50) -> Tables:
    rng = np.random.default_rng(seed)
    return Tables.counted([rng.integers(0, size, rows).astype(np.uint8) for size in CARDS], CARDS)


def rounded(sigma: float) -> np.ndarray:
    """The law of a rounded Gaussian on -60 sigma to 60 sigma, where it is not zero."""
    edge = math.ceil(12 * sigma)
    return np.diff(norm.cdf((np.arange(-edge, edge + 2) - 0.5) / sigma))


def hockey_stick(p: np.ndarray, q: np.ndarray, epsilon: float) -> float:
    return float(np.maximum(p - math.exp(epsilon) * q, 0).sum())


def views(clients: int, colluding: int) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
    """What a coordinator with colluders sees: the honest clients' exact sums, for all neighbouring pairs of tables."""
    for held in product(SMALL, repeat=clients - colluding):
        for at, cell in product(range(len(held)), range(2)):
            if held[at][cell] > 0:
                total = tuple(np.sum(held, axis=0).tolist())
                less = tuple(n - (k == cell) for k, n in enumerate(total))
                yield total, less  # type: ignore[misc]


@pytest.mark.parametrize(("clients", "colluding"), [(2, 0), (3, 0), (3, 1)])
def test_the_charge_bounds_every_view_of_a_tiny_universe_and_is_attained(clients: int, colluding: int) -> None:
    honest = clients - colluding
    sigma = LEAST_SIGMA * math.sqrt(honest)  # the least noise that a client draws
    law = reduce(np.convolve, [rounded(sigma / math.sqrt(honest))] * honest)
    mu, worst = 1 / sigma, {epsilon: 0.0 for epsilon in (0.0, 0.1, 0.3)}
    seen = {tuple(a - b for a, b in zip(*pair, strict=True)) for pair in views(clients, colluding)}
    assert seen == {(1, 0), (0, 1)}  # colluders know their own part, so only the honest sum moves, by one record
    for shift in seen:
        # cells have noise of their own: the one that does not move has the same law in both worlds
        p, q = np.append(np.zeros(sum(shift)), law), np.append(law, np.zeros(sum(shift)))
        for epsilon in worst:
            worst[epsilon] = max(worst[epsilon], hockey_stick(p, q, epsilon), hockey_stick(q, p, epsilon))
    for epsilon, found in worst.items():
        charged = norm.cdf(-epsilon / mu + mu / 2) - math.exp(epsilon) * norm.cdf(-epsilon / mu - mu / 2)
        assert 0.95 * charged <= found <= charged * (1 + 1e-9) + 1e-13


def test_masks_cancel_in_the_whole_sum_and_in_no_other() -> None:
    asked, masks = question(), keyed(4)
    words = [one.words("sums", 4096) for one in masks]
    assert not (words[0] + words[1] + words[2] + words[3]).any()
    for size in (1, 2, 3):
        for some in combinations(words, size):
            counts = np.bincount(reduce(np.add, some).view(np.uint8), minlength=256)
            assert ((counts - 128) ** 2 / 128).sum() < chi2.isf(1e-9, 255)
    held, noises = [tables(k) for k in range(4)], [Noise(bytes([k]) * 32) for k in range(4)]
    masked = added([sent(*one) for one in zip(held, [asked] * 4, noises, masks, strict=True)])
    plain = [sent(t, asked, n, Masks()) for t, n in zip(held, noises, strict=True)]
    assert np.array_equal(masked, np.sum(plain, axis=0))
    single, pair = tables_in(masked, asked.sums)
    whole = reduce(Tables.__add__, held)
    assert np.abs(single - whole.pairs.single(0)).max() < 8 * 40
    assert np.abs(pair - whole.pairs.pair(0, 1)).max() < 8 * 40
    other = keyed(4, context="attempt/of-others")
    assert not set(words[0]) & set(other[0].words("sums", 4096))


def test_each_client_draws_its_part_of_the_noise() -> None:
    cells = 30_000
    wide = Sum((0,), (np.arange(cells),))
    empty = Tables(PairCounts((cells,), np.zeros(cells, np.int64)), np.zeros(0, np.int64))
    away = sent(empty, Question(0, "one", (wide,), (20.0,)), Noise(bytes(32)), Masks())
    edges = np.arange(-25, 26, 5)
    expected = np.diff(norm.cdf((edges - 0.5) / 10)) * cells
    found = np.histogram(away, edges)[0]
    assert ((found - expected) ** 2 / expected).sum() < chi2.isf(1e-9, len(expected))
    narrower = np.diff(norm.cdf((edges - 0.5) / 7)) * cells
    assert ((found - narrower) ** 2 / narrower).sum() > chi2.isf(1e-20, len(expected))


def test_sums_are_those_of_recoded_tables() -> None:
    exact = tables(3).pairs
    merged = Sum((1, 0), (np.array([0, 1]), np.array([1, 0, 1])))
    table = exact.pair(1, 0)
    assert np.array_equal(merged.of(tables(3)), np.stack([table[:, 1], table[:, 0] + table[:, 2]], axis=1))
    codes = [np.array([0, 1, 1]), np.array([1, 1, 0]), np.array([2, 0, 2])]
    three = Tables.counted([c.astype(np.uint8) for c in codes], (2, 2, 3))
    assert AskedCounts((2, 2, 3)).of(0, 1, 2).of(three).tolist()[1] == [[0, 0, 1], [1, 0, 0]]


@pytest.fixture
def spec(tmp_path: Path) -> WholeSynthesisSpec:
    return summing_federation(tmp_path)


@pytest.fixture
def sessions(spec: WholeSynthesisSpec) -> dict[str, SynthesisSession]:
    attempt = str(uuid4())
    return {name: SynthesisSession(spec=spec, name=name, attempt=attempt) for name in NAMES}


def well(reply: client.ClientAnswer) -> Any:
    assert reply.error == ""
    return reply.value


def own_question(session: SynthesisSession, number: int = 0, share: float = 0.4, step: str = "one") -> Question:
    counts = AskedCounts(session.spec.table.cardinalities)
    return Question(number, step, (counts.single(1),), (1 / (session.plan.mu * math.sqrt(share)),))


def test_a_client_answers_what_it_is_charged_for_and_no_more(sessions: dict[str, SynthesisSession]) -> None:
    members = {name: well(client.join(one)) for name, one in sessions.items()}
    for one in sessions.values():
        well(client.read(one))
    north, asked = sessions["north"], own_question(sessions["north"])

    def refused(question: Question, session: SynthesisSession = north, of: Any = members) -> None:
        assert answer(session, question, of).error.startswith("RoundFailed")

    refused(asked, of={"north": members["north"]})  # no other's noise, and no mask, would hide it
    refused(asked, of={name: members[name] for name in ("north", "south")})
    messages = [well(answer(one, asked, members)) for one in sessions.values()]
    assert all(isinstance(message, Message) for message in messages)
    total = added([message.steps for message in messages])
    assert abs(total.sum() - 9_000) < 200
    again = well(answer(north, asked, members))
    assert np.array_equal(again.steps, messages[0].steps)
    own.forget(north)  # as in another process of the client
    assert np.array_equal(well(answer(north, asked, members)).steps, messages[0].steps)
    refused(replace(asked, step="another"))  # the same number
    refused(own_question(north, 2))  # out of turn
    refused(own_question(north, -1))  # before all others: their costs would not count
    refused(replace(own_question(north), number=0.0))  # type: ignore[arg-type]
    refused(replace(own_question(north, 1), sigmas=(1.0,)))  # less noise than a client draws
    refused(replace(own_question(north, 1), sigmas=(math.nan,)))
    refused(own_question(north, 1, share=0.7))  # more than is left
    refused(own_question(north, 1), of={name: members[name] for name in ("north", "south")})
    strange = Sum((7,), (np.arange(2),))
    refused(replace(own_question(north, 1), sums=(strange,)))
    wide = Sum((1,), (np.array([0, 5]),))
    refused(replace(own_question(north, 1), sums=(wide,)))
    well(answer(north, own_question(north, 1), members))
    refused(own_question(north, 2))
    assert set(map(tuple, states(north.spec).values())) == {(), ("drawing",)}  # type: ignore[arg-type]


def test_a_coordinator_that_lies_about_who_is_lost_sees_a_noise_in_one_sum(tmp_path: Path) -> None:
    names, attempt = ("east", *NAMES), str(uuid4())
    spec = summing_federation(tmp_path, names, federated__at_least=3)
    sessions = {name: SynthesisSession(spec=spec, name=name, attempt=attempt) for name in names}
    members = {name: well(client.join(one)) for name, one in sessions.items()}
    asked = own_question(sessions["north"])
    given = {name: well(answer(one, asked, members)).steps for name, one in sessions.items()}
    keys = {name: well(unmask(sessions[name], asked, members)).steps for name in ("north", "south", "west")}
    size, address = asked.size, f"sums/0/{asked.digest}"
    opened = {
        name: given[name] - Noise(key.tobytes()).words(address, size).view(np.int64) for name, key in keys.items()
    }
    assert np.abs(added(list(opened.values()))).max() > 1 << 50  # the key of east is missing
    rest = {name: members[name] for name in keys}
    for name in keys:  # their noise is for the sum of all four now
        assert answer(sessions[name], asked, rest).error.startswith("RoundFailed")
        assert well(unmask(sessions[name], asked, members)).steps.tobytes() == keys[name].tobytes()
    others = {name: members[name] for name in ("east", "north", "south")}
    well(answer(sessions["east"], asked, others))  # east may still be among three: nobody else is
    assert unmask(sessions["east"], asked, members).error.startswith("RoundFailed")
    assert unmask(sessions["east"], asked, others).error.startswith("RoundFailed")
    stranger = {**members, "north": replace(members["north"], public=b"1" * 32)}
    assert answer(sessions["east"], own_question(sessions["east"], 1), stranger).error.startswith("RoundFailed")


def test_units_are_bounded_at_each_client_and_charged_for_all(tmp_path: Path) -> None:
    spec = summing_federation(tmp_path, unit={"by": "patient", "at_most": 2}, federated__unit_at=2)
    alone = summing_federation(tmp_path).model_copy(update={"unit": spec.unit})
    for name in NAMES:  # five records of each patient
        file = tmp_path / name / "people.parquet"
        found = pq.read_table(file)
        pq.write_table(found.append_column("patient", pa.array(np.arange(len(found)) // 5)), file)
    attempt = str(uuid4())
    held = {name: SynthesisSession(spec=spec, name=name, attempt=attempt) for name in NAMES}
    assert held["north"].plan.mu * 4 == pytest.approx(make_plan(summing_federation(tmp_path)).mu, rel=1e-6)  # type: ignore[attr-defined]
    assert make_plan(alone).mu * 6 == pytest.approx(held["north"].plan.mu * 4, rel=1e-6)  # type: ignore[attr-defined]
    said = next(fact.sentence for fact in held["north"].plan.details() if fact.title == "Clients")
    assert "A unit is at 2 of them at most: that many times the noise" in said
    members = {name: well(client.join(one)) for name, one in held.items()}
    messages = [well(answer(one, own_question(one), members)) for one in held.values()]
    total = int(added([message.steps for message in messages]).sum())
    assert abs(total - 9_000 * 2 // 5) < 400
