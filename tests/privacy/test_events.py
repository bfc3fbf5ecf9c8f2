"""Events round-trip exactly and refuse what is no mechanism."""

import json
import math
import subprocess
import sys
from contextlib import suppress
from fractions import Fraction
from typing import ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpdist.errors import AccountingError
from dpdist.privacy import accountant, events
from dpdist.privacy.deniability import SeedRecords
from dpdist.privacy.event import Event, covers, from_json
from dpdist.privacy.events import (
    ApproximateDP,
    Composed,
    DiscreteLaplace,
    Gaussian,
    Parallel,
    RandomSplit,
    Replacement,
    SubsampledGaussian,
    SubsampledUnits,
)

positive = st.floats(1e-300, 1e300, allow_nan=False)
labels = st.text(max_size=5)
leaves = st.one_of(
    st.builds(DiscreteLaplace, positive, st.integers(1, 2**70), st.integers(1, 10**9), label=labels),
    st.builds(Gaussian, positive, st.integers(1, 10**9), label=labels),
    st.builds(SubsampledGaussian, st.floats(1e-300, 1.0), positive, st.integers(1, 10**9)),
    st.builds(SubsampledUnits, st.floats(1e-300, 1.0), positive, st.integers(1, 10**6), st.integers(1, 10**9)),
    st.builds(ApproximateDP, st.floats(0, 1e300), st.floats(0, 1.0)),
    st.builds(
        SeedRecords,
        st.integers(1, 10**6),
        st.floats(1, 1e3),
        st.floats(1e-300, 100),
        positive,
        st.integers(1, 10**8),
        label=labels,
    ),
)
trees = st.recursive(
    leaves,
    lambda parts: st.one_of(
        st.builds(Composed, st.lists(parts, max_size=3).map(tuple), label=labels),
        st.builds(Parallel, st.lists(parts, max_size=3).map(tuple)),
        st.builds(Replacement, parts),
        st.builds(lambda a: RandomSplit(((0.25, a), (0.75, None))), parts),
    ),
    max_leaves=6,
)


@given(trees)
def test_round_trip_is_exact(event: Event) -> None:
    text = json.dumps(event.to_json(), allow_nan=False)
    again = events.from_json(text)
    assert again == event
    assert json.dumps(again.to_json()) == text
    assert hash(again) == hash(event)


def test_written_form_is_stable() -> None:
    event = Composed((DiscreteLaplace(scale=0.1, count=11, label="tables"), ApproximateDP(0.0, 2.0**-40)))
    assert event.to_json() == {
        "type": "composed/1",
        "events": [
            {"type": "discrete-laplace/1", "label": "tables", "scale": 0.1, "sensitivity": 1, "count": 11},
            {"type": "approximate-dp/1", "epsilon": 0.0, "delta": 2.0**-40},
        ],
    }


def test_labels_do_not_count() -> None:
    assert Gaussian(2.0, label="a") == Gaussian(2.0, label="b")
    assert hash(Gaussian(2.0, label="a")) == hash(Gaussian(2.0))


@pytest.mark.parametrize(
    "make",
    [
        lambda: DiscreteLaplace(0),
        lambda: DiscreteLaplace(float("inf")),
        lambda: DiscreteLaplace(float("nan")),
        lambda: DiscreteLaplace(1, 0),
        lambda: DiscreteLaplace(1, 1, 0),
        lambda: DiscreteLaplace(1, 1, 1.5),
        lambda: DiscreteLaplace(1, 1, True),
        lambda: DiscreteLaplace("1"),
        lambda: Gaussian(-1),
        lambda: SubsampledGaussian(1.5, 1),
        lambda: SubsampledGaussian(0, 1),
        lambda: SubsampledUnits(0.5, 1, 0),
        lambda: ApproximateDP(-0.1),
        lambda: ApproximateDP(1, 1.1),
        lambda: SeedRecords(0, 2, 0.1, 10, 1),
        lambda: SeedRecords(5, 0.5, 0.1, 10, 1),
        lambda: SeedRecords(5, 2, 0, 10, 1),
        lambda: SeedRecords(5, 2, 101, 10, 1),
        lambda: SeedRecords(5, 2, 0.1, 0, 1),
        lambda: SeedRecords(5, 2, 0.1, 10, 0),
        lambda: Composed([Gaussian(1)]),
        lambda: Composed(("gaussian",)),
        lambda: Parallel((None,)),
        lambda: RandomSplit(()),
        lambda: RandomSplit(((0.5, Gaussian(1)),)),
        lambda: RandomSplit(((0.5, Gaussian(1)), (0.6, None))),
        lambda: RandomSplit(((0.0, Gaussian(1)), (1.0, None))),
        lambda: RandomSplit(((0.5, "gaussian"), (0.5, None))),
        lambda: RandomSplit(((0.5, Gaussian(1), 2), (0.5, None))),
    ],
)
def test_events_out_of_range_are_refused(make) -> None:
    with pytest.raises(AccountingError):
        make()


@pytest.mark.parametrize(
    "body",
    [
        {"type": "gaussian/2", "noise_multiplier": 1.0},
        {"noise_multiplier": 1.0},
        {"type": "gaussian/1"},
        {"type": "gaussian/1", "noise_multiplier": 1.0, "sigma": 2.0},
        {"type": "gaussian/1", "noise_multiplier": -1.0},
    ],
)
def test_unknown_or_damaged_json_is_refused(body: dict) -> None:
    with pytest.raises(AccountingError):
        events.from_json(body)


