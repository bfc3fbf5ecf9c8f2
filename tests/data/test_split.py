"""The keyed coin: exact thresholds, addressed by file and row, and a split that is what it says."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from dpdist.data.operators import Split, exact_shares, split_labels
from dpdist.errors import SpecError
from dpdist.ledger.keys import KeyRef
from dpdist.privacy.noise import Noise

NOISE = Noise(bytes(range(32)))
SHARES = (Fraction(1, 10), Fraction(2, 5), Fraction(1, 2))


class Words:
    """Stands for a Noise and returns chosen words."""

    def __init__(self, words: list[int]) -> None:
        self._words = np.array(words, np.uint64)

    def words(self, name: str, count: int, *, start: int = 0) -> np.ndarray:
        assert (name, count, start) == ("split/4", len(self._words), 7)
        return self._words


def labels_of(words: list[int], shares: Any) -> list[int]:
    noise: Any = Words(words)
    return split_labels(noise, file=4, row_start=7, count=len(words), shares=shares).tolist()


def test_thresholds_are_exact() -> None:
    third = (1 << 64) // 3
    words = [0, third - 1, third, 2 * third - 1, 2 * third, 2**64 - 1]
    assert labels_of(words, ("1/3", "1/3", "1/3")) == [0, 0, 1, 1, 2, 2]
    assert labels_of([0, 2**64 - 1], (1,)) == [0, 0]
    assert labels_of([0, 2**64 - 1], (1, 0)) == [0, 0]
    assert labels_of([0, 2**64 - 1], (0, 1, 0)) == [1, 1]
    assert labels_of([0, 2**63 - 1, 2**63, 2**64 - 1], ("0.5", 0, "0.5")) == [0, 0, 2, 2]


@given(st.integers(0, 5), st.integers(0, 10**12), st.lists(st.integers(0, 50), min_size=1, max_size=6))
def test_a_label_depends_on_file_and_row_only(file: int, start: int, counts: list[int]) -> None:
    whole = split_labels(NOISE, file=file, row_start=start, count=sum(counts), shares=SHARES)
    parts, row = [], start
    for count in counts:
        parts.append(split_labels(NOISE, file=file, row_start=row, count=count, shares=SHARES))
        row += count
    assert whole.dtype == np.uint8
    assert np.array_equal(np.concatenate(parts), whole)


def test_files_are_independent() -> None:
    a, b = (split_labels(NOISE, file=f, row_start=0, count=100_000, shares=SHARES) for f in (1, 11))
    table = np.zeros((3, 3))
    np.add.at(table, (a, b), 1)
    assert stats.chi2_contingency(table).pvalue > 1e-20
    assert stats.chi2_contingency(np.diag(table.sum(0)) + 1).pvalue < 1e-20  # what equal labels would give


def test_shares_are_met() -> None:
    """Accepts the declared shares at 100,000 rows and rejects shares 30 % off."""
    n = 100_000
    seen = np.bincount(split_labels(NOISE, file=0, row_start=0, count=n, shares=SHARES), minlength=3)
    for count, share in zip(seen.tolist(), map(float, SHARES), strict=True):
        assert stats.binomtest(count, n, share).pvalue > 1e-20
        for wrong in (0.7 * share, 1.3 * share):
            assert stats.binomtest(count, n, wrong).pvalue < 1e-20


@pytest.mark.parametrize(
    ("shares", "message"),
    [
        (("0.1", "0.4", "0.4"), r"sum to one, not 1/10 \+ 2/5 \+ 2/5 = 9/10"),
        (("-0.5", "1.5"), r"lie in \[0, 1\]"),
        ((), "sum to one"),
        ((0.1, 0.9), "must be exact"),
        (("a half", "0.5"), "must be exact"),
        (("1/0",), "must be exact"),
        ((None,), "must be exact"),
        ((Fraction(1, 256),) * 256, "sum to one"),
    ],
)
def test_bad_shares_are_refused(shares: Any, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        exact_shares(shares)
    with pytest.raises(SpecError, match=message):
        Split(KeyRef.fixed("00" * 32), shares)


def test_a_split_holds_exact_shares() -> None:
    assert Split(KeyRef.fixed("00" * 32), ("0.1", "2/5", "0.5")).shares == SHARES
