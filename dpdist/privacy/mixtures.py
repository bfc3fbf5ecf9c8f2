r"""What the mixtures of a class cost, and the noise they need.

One mixture is the mean of l rows, drawn without replacement from the N rows of its class and clipped to norm c, plus
Gaussian noise of deviation sigma in each coordinate. With ``Delta = 2c/l`` and ``q = l/N`` it is dominated, in both
directions, by

    (1 - q) N(0, sigma^2) + q N(Delta, sigma^2)    against    N(0, sigma^2),

the pair of a Gaussian on a Poisson sample of rate q with noise multiplier ``z = sigma l / (2c)``. It grows with q, so a
lower bound of N, confirmed with noise, serves. T mixtures compose T times; a record has one class, so classes compose
in parallel. Of a unit with c records in any classes, the mixtures of one number in all classes that have this many are
dominated by ``sum_j Bin(c, q)(j) N(j Delta, sigma^2)`` against ``N(0, sigma^2)``, q the largest ``l/(N - c + 1)``
among these classes. ``docs/guarantees.md`` has the proofs.

**DP-CDA's own accounting** [1]_, Theorem 1, is **not a bound** for its Algorithm 1, and here for comparison only. It
takes the rate l/(size of the table), composed over all records of the release, with the Renyi bound for sampling
without replacement [2]_. Algorithm 1 samples from one class: its rate is l/N_k, over T_k mixtures.

References
----------
.. [1] Saha, Tonoy, Imtiaz, *DP-CDA*, arXiv 2411.16121.
.. [2] Wang, Balle, Kasiviswanathan, *Subsampled Renyi differential privacy and analytical moments accountant*, 2019,
   Theorem 9.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from dpdist.errors import AccountingError
from dpdist.privacy import accountant
from dpdist.privacy.calibrate import least_scale
from dpdist.privacy.events import Composed, SubsampledGaussian, SubsampledUnits


@dataclass(frozen=True, kw_only=True)
class ClassMixtures:
    """The mixtures of one class, as the accountant sees them. Raises AccountingError: a number is below 1, or the order
    exceeds the minimum.
    """

    # public lower bound of the number of rows of the class (of the larger of two neighbouring tables), confirmed with
    # noise
    minimum: int
    order: int  # rows in a mixture, l
    records: int  # mixtures of the class, T_k
    unit: int = 1  # records by which neighbouring tables differ, at most

    def __post_init__(self) -> None:
        if min(self.minimum, self.order, self.records) < 1:
            raise AccountingError("mixing: the class minimum, the order and the number of records must be at least 1")
        if self.order > self.minimum - self.unit + 1:
            raise AccountingError(
                f"mixing: a mixture of order {self.order} needs a class of at least as many records, and only "
                f"{self.minimum - self.unit + 1} are confirmed; lower the order or leave the class out"
            )

    @property
    def sampling_rate(self) -> float:
        """Probability that a mixture holds a given record, at most; of a unit whatever it holds of its others."""
        return self.order / (self.minimum - self.unit + 1)

    def event(self, sigma_over_clip: float) -> SubsampledGaussian | SubsampledUnits:
        """The charge at a noise of ``sigma_over_clip`` times the clipping norm in each coordinate, for a unit whose
        records are all in this class.
        """
        if self.unit > 1:
            return event_of_units([self], sigma_over_clip)[0]
        return SubsampledGaussian(
            sampling_rate=self.sampling_rate,
            noise_multiplier=sigma_over_clip * self.order / 2,
            count=self.records,
            label="mixtures of a class",
        )

    def epsilon(self, sigma_over_clip: float, *, delta: float) -> float:
        """Epsilon of the class at this noise, rounded upwards."""
        return accountant.epsilon(self.event(sigma_over_clip), delta=delta)

    def sigma_over_clip(self, *, epsilon: float, delta: float) -> float:
        """Least noise, in units of the clipping norm, that keeps the class within (epsilon, delta). Raises
        AccountingError: the budget is not valid, or no noise meets it.
        """
        return noise_of_units((self,), epsilon=epsilon, delta=delta)


def event_of_units(classes: Sequence[ClassMixtures], sigma_over_clip: float) -> tuple[SubsampledUnits, ...]:
    """The charge of the mixtures of several classes for a unit whose records may be in any of them.

    The t-th mixtures of all classes that have as many cost no more than if all records of the unit were in the one with
    the largest sampling rate.
    """
    events, done = [], 0
    for stop in sorted({one.records for one in classes}):
        left = [one for one in classes if one.records > done]
        events.append(
            SubsampledUnits(
                sampling_rate=max(one.sampling_rate for one in left),
                noise_multiplier=sigma_over_clip * left[0].order / 2,
                records=left[0].unit,
                count=stop - done,
                label="mixtures of all classes",
            )
        )
        done = stop
    return tuple(events)


@lru_cache(maxsize=1024)
def noise_of_units(classes: tuple[ClassMixtures, ...], *, epsilon: float, delta: float) -> float:
    """Least noise, in units of the clipping norm, that keeps mixtures of classes within the budget for a unit. Raises
    AccountingError: as `ClassMixtures.sigma_over_clip`.
    """
    order, unit = classes[0].order, classes[0].unit

    def cost(multiplier: float) -> float:
        noise = 2 * multiplier / order
        event = classes[0].event(noise) if len(classes) == 1 else Composed(event_of_units(classes, noise))
        return accountant.epsilon(event, delta=delta)

    return 2 / order * least_scale(cost, epsilon=epsilon, delta=delta, start=0.8 * unit)


def account_mixing(
    *,
    order: int,
    delta: float,
    class_size: int | None = None,
    records: int | None = None,
    sigma_over_clip: float | None = None,
    epsilon: float | None = None,
    paper: bool = False,
    table_size: int | None = None,
    table_records: int | None = None,
) -> dict[str, Any]:
    """What mixtures of `order` rows cost, or the noise they need, as a JSON object.

    `class_size` is a lower bound of the rows of the class, `records` are its mixtures; the noise, `sigma_over_clip`, or
    the target `epsilon` is given. With `paper` the published formula answers, which takes `table_size` and
    `table_records`; with the class's numbers too, ``epsilon_true`` says what that noise costs. Raises AccountingError:
    numbers are missing, contradict each other or are out of range.

    >>> round(account_mixing(class_size=7841, order=64, records=16280, epsilon=10, delta=1e-5)["sigma_over_clip"], 4)
    0.0255
    """
    if (sigma_over_clip is None) == (epsilon is None):
        raise AccountingError("mixing: give the noise (sigma over clip) or the target epsilon, and not both")
    if (class_size is None) != (records is None):
        raise AccountingError("mixing: the class size and the records of the class go together")
    known = class_size is not None and records is not None
    mixtures = ClassMixtures(minimum=class_size or 0, order=order, records=records or 0) if known else None
    if paper:
        if table_size is None or table_records is None:
            raise AccountingError("mixing: the published formula needs the table size and the table records")
        table = {"table_size": table_size, "order": order, "table_records": table_records}
        answer = _published_account(table, sigma_over_clip, epsilon=epsilon or 0.0, delta=delta)
        if mixtures is not None:
            answer |= {"class_size": class_size, "records": records}
            answer["epsilon_true"] = mixtures.epsilon(answer["sigma_over_clip"], delta=delta)
        return answer
    if table_size is not None or table_records is not None:
        raise AccountingError("mixing: the table size and the table records are for the published formula (paper) only")
    if mixtures is None:
        raise AccountingError("mixing: give the class size and the records of the class")
    if sigma_over_clip is None:
        sigma_over_clip = mixtures.sigma_over_clip(epsilon=epsilon or 0.0, delta=delta)
    event = mixtures.event(sigma_over_clip)
    return {
        "accounting": "one class: rate order / class size, composed over its records (add/remove)",
        "class_size": class_size,
        "order": order,
        "records": records,
        "sampling_rate": mixtures.sampling_rate,
        "noise_multiplier": event.noise_multiplier,
        "sigma_over_clip": sigma_over_clip,
        **accountant.summary(event, delta=delta),
    }


def _published_account(
    table: dict[str, Any], sigma_over_clip: float | None, *, epsilon: float, delta: float
) -> dict[str, Any]:
    """What the published formula says of the noise, or of the noise that it asks for."""
    if sigma_over_clip is None:
        sigma_over_clip = published_sigma_over_clip(**table, epsilon=epsilon, delta=delta)
    return {
        "accounting": "published (DP-CDA, Theorem 1): rate order / table size; not a bound, for comparison only",
        **table,
        "sigma_over_clip": sigma_over_clip,
        "delta": delta,
        "epsilon": published_epsilon(**table, sigma_over_clip=sigma_over_clip, delta=delta),
        "epsilon_printed": printed_epsilon(**table, sigma_over_clip=sigma_over_clip, delta=delta),
    }


def published_epsilon(
    *, table_size: int, order: int, table_records: int, sigma_over_clip: float, delta: float
) -> float:
    """DP-CDA's own formula (Theorem 1) with N = `table_size`, l = `order`, T = `table_records`, by the best Renyi order
    and conversion: **not a bound** for its Algorithm 1, and for comparison only.
    """
    from dp_accounting import GaussianDpEvent, NeighboringRelation, SampledWithoutReplacementDpEvent
    from dp_accounting.rdp import RdpAccountant

    if not 1 <= order <= table_size or table_records < 1 or not sigma_over_clip > 0 or not 0 < delta < 1:
        raise AccountingError(
            "the published formula needs 1 <= order <= table size, table records >= 1, noise > 0 and delta in (0, 1)"
        )
    # The multiplier is in units of the replacement sensitivity 2c/l, as the paper has it.
    gaussian = GaussianDpEvent(sigma_over_clip * order / 2)
    one = SampledWithoutReplacementDpEvent(table_size, order, gaussian)
    rdp = RdpAccountant(neighboring_relation=NeighboringRelation.REPLACE_ONE)
    return float(rdp.compose(one, table_records).get_epsilon(delta))


_ORDERS = 512  # Renyi orders that are tried where the formula is taken as printed


def printed_epsilon(*, table_size: int, order: int, table_records: int, sigma_over_clip: float, delta: float) -> float:
    """The same as printed: whole orders from 3 on, ``log(1/delta) / (a - 1)``, Theorem 9 of [2]_; **not a bound**."""
    half = 2 / (sigma_over_clip * order) ** 2  # one Gaussian costs ``a * half`` at order a
    factorials = np.cumsum(np.log(np.maximum(np.arange(_ORDERS), 1)))
    least = math.log(2 * min(-2 * math.expm1(-2 * half), 1.0))
    best = math.inf
    for a in range(3, _ORDERS):
        j = np.arange(2, a + 1)
        terms = (
            factorials[a] - factorials[j] - factorials[a - j] + j * math.log(order / table_size) + j * (j - 1) * half
        )
        terms += np.where(j == 2, least, math.log(2))
        one = float(np.logaddexp.reduce(terms, initial=0.0)) / (a - 1)
        best = min(best, table_records * one + math.log(1 / delta) / (a - 1))
    return best


def published_sigma_over_clip(
    *,
    table_size: int,
    order: int,
    table_records: int,
    epsilon: float,
    delta: float,
    formula: Callable[..., float] = published_epsilon,
) -> float:
    """The noise that DP-CDA's own formula, one of the two above, asks for: **too little**; for comparison only."""
    table: dict[str, Any] = {"table_size": table_size, "order": order, "table_records": table_records, "delta": delta}
    published_epsilon(**table, sigma_over_clip=1.0)  # the numbers are in their ranges

    def cost(multiplier: float) -> float:
        return formula(**table, sigma_over_clip=2 * multiplier / order)

    return 2 / order * least_scale(cost, epsilon=epsilon, delta=delta, start=0.8)
