"""What the mixing family states, mechanism by mechanism, on small classes made to contradict it.

A class of rows that all coincide, at the clipping norm, and a canary opposite to them: there one mixture is the pair of
the accounting itself. The class is as small as a few mixtures allow, so that the canary is drawn often enough to show
in thousands of releases; the epsilon that is stated is that of this small class.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
from scipy.special import expit

from dpdist.errors import SpecError
from dpdist.families.mixing.accounting import ClassMixtures
from dpdist.families.mixing.mixture import Mixer, Rows, clip_rows
from dpdist.families.mixing.moments import MomentPlan, moment_sums, noisy_moments
from dpdist.families.mixing.plan import MixingPlan
from dpdist.families.mixing.scaling import Encoding
from dpdist.privacy import accountant
from dpdist.privacy.arrays import Floats
from dpdist.privacy.noise import Noise
from dpdist.privacy.testing import Claim

_MIXTURES, _DELTA = 4, 0.01
_LARGEST_EPSILON = 4.0  # that thousands of runs can tell from infinity
_COLUMNS = 2  # coordinates: along the canary, and across
_NOISES = 20  # records of the table of moments, in deviations of the noise


def mixtures_claim(
    mixtures: ClassMixtures, sigma_over_clip: float, *, delta: float = _DELTA, name: str = "class 0"
) -> Claim:
    """The mixtures of one class.

    Parameters
    ----------
    mixtures : ClassMixtures
        A small class: `minimum` rows with the canary, more than a mixture takes.
    sigma_over_clip : float
    delta : float
        Delta at which its epsilon is stated.
    name : str
        What the class is called.
    """
    mixer = Mixer(order=mixtures.order, clip=1.0, sigma=sigma_over_clip, name="mixing/0")
    row = np.zeros((1, _COLUMNS))
    row[0, 0] = 1.0
    others = clip_rows(np.repeat(-row, mixtures.minimum - 1, axis=0), clip=1.0)
    canary = clip_rows(row, clip=1.0)
    shift = float(canary[0, 0] - others[0, 0]) / mixtures.order
    absent, present = (
        partial(_looked_at, mixer, rows, mixtures, shift) for rows in (others, np.concatenate([others, canary]))
    )
    epsilon = accountant.epsilon(mixtures.event(sigma_over_clip), delta=delta)
    return Claim(
        name=f"{mixtures.records} mixtures of {mixtures.order} of {mixtures.minimum} ({name})",
        absent=absent,
        present=present,
        epsilon=epsilon,
        delta=delta,
    )


def _looked_at(mixer: Mixer, rows: Rows, mixtures: ClassMixtures, shift: float, noise: Noise) -> Floats:
    """The log-likelihood ratio of the mixtures, their means, and how far the coordinates differ."""
    made = mixer.mixtures(noise, rows, 0, mixtures.records).astype(np.float64)
    along, across = made[:, 0] - float(rows[0, 0]), made[:, 1]
    q = mixtures.sampling_rate
    exponent = (shift * along - shift**2 / 2) / mixer.sigma**2
    ratio = np.logaddexp(np.log1p(-q), np.log(q) + exponent) if q < 1 else exponent
    difference = along - across
    spread = along - along.mean() if len(along) > 1 else along
    numbers = [ratio.sum(), along.mean(), along.max(), difference.mean(), difference.max(), np.abs(spread).max()]
    return np.array([*numbers, expit(exponent).sum()])


def moments_claim(encoding: Encoding, plan: MomentPlan, *, delta: float) -> Claim:
    """The noisy means and deviations, with and without a record at the upper end of every attribute.

    Parameters
    ----------
    encoding : Encoding
        The declared one.
    plan : MomentPlan
    delta : float
        Delta at which its epsilon is stated.
    """
    many = max(2, round(_NOISES * plan.sigma))
    columns = [
        np.array([float((attribute.bounds or (0, 1))[1])])
        if attribute.is_continuous
        else np.array([np.argmax(np.linalg.norm(_values(encoding, place), axis=1))], attribute.dtype)
        for place, attribute in enumerate(encoding.attributes)
    ]
    one = [moment_sums(encoding, place, column) for place, column in enumerate(columns)]
    none = [np.zeros_like(sums) for sums in one]
    absent, present = (
        partial(_noisy_moments, encoding, plan, count, sums) for count, sums in ((many - 1, none), (many, one))
    )
    epsilon = accountant.epsilon(plan.event, delta=delta)
    return Claim(name="means and deviations", absent=absent, present=present, epsilon=epsilon, delta=delta)


def _values(encoding: Encoding, place: int) -> Floats:
    return np.asarray(encoding.tables[place], np.float64)


def _noisy_moments(encoding: Encoding, plan: MomentPlan, records: int, sums: list[np.ndarray], noise: Noise) -> Floats:
    moments = noisy_moments(noise, encoding, records, sums, plan, minimum=1)
    return np.concatenate([moments.mean, moments.variance])


def claims(plan: MixingPlan) -> tuple[Claim, ...]:
    """Each mechanism of a plan, with its noise, on a small class made to contradict it.

    Raises
    ------
    SpecError
        The release is federated: what a client sends is audited in `tests/mixing`, not from a spec.
    """
    if plan.spec.federated is not None:
        raise SpecError(
            "federated releases are not audited from their spec; leave out `federated` to audit a central one"
        )
    made, seen = [], set()
    for part in plan.classes:
        small = _small_class(part.mixtures, plan.sigma_over_clip)
        if small in seen:
            continue
        seen.add(small)
        made.append(mixtures_claim(small, plan.sigma_over_clip, name=f"class {part.value}"))
    if plan.moments is not None:
        made.append(moments_claim(plan.encoding, plan.moments, delta=plan.delta))
    return tuple(made)


def _small_class(mixtures: ClassMixtures, sigma_over_clip: float) -> ClassMixtures:
    """The smallest class, and the most mixtures up to `_MIXTURES`, whose epsilon can be measured."""
    records = min(_MIXTURES, mixtures.records)
    minimum = min(2 * mixtures.order, mixtures.minimum)
    while True:
        small = replace(mixtures, minimum=minimum, records=records)
        if small.epsilon(sigma_over_clip, delta=_DELTA) <= _LARGEST_EPSILON:
            return small
        if records > 1:
            records -= 1
        elif minimum < mixtures.minimum:
            minimum = min(2 * minimum, mixtures.minimum)
        else:
            return small
