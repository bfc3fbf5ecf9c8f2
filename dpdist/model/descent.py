"""Fitting the model to noisy tables: mirror descent on the weighted squared distance of its marginals to them.

Measured tables are shrunk first towards the model that they were picked by, as far as they hold no more than noise.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from dpdist.model.coding import with_zeros
from dpdist.model.inference import Inference
from dpdist.model.junction import JunctionTree, Set
from dpdist.privacy.arrays import Floats
from dpdist.privacy.portable import LN2, exp, inner, log2, matmul, solve

_EDGE = 0.7  # of the largest square of a singular value that noise alone has: half of one as large is kept
_CLEAR = 2.0**16  # a dependence is known where it is this many times as large


def denoised(share: Floats, known: Floats, weight: float) -> Floats:
    """A noisy pair table (shares), without what of its change from what was `known` looks like noise; `weight` is one
    over a cell's variance.

    The margins of the change are kept. Noise of deviation s alone has singular values up to ``(sqrt(m) + sqrt(n)) s``
    [1]_, and a dependence has few and larger ones. One of square h, in units of a part of the square of that edge,
    keeps ``h^2 / (1 + h^2)``; the rest is left out as far as noise accounts for its energy, so a weak dependence stays.

    .. [1] Gavish and Donoho, Optimal shrinkage of singular values, IEEE Trans. Inf. Theory 63, 2017, section II.
    """
    if share.ndim != 2:
        return share
    change = share - known
    dependence = change - change.mean(1, keepdims=True)
    dependence -= dependence.mean(0, keepdims=True)
    wide = dependence if share.shape[0] <= share.shape[1] else dependence.T
    rows, columns = wide.shape[0] - 1, wide.shape[1] - 1
    if not rows:
        return share
    edge = _EDGE * (math.sqrt(rows) + math.sqrt(columns)) ** 2 / weight
    squares, unit = matmul(wide, wide.T) / edge, np.eye(rows + 1)
    if np.trace(squares) > _CLEAR:
        return share
    left, parts = np.split(solve(matmul(squares, squares) + unit, np.hstack([wide, unit])), [columns + 1], axis=1)
    energy = inner(left.ravel(), left.ravel())
    # the energy of noise in what is left out; the direction of the margins, which counts 1, has no noise
    noise = columns * (inner(parts.ravel(), parts.ravel()) - 1) / weight
    left *= min(1.0, noise / energy) if energy else 0.0
    return share - (left if wide is dependence else left.T)


GROWTH = 1.05  # growth of the step length after each step
UPHILL = 2.0  # a step with momentum may lead to this many times the loss
OVERSHOOT = 16.0  # the first steps of new pairs together may lead to this many times the loss
LEAST_STEP = 1e-6  # shorter steps are not halved
FIRST_STEP = 8.0  # length of the first step, where no earlier fit has found one
LOOK = 8  # evaluations after which a fit may end as the loss hardly falls
LEAST_SHARE = 1e-6  # a fit without an earlier one begins with so much at least for each value


@dataclass(frozen=True, eq=False)
class TableMeasurement:
    """A noisy table, on the scale of probabilities."""

    attributes: Set
    share: Floats  # noisy counts over the number of records
    weight: float  # ``(records / sigma)^2``
    known: Floats | None = None  # what a model expected of a pair before, where that was picked for the first time

    @cached_property
    def target(self) -> Floats:
        """What the fit comes close to."""
        return self.share if self.known is None else denoised(self.share, self.known, self.weight)


@dataclass(frozen=True, eq=False)
class FactorModel:
    """A distribution on the model's attributes."""

    tree: JunctionTree
    potentials: dict[Set, Floats]  # logarithms of the factors of the measured sets
    beliefs: list[Floats]  # probabilities of the cliques
    step: float  # step length at the end, with which the next fit begins
    loss: float


@dataclass(frozen=True, eq=False)
class _Point:
    """Potentials of all measured sets, and what the objective is there."""

    potentials: Floats
    loss: float
    gradient: Floats
    marginals: Floats
    beliefs: list[Floats]


class _Objective:
    """Potentials of all measured sets in one vector; the loss, its gradient and the marginals there."""

    def __init__(
        self, tree: JunctionTree, measured: Mapping[Set, tuple[Floats, float]], links: Mapping[Set, NDArray[np.generic]]
    ) -> None:
        self.sets = list(measured)
        self.inference = Inference(tree, list(dict.fromkeys([*self.sets, *links])))
        self.links = {s: possible.astype(np.float64) for s, possible in links.items()}
        self.shapes = [measured[s][0].shape for s in self.sets]
        sizes = [measured[s][0].size for s in self.sets]
        self.starts = np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype(np.int64)
        self.ends = np.cumsum(sizes)
        self.sizes = np.array(sizes)
        top = max(weight for _, weight in measured.values())
        self.target = np.concatenate([measured[s][0].ravel() for s in self.sets])
        self.weight = np.repeat([measured[s][1] / top for s in self.sets], sizes)

    def split(self, vector: Floats) -> dict[Set, Floats]:
        return {
            s: vector[a:b].reshape(shape)
            for s, a, b, shape in zip(self.sets, self.starts, self.ends, self.shapes, strict=True)
        }

    def at(self, potentials: Floats) -> tuple[float, Floats, Floats, list[Floats]]:
        """Loss, gradient in the marginals, marginals and beliefs; an infinite loss where nothing is left."""
        tops = np.maximum.reduceat(potentials, self.starts)
        factors = self.split(exp(potentials - np.repeat(tops, self.sizes)))
        beliefs = self.inference.beliefs(with_zeros(factors, self.links.items()))
        if beliefs is None:
            return np.inf, potentials, potentials, []
        found = self.inference.marginals(beliefs)
        marginals = np.concatenate([found[s].ravel() for s in self.sets])
        residuals = marginals - self.target
        gradient = self.weight * residuals
        return inner(gradient, residuals) / 2, gradient, marginals, beliefs


