"""Choices of a synthesis that its plan would make otherwise, for tests of what each choice does."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import comb
from typing import Any

import pytest

from dpdist.data.count import PairCounts
from dpdist.families.synthesis import plan
from dpdist.model import learn as model
from dpdist.model.account import GaussianAccount
from dpdist.model.choices import Choices, choose
from dpdist.model.learn import Known, Learned
from dpdist.privacy.noise import Noise

SHARES = (
    "one_way", "one_way_again", "tree", "pairs", "picks", "rake", "triples",
)  # fmt: skip


def choose_instead(monkeypatch: pytest.MonkeyPatch, shares: Mapping[str, float], **others: Any) -> None:
    """Let plans divide the budget by `shares`, 0 where one is not there, and choose `others` as given."""
    whole: dict[str, Any] = {**dict.fromkeys(SHARES, 0.0), **shares}

    def chosen(cardinalities: Sequence[int], *, raking: bool = True, **given: Any) -> Choices:
        found = choose(cardinalities, raking=raking and whole["rake"] > 0, **given)
        triples, groups = (comb(len(cardinalities), 3), 4) if whole["triples"] else (0, 0)
        return replace(found, triple_tables=triples, triple_groups=groups, **whole, **others)

    monkeypatch.setattr(plan, "choose", chosen)


def learn(
    counts: PairCounts, *, choices: Choices, noise: Noise, drawing: Noise, prefix: str = "", **known: Any
) -> Learned:
    """A model in an account of its own; `known` are the fields of `Known`."""
    account = GaussianAccount(choices.mu, noise, prefix)
    return model.learn(counts, account, choices=choices, drawing=drawing, known=Known(**known))
