"""DP-CDA's own accounting [1]_, Theorem 1: **not a bound** for its Algorithm 1, and for comparison only.

It takes the rate l/(size of the table), composed over all records of the release, with the Renyi bound for sampling
without replacement [2]_. Algorithm 1 samples from one class: its rate is l/N_k, over T_k mixtures (see `accounting`).
At the published settings the true epsilon is more than twice as large.

References
----------
.. [1] Saha, Tonoy, Imtiaz, *DP-CDA*, arXiv 2411.16121.
.. [2] Wang, Balle, Kasiviswanathan, *Subsampled Renyi differential privacy and analytical moments accountant*, 2019,
   Theorem 9.
"""

from __future__ import annotations

from dpdist.errors import AccountingError
from dpdist.privacy.calibrate import least_scale


def published_epsilon(
    *, table_size: int, order: int, table_records: int, sigma_over_clip: float, delta: float
) -> float:
    """DP-CDA's own formula (Theorem 1) with N = `table_size`, l = `order`, T = `table_records`: **not a bound** for its
    Algorithm 1, and for comparison only.
    """
    from dp_accounting import GaussianDpEvent, NeighboringRelation, SampledWithoutReplacementDpEvent
    from dp_accounting.rdp import RdpAccountant

    _require(table_size, order, table_records, sigma_over_clip, delta)
    # The multiplier is in units of the replacement sensitivity 2c/l, as the paper has it.
    gaussian = GaussianDpEvent(sigma_over_clip * order / 2)
    one = SampledWithoutReplacementDpEvent(table_size, order, gaussian)
    rdp = RdpAccountant(neighboring_relation=NeighboringRelation.REPLACE_ONE)
    return float(rdp.compose(one, table_records).get_epsilon(delta))


def published_sigma_over_clip(
    *, table_size: int, order: int, table_records: int, epsilon: float, delta: float
) -> float:
    """The noise that DP-CDA's own formula asks for: **too little**; for comparison only."""
    _require(table_size, order, table_records, 1.0, delta)

    def cost(multiplier: float) -> float:
        return published_epsilon(
            table_size=table_size,
            order=order,
            table_records=table_records,
            sigma_over_clip=2 * multiplier / order,
            delta=delta,
        )

    return 2 / order * least_scale(cost, epsilon=epsilon, delta=delta, start=0.8, tolerance=1e-6)


def _require(table_size: int, order: int, table_records: int, sigma_over_clip: float, delta: float) -> None:
    if not 1 <= order <= table_size or table_records < 1 or not sigma_over_clip > 0 or not 0 < delta < 1:
        raise AccountingError(
            "the published formula needs 1 <= order <= table size, table records >= 1, noise > 0 and delta in (0, 1)"
        )
