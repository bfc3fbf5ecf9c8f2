"""Guarantees print what they are, and only together with what they are about."""

from __future__ import annotations

import json

import pytest

from dpdist.errors import AccountingError
from dpdist.privacy import guarantee
from dpdist.privacy.guarantee import LID, PML, DifferentialPrivacy, Guarantee, PlausibleDeniability

EXAMPLES: list[Guarantee] = [
    DifferentialPrivacy(epsilon=0.79, delta=1e-9, adjacency="add/remove", covers="the whole release"),
    DifferentialPrivacy(epsilon=1.0, delta=0.0, adjacency="replacement", covers="the model"),
    PlausibleDeniability(k=50, gamma=4, epsilon0=1.0, epsilon=1.168, delta=1e-12),
    PlausibleDeniability(k=50, gamma=4),
    PML(epsilon=1.0, alpha=0.01, dp_epsilon=2.0),
    PML(epsilon=7.0, alpha=0.01),
    LID(bound=0.2),
    LID(bound=0.2, eta=0.01, columns=("age", "pay"), original=("sex",)),
    LID(bound=0.2, eta=0.01, columns=()),
]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.kind)
def test_round_trip(example: Guarantee) -> None:
    body = json.loads(json.dumps(example.to_json(), allow_nan=False))
    assert body["sentence"] == example.sentence()
    assert guarantee.from_json(body) == example


def test_differential_privacy_names_all_its_parts() -> None:
    sentence = EXAMPLES[0].sentence()
    for part in ("0.79", "1e-9", "add/remove", "the whole release", "computational", "present or absent"):
        assert part in sentence
    assert "replaced by another" in EXAMPLES[1].sentence()


def test_plausible_deniability_says_per_record_first() -> None:
    noisy, deterministic = EXAMPLES[2].sentence(), EXAMPLES[3].sentence()
    assert noisy.startswith("Per record")
    assert "not the whole release" in noisy
    assert "1e-12" in noisy
    assert "add/remove" in noisy
    assert "not differential privacy" in deterministic


def test_other_kinds_say_that_they_are_not_differential_privacy() -> None:
    assert "It is not differential privacy" in EXAMPLES[4].sentence()
    assert "assumption" in EXAMPLES[4].sentence()
    assert "no noise" in EXAMPLES[5].sentence()
    assert all(example.sentence().startswith("Not differentially private") for example in EXAMPLES[6:])


def test_local_information_disclosure_is_said_of_the_columns_that_are_looked_at() -> None:
    looked_at, nowhere = EXAMPLES[7].sentence(), EXAMPLES[8].sentence()
    assert "as measured in age, pay: for no more than that share of the released rows is any of these" in looked_at
    assert "Released as they are: sex." in looked_at
    assert "nothing about other columns" in looked_at
    assert "not bounded" in nowhere
    assert "0.2" not in nowhere
    assert "in 9 columns:" in LID(bound=0.2, columns=tuple("abcdefghi")).sentence()


@pytest.mark.parametrize(
    "make",
    [
        lambda: DifferentialPrivacy(epsilon=-1, delta=0, adjacency="add/remove", covers="the model"),
        lambda: DifferentialPrivacy(epsilon=float("inf"), delta=0, adjacency="add/remove", covers="the model"),
        lambda: DifferentialPrivacy(epsilon=float("nan"), delta=0, adjacency="add/remove", covers="the model"),
        lambda: DifferentialPrivacy(epsilon=1, delta=1.5, adjacency="add/remove", covers="the model"),
        lambda: DifferentialPrivacy(epsilon=1, delta=0, adjacency="swap", covers="the model"),
        lambda: DifferentialPrivacy(epsilon=1, delta=0, adjacency="add/remove", covers="everything"),
        lambda: PlausibleDeniability(k=0, gamma=2),
        lambda: PlausibleDeniability(k=5, gamma=0.5),
        lambda: PlausibleDeniability(k=5, gamma=2, epsilon=1.0),
        lambda: PlausibleDeniability(k=5, gamma=2, covers="the whole release"),
        lambda: PML(epsilon=-1, alpha=0.1),
        lambda: guarantee.from_json({"kind": "pointwise-maximal-leakage", "epsilon": None, "alpha": 0.1}),
        lambda: PML(epsilon=1, alpha=2),
        lambda: LID(bound=1.2),
        lambda: guarantee.from_json({"kind": "k-anonymity"}),
        lambda: guarantee.from_json({"kind": "local-information-disclosure"}),
        lambda: guarantee.from_json({"kind": "local-information-disclosure", "bound": 0.1, "epsilon": 1}),
    ],
)
def test_mixed_or_invalid_guarantees_are_refused(make) -> None:
    with pytest.raises(AccountingError):
        make()


def test_numbers_come_by_name() -> None:
    with pytest.raises(TypeError):
        DifferentialPrivacy(1.0, 0.0, "add/remove", "the model")  # type: ignore[misc]
