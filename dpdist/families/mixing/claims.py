"""What the mixing family states, mechanism by mechanism, on small classes made to contradict it.

The stages of a release (`dpdist.families.base.rehearsal`) make the mixtures. Checks and moments
come from the functions that the stages call, with streams of the same names.

*Mixtures*: a class of rows that all coincide, at the clipping norm, and a canary (or a unit of canaries) opposite to
them: there one mixture is the pair of the accounting itself, of a unit nearly. The class is as small as a few mixtures
allow, and the epsilon that is stated is that of this small class.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from dpdist.families.base.rehearsal import key_from, rehearse
from dpdist.families.mixing.budget import ClassPlan
from dpdist.families.mixing.classes import Mixtures, confirmed_classes
from dpdist.families.mixing.mixing_plan import MixingPlan
from dpdist.families.mixing.mixture import clip_rows
from dpdist.families.mixing.scaling import Encoding, MomentPlan, declared_encoding, moment_sums, noisy_moments
from dpdist.families.mixing.spec import MixingSpec
from dpdist.families.mixing.stages import stages
from dpdist.federated.plan import require_one_curator
from dpdist.privacy import accountant
from dpdist.privacy.arrays import Floats
from dpdist.privacy.checks import CountCheck
from dpdist.privacy.mixtures import ClassMixtures
from dpdist.privacy.noise import Noise
from dpdist.privacy.pieces import SampledUnit
from dpdist.privacy.testing import Claim

_MIXTURES, _DELTA = 4, 0.01
_LARGEST_EPSILON = 4.0  # that thousands of runs can tell from infinity
_NOISES = 20  # records of the table of moments, in deviations of the noise
_ALWAYS = 10**9  # noisy counts are above the negative of it


def mixtures_claim(
    mixtures: ClassMixtures, sigma_over_clip: float, *, delta: float = _DELTA, name: str = "class 0"
) -> Claim:
    """The mixtures of one small class, called `name`: `minimum` rows with the canary, more than a mixture takes."""
    plan = _small_plan(mixtures, sigma_over_clip)
    other, canary = (float(row[0]) for row in clip_rows([[-1.0, 0.0], [1.0, 0.0]], clip=1.0))
    others = mixtures.minimum - mixtures.unit
    ends = ((np.arange(others + extra) >= others).astype(np.uint8) for extra in (0, mixtures.unit))
    sampled = SampledUnit(sigma_over_clip * mixtures.order / (canary - other), mixtures.sampling_rate, mixtures.unit)
    scores = partial(_mixture_scores, plan, sampled, (other, canary))
    epsilon = accountant.epsilon(mixtures.event(sigma_over_clip), delta=delta)
    name = f"{mixtures.records} mixtures of {mixtures.order} of {mixtures.minimum} ({name})"
    return Claim.of(name, scores, ends, epsilon=epsilon, delta=delta)


def _small_plan(mixtures: ClassMixtures, sigma_over_clip: float) -> MixingPlan:
    """A release of the mixtures of one class of a small table; its minimum is always confirmed."""
    attributes = [
        {"name": "class", "kind": "categorical", "values": ["all"]},
        {"name": "along", "kind": "integer", "bounds": [0, 1]},
        {"name": "across", "kind": "integer", "bounds": [0, 2]},
    ]
    tree = {
        "kind": "mixing",
        "name": "audit",
        "dataset": "audit",
        "schema": {"attributes": attributes},
        "data": {"path": "none", "minimum_records": 1},
        "output": {"path": "none"},
        "privacy": {"epsilon": 1, "delta": 1e-5},
        "mixing": {
            "class": "class",
            "classes": {"all": {"minimum": mixtures.minimum, "records": mixtures.records}},
            "clip": 1.0,
            "spread": "mixtures",
        },
    }
    spec = MixingSpec.model_validate(tree)
    check = CountCheck(minimum=mixtures.minimum, threshold=-_ALWAYS, scale=1.0, delta=0.0)
    return MixingPlan(
        spec=spec,
        encoding=declared_encoding(spec.table, class_attribute="class"),
        moments=None,
        classes=(ClassPlan(value="all", code=0, check=check, mixtures=mixtures),),
        order=mixtures.order,
        sigma_over_clip=sigma_over_clip,
    )


def _mixture_scores(
    plan: MixingPlan, sampled: SampledUnit, rows_of: tuple[float, float], end: NDArray[np.uint8], noise: Noise
) -> Floats:
    """The log-likelihood ratio of the mixtures, their means, and how far the coordinates differ."""
    other, canary = rows_of
    codes = [np.zeros_like(end), end, np.ones_like(end)]
    made = rehearse(plan, stages(plan), codes, key=key_from(noise), until=Mixtures).result(Mixtures)
    rows = np.concatenate(made.classes[0].blocks).astype(np.float64)
    mixtures, sigma = plan.classes[0].mixtures, plan.sigma_over_clip
    along, across, shift = rows[:, 0] - other, rows[:, 1], (canary - other) / mixtures.order
    exponent = (shift * along - shift**2 / 2) / sigma**2
    ratio = sampled.loss(along / shift)
    difference = along - across
    spread = along - along.mean() if len(along) > 1 else along
    numbers = [ratio.sum(), along.mean(), along.max(), difference.mean(), difference.max(), np.abs(spread).max()]
    return np.array([*numbers, expit(exponent).sum()])


def confirmation_claim(plan: MixingPlan, part: ClassPlan) -> Claim:
    """The outcome of the noisy count of a class of the plan, at the number of records where it is least certain."""
    alone, size = replace(plan, classes=(part,)), max(round(part.check.threshold), plan.order)
    sides, epsilon = (size, size + part.check.unit), accountant.epsilon(part.check.event, delta=plan.delta)
    name = f"minimum of class {part.value}"
    return Claim.of(name, partial(_confirmed, alone), sides, epsilon=epsilon, delta=plan.delta)


def _confirmed(plan: MixingPlan, size: int, noise: Noise) -> Floats:
    return np.array(confirmed_classes(noise, plan, [size]).outcomes, np.float64)


def moments_claim(encoding: Encoding, plan: MomentPlan, *, delta: float, unit: int = 1) -> Claim:
    """The noisy moments, with and without a record (or a unit's) at the upper end of every attribute."""
    many = max(2, round(_NOISES * plan.sigma))
    columns = [
        np.full(unit, float((attribute.bounds or (0, 1))[1]))
        if attribute.is_continuous
        else np.full(unit, np.argmax(np.linalg.norm(encoding.tables[place], axis=1)), attribute.dtype)
        for place, attribute in enumerate(encoding.attributes)
    ]
    one = [moment_sums(encoding, place, column) for place, column in enumerate(columns)]
    none = [np.zeros_like(sums) for sums in one]
    noisy, epsilon = partial(_noisy_moments, encoding, plan), accountant.epsilon(plan.event, delta=delta)
    sides = ((many - unit, none), (many, one))
    return Claim.of("means and deviations", noisy, sides, epsilon=epsilon, delta=delta)


def _noisy_moments(encoding: Encoding, plan: MomentPlan, counted: tuple[int, list[np.ndarray]], noise: Noise) -> Floats:
    records, sums = counted
    moments = noisy_moments(noise, encoding, records, sums, plan, minimum=1)
    return np.concatenate([moments.mean, moments.variance])


def claims(plan: MixingPlan) -> tuple[Claim, ...]:
    """Each mechanism of a plan, on a small class made to contradict it. Raises SpecError: the release is federated."""
    require_one_curator(plan)
    made: dict[object, Claim] = {}
    for part in plan.classes:
        small = _small_class(part.mixtures, plan.sigma_over_clip)
        if small not in made:
            made[small] = mixtures_claim(small, plan.sigma_over_clip, name=f"class {part.value}")
    for part in plan.classes:
        made.setdefault(part.check, confirmation_claim(plan, part))
    found = list(made.values())
    if plan.moments is not None:
        unit = plan.spec.records_of_a_unit
        found.append(moments_claim(plan.encoding, plan.moments, delta=plan.delta, unit=unit))
    return tuple(found)


def _small_class(mixtures: ClassMixtures, sigma_over_clip: float) -> ClassMixtures:
    """The smallest class, and the most mixtures up to `_MIXTURES`, whose epsilon can be measured."""
    records = min(_MIXTURES, mixtures.records)
    minimum = min(2 * mixtures.order + mixtures.unit - 1, mixtures.minimum)
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