def fit(
    tree: JunctionTree,
    measurements: Sequence[TableMeasurement],
    links: Mapping[Set, NDArray[np.generic]],
    *,
    iterations: int,
    plateau: float = 0.0,
    start: FactorModel | None = None,
) -> FactorModel:
    """Fit a model by accelerated mirror descent, from the potentials of an earlier model.

    Minimises ``sum_s weight_s |marginal_s - share_s|^2 / 2`` with momentum (Nesterov 1983) that begins anew where it
    leads uphill (O'Donoghue and Candes 2015, section 3.2). Before, picked pairs take a step of proportional fitting.
    `links` are factors that stay: possible combinations of codes, and what is kept of a public model. `iterations`
    counts evaluations of the loss; where `LOOK` of them lower it by less than the part `plateau`, the fit ends.
    """
    measured: dict[Set, tuple[Floats, float]] = {}
    for m in measurements:
        share, weight = measured.get(m.attributes, (m.share, 0.0))
        total = weight + m.weight
        measured[m.attributes] = ((share * weight + m.share * m.weight) / total, total)
    for m in measurements:
        if m.known is not None:
            share, weight = measured[m.attributes]
            alone = weight == m.weight
            measured[m.attributes] = m.target if alone else denoised(share, m.known, weight), weight
    objective = _Objective(tree, measured, links)
    old = start.potentials if start else {}
    shares = [measured[s][0] for s in objective.sets]  # at first, of independent attributes
    anew = [log2(np.maximum(p, LEAST_SHARE)) * LN2 if p.ndim == 1 else np.zeros(p.size) for p in shares]
    at = np.concatenate([old.get(s, first).ravel() for s, first in zip(objective.sets, anew, strict=True)])
    found, step = _Point(at, *objective.at(at)), start.step if start else FIRST_STEP
    if not found.loss < np.inf:  # large potentials of noisy tables of few records: another tree sums them up otherwise
        at, step = np.concatenate(anew), FIRST_STEP
        found = _Point(at, *objective.at(at))
    known = {m.attributes: m.known for m in measurements if m.attributes not in old}
    steps = [_proportional(*measured[s], known.get(s)).ravel() for s in objective.sets]
    first, found = found, _ahead(objective, found, np.concatenate(steps))
    best = found if found.loss <= first.loss else first
    before, momentum, lowest = found.potentials, 1.0, list[float]()
    for _ in range(iterations):
        lowest.append(best.loss)
        if len(lowest) > LOOK and lowest[-1] > (1 - plateau) * lowest[-1 - LOOK]:
            break
        there = found.potentials - step * found.gradient
        if inner(found.gradient, there - before) > 0:
            momentum = 1.0
        following = (1 + math.sqrt(1 + 4 * momentum * momentum)) / 2
        ahead = there + (momentum - 1) / following * (there - before)
        new = _Point(ahead, *objective.at(ahead))
        if not _accepted(found, new, first=momentum == 1.0, least=step < LEAST_STEP):
            step, momentum, before = step / 2, 1.0, found.potentials
            continue
        found, before, momentum, step = new, there, following, step * GROWTH
        best = found if found.loss <= best.loss else best
    return FactorModel(tree, objective.split(best.potentials), best.beliefs, step, best.loss)


def _proportional(share: Floats, weight: float, known: Floats | None) -> Floats:
    """The step of iterative proportional fitting from what was `known` of a picked pair to its noisy table."""
    if known is None:
        return np.zeros(share.shape)
    noise = 1 / math.sqrt(weight)
    return log2((np.maximum(share, 0) + noise) / (known + noise)) * LN2


def _ahead(objective: _Objective, found: _Point, step: Floats) -> _Point:
    """The point a step ahead, half a step where that leads too far uphill, or none."""
    for part in (1.0, 0.5) if step.any() else ():
        at = found.potentials + part * step
        new = _Point(at, *objective.at(at))
        if new.loss <= OVERSHOOT * found.loss:
            return new
    return found


def _accepted(old: _Point, new: _Point, *, first: bool, least: bool) -> bool:
    """Whether the descent goes on from a point."""
    if not new.loss < np.inf:
        return False
    if not first:  # steps with momentum may lead uphill for a while
        return new.loss <= UPHILL * old.loss
    promised = inner(old.gradient, old.marginals - new.marginals)
    return least or (new.loss <= old.loss and old.loss - new.loss >= promised / 2)