def test_the_type_of_an_event_cannot_be_taken() -> None:
    with pytest.raises(AccountingError, match=r"the privacy event type 'gaussian/1' is taken"):
        type("Weaker", (Event,), {"type": "gaussian/1"})
    assert isinstance(events.from_json({"type": "gaussian/1", "noise_multiplier": 1.0}), Gaussian)


def test_a_gaussian_that_may_fail_is_charged_for_both() -> None:
    class Fails(Gaussian):
        type: ClassVar[str] = ""

        def gaussian(self) -> tuple[Fraction, Fraction]:
            return Fraction(1, 4), Fraction(1, 10**6)

    both = Composed((Gaussian(2.0), ApproximateDP(0.0, 1e-6)))
    for delta in (1e-5, 1e-7):
        found, expected = (_epsilon(Composed((event, DiscreteLaplace(3.0))), delta) for event in (Fails(2.0), both))
        assert found == pytest.approx(expected, rel=1e-6)


def _epsilon(event: Event, delta: float) -> float:
    try:
        return accountant.epsilon(event, delta=delta)
    except AccountingError:
        return math.inf


def test_importing_events_is_light() -> None:
    code = (
        "import sys, dpdist.privacy.events, dpdist.privacy.guarantee\n"
        "assert not {'numpy', 'scipy', 'dp_accounting'} & set(sys.modules)\n"
        "import dpdist.privacy.accountant, dpdist.privacy.checks\n"
        "assert not {'scipy.stats', 'dp_accounting'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_charges_that_take_the_number_of_records_for_public() -> None:
    noise = DiscreteLaplace(2.0, count=2)
    assert not events.takes_size_for_public(Composed((noise, ApproximateDP(0.1))))
    assert events.takes_size_for_public(Composed((noise, Composed((Replacement(noise),)))))
    assert events.takes_size_for_public(events.LaplaceLeakage(2.0, 0.1))
    assert events.takes_size_for_public(Parallel((noise, Replacement(noise))))
    assert events.takes_size_for_public(RandomSplit(((0.5, None), (0.5, Composed((Replacement(noise),))))))
    with pytest.raises(AccountingError, match="replacement/1"):
        Replacement("noise")  # type: ignore[arg-type]


def test_replacement_is_composed_as_it_stands() -> None:
    noise = Composed((DiscreteLaplace(2.0, count=2), Gaussian(5.0), ApproximateDP(0.0, 1e-12)))
    for more in (Composed(()), Gaussian(3.0), DiscreteLaplace(1.0)):
        plain, named = Composed((noise, more)), Composed((Replacement(noise), more))
        assert accountant.epsilon(named, delta=1e-9) == accountant.epsilon(plain, delta=1e-9)
        assert accountant.delta(named, epsilon=1.5) == accountant.delta(plain, epsilon=1.5)


EVENTS: list[Event] = [
    events.Gaussian(2.0, count=3, label="tables"),
    events.DiscreteLaplace(4.0, count=11),
    events.ApproximateDP(0.1, 1e-10),
    events.SubsampledGaussian(0.1, 1.5, count=2),
    events.SubsampledUnits(0.1, 1.5, 3),
    SeedRecords(k=20, gamma=2.0, epsilon0=0.3, passing_mass=1e6, records=7),
    events.LaplaceLeakage(4.0, 0.2),
]
MORE = {"scale": 1 - 1e-9, "noise_multiplier": 1 - 1e-9, "passing_mass": 1 - 1e-9}


@pytest.mark.parametrize("event", EVENTS)
def test_an_event_covers_itself_and_none_that_costs_more(event: Event) -> None:
    """By each of its numbers: less noise, a larger loss or another assumption is not covered; nor is another scale."""
    body = event.to_json()
    assert covers(body, json.loads(json.dumps(body)))
    for name, value in body.items():
        if isinstance(value, float) and value:
            assert not covers(body, body | {name: value * MORE.get(name, 1 + 1e-9)})
            assert not covers(body, body | {name: value * 1.001})
            assert not covers(body, body | {name: value * 0.999})
            near = value * (2 - MORE.get(name, 1 + 1e-9))
            assert covers(body, body | {name: near}) == (
                name in MORE or name in {"epsilon", "delta", "failure", "sampling_rate"}
            )
        elif isinstance(value, int):
            assert not covers(body, body | {name: value + 1})
    assert not covers(body, None)
    assert not covers(body, body | {"more": 1.0})


def test_parts_of_an_event_are_compared_one_by_one() -> None:
    chain, other = (events.NestedLeakage(4.0, alphas).to_json() for alphas in ((0.1, 0.2), (0.01, 0.2)))
    assert covers(chain, chain)
    assert not covers(chain, other)
    both = events.Composed((events.Gaussian(2.0), events.ApproximateDP(0.0, 1e-9))).to_json()
    assert covers(both, both)
    assert not covers(both, events.Composed((events.Gaussian(2.0),)).to_json())


anything = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**400), 10**400) | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(leaves, st.data())
def test_whatever_is_no_event_is_an_accounting_error(event: Event, data: st.DataObject) -> None:
    """A row of a ledger or a manifest may hold anything."""
    tree = event.to_json()
    spoilt = tree | {data.draw(st.sampled_from(sorted(tree))): data.draw(anything)}
    for given_ in (spoilt, data.draw(anything), data.draw(st.text(max_size=9)), "[" * 100_000):
        with suppress(AccountingError):
            assert isinstance(from_json(given_), Event)  # type: ignore[arg-type]
