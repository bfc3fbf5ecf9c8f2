"""The law of the records of a synthesis, from its published model: marginals, and the law given a condition.

Without weights the law is the product of the drawing steps, and evidence enters their junction tree: conditional laws
and marginals are exact. Where a pool was weighted to all pairs, the law is that of the weighted pool, drawn again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import combinations
from math import prod

import numpy as np
from numpy.typing import NDArray

from dpdist.data.count import configuration_index, marginal
from dpdist.errors import SpecError
from dpdist.model.coding import admitted, fitting, with_zeros
from dpdist.model.draw import LARGEST_PART, kept_part, pool_part
from dpdist.model.files import PublishedModel
from dpdist.model.fitted import UNIT, Fitted, cumulative_of, steps_of
from dpdist.model.inference import Inference
from dpdist.model.junction import JunctionTree, Set, cells_of, cliques_of
from dpdist.privacy.arrays import Codes, Counts, Floats, stable_order
from dpdist.privacy.noise import Noise
from dpdist.spec.conditions import Box, Condition
from dpdist.spec.rules import Rules, forbidden_cells

MOST_CELLS = 30_000_000  # cells of the junction tree of a marginal at most
MOST_JOINED = 300_000  # cells at most of a table to which attributes of rules are added


class Law:
    """The law of the released records.

    Parameters
    ----------
    model : PublishedModel
    rules : Rules
        No record breaks them.
    kept : collection of int
        Numbers of the rules that the model keeps by itself.
    """

    def __init__(self, model: PublishedModel, rules: Rules = (), kept: Collection[int] = ()) -> None:
        self.model, self.fitted, self.rules = model, model.fitted, rules
        self._given_rules = tuple(rule for number, rule in enumerate(rules) if number not in kept)
        self.domain = self.fitted.domain

    @property
    def is_weighted(self) -> bool:
        """Whether the law is that of a weighted pool."""
        return self.fitted.adjustment is not None

    @cached_property
    def pool(self) -> tuple[Codes, Counts]:
        """The rows of the weighted pool, and their weights."""
        fitted, noise = self.fitted, Noise(bytes.fromhex(self.model.key))
        parts = [pool_part(fitted, noise, p, fitted.pool_rows, self.rules) for p in range(fitted.pool_parts)]
        rows = [np.concatenate(columns) for columns in zip(*parts, strict=True)]
        if fitted.adjustment is None:
            return list(rows), np.ones(len(rows[0]), np.int64)
        return list(rows), fitted.adjustment.weights(rows, fitted.domain)

    def marginal(self, attributes: Set) -> Floats:
        """Shares of the cells of some attributes of the table, ascending; of the shape of their domains.

        Raises
        ------
        SpecError
            The exact marginal would take too much memory.
        """
        shape = tuple(self.domain[i] for i in attributes)
        if self.is_weighted:
            rows, weights = self.pool
            index = configuration_index([rows[i] for i in attributes], shape)
            found = np.bincount(index, weights=weights.astype(np.float64), minlength=prod(shape))
            return np.asarray(found / found.sum()).reshape(shape)
        together = self._together(attributes)
        try:
            table = self._exact(together)
        except SpecError:
            together, table = attributes, self._exact(attributes)
        return np.asarray(table.sum(axis=tuple(axis for axis, i in enumerate(together) if i not in attributes)))

    def _together(self, attributes: Set) -> Set:
        """Some attributes, and those of rules that tell their merged values apart, as far as the table stays small."""
        names = [i for number in self._shares for i in self._given_rules[number].attributes]
        found, before = set(attributes), set[int]()
        while found != before:
            before = set(found)
            for number in self._shares:
                rule = self._given_rules[number].attributes
                more = found | set(rule)
                joins = any(len(self.fitted.rare[i]) and (i in found or names.count(i) > 1) for i in rule)
                if joins and prod(self.domain[i] for i in more) <= MOST_JOINED:
                    found = more
        return tuple(sorted(found))

    def _exact(self, attributes: Set) -> Floats:
        """The table of some attributes. Rules on them are applied to values, all others to codes."""
        whole, rules = set(attributes), self._given_rules
        others = [share for number, share in self._shares.items() if not set(rules[number].attributes) <= whole]
        inside = tuple(sorted(self.fitted.fine[i] for i in attributes))
        tree, beliefs = self._beliefs({}, inside, others)
        home = tree.home(inside)
        table = marginal(beliefs[home], [tree.cliques[home].index(a) for a in inside])
        table = np.moveaxis(table, [inside.index(self.fitted.fine[i]) for i in attributes], range(len(attributes)))
        for axis, i in enumerate(attributes):
            codes, within = self.fitted.coded(i)
            table = np.take(table, codes, axis) * within.reshape([-1 if k == axis else 1 for k in range(table.ndim)])
        if not self.rules:
            return table
        table = np.where(forbidden_cells(self.rules, attributes, table.shape), 0.0, table)
        if not table.sum() > 0:
            raise SpecError("the rules forbid all that the model makes of these attributes")
        return np.asarray(table / table.sum())

    def probability(self, condition: Condition) -> float:
        """The share of the records that meet a condition."""
        if self.is_weighted:
            rows, weights = self.pool
            return float(weights[condition.holds(rows)].sum() / weights.sum())
        found = self._by_table(condition)
        if found is None:
            found = [probability for _, probability in self._given(condition, self._shares.values())]
        return float(sum(found))

    def _by_table(self, condition: Condition) -> list[float] | None:
        """The probability of each box of a condition, by the table of its attributes; None where it is too large."""
        attributes = condition.attributes
        if not self._given_rules or not attributes or prod(self.domain[i] for i in attributes) > MOST_JOINED:
            return None
        try:
            table = self.marginal(attributes)
        except SpecError:
            return None
        found = []
        for box in condition.boxes:
            share = table
            for axis in reversed(range(len(attributes))):
                mask = box.get(attributes[axis])
                share = share.sum(axis=axis) if mask is None else share[(slice(None),) * axis + (mask,)].sum(axis=axis)
            found.append(float(share))
        return found

    def draw(self, condition: Condition | None, records: int, noise: Noise) -> tuple[Codes, int]:
        """Records that meet a condition, in random order, and how many different rows of a pool they come from.

        Of a law without weights there is no such number: it is that of the records.

        Raises
        ------
        SpecError
            No record of this law meets the condition.
        """
        if self.is_weighted:
            return self._from_pool(condition, records, noise)
        laws = [(self.fitted, 1.0)] if condition is None else self._laws(condition)
        total = sum(probability for _, probability in laws)
        _refuse(condition, total)
        ends = np.floor(
            np.cumsum([p / total * records for _, p in laws]) + noise.integers("split", 1, high=UNIT)[0] / UNIT
        )
        ends = np.minimum(ends.astype(np.int64), records)
        ends[-1] = records
        parts = []
        for case, ((fitted, _), rows) in enumerate(zip(laws, np.diff(ends, prepend=0).tolist(), strict=True)):
            for start in range(0, rows, LARGEST_PART):
                size = min(LARGEST_PART, rows - start)
                parts.append(kept_part(fitted, noise, f"case/{case}/{start}", size, self.rules))
        order = stable_order(noise.words("order", records))
        drawn = [np.concatenate(columns)[order] for columns in zip(*parts, strict=True)]
        if condition is not None and not condition.holds(drawn).all():
            raise SpecError(f"next to no record that the rules admit meets the condition {condition.text!r}")
        return drawn, records

    def _from_pool(self, condition: Condition | None, records: int, noise: Noise) -> tuple[Codes, int]:
        rows, weights = self.pool
        inside = np.arange(len(weights)) if condition is None else np.flatnonzero(condition.holds(rows))
        cumulative = np.cumsum(weights[inside])
        _refuse(condition, float(cumulative[-1]) if len(inside) else 0.0)
        taken = inside[np.searchsorted(cumulative, noise.integers("taken", records, high=int(cumulative[-1])), "right")]
        return [column[taken] for column in rows], len(np.unique(taken))

    def _laws(self, condition: Condition) -> list[tuple[Fitted, float]]:
        """Models of the records in each box of a condition, and the boxes' probabilities."""
        possible = [(scope, np.sign(share)) for scope, share in self._shares.values()]
        shares = self._by_table(condition)
        found = []
        for k, box in enumerate(condition.boxes):
            alone = replace(condition, boxes=(box,))
            share = sum(p for _, p in self._given(alone, self._shares.values())) if shares is None else shares[k]
            if share > 0:
                found += [(fitted, share) for fitted, _ in self._given(alone, possible)]
        return found

    def _given(self, condition: Condition, rules: Collection[tuple[Set, Floats]]) -> Iterator[tuple[Fitted, float]]:
        """The law given each box of a condition, and the box's probability, with factors of rules."""
        for box in condition.boxes:
            probability = 1.0
            factors: dict[Set, Floats] = {}
            for i, mask in box.items():  # the chain rule: one attribute more at a time
                a = self.fitted.fine[i]
                tree, beliefs = self._beliefs(factors, (a,), rules)
                home = tree.home((a,))
                shares = marginal(beliefs[home], [tree.cliques[home].index(a)])
                factors[a,] = self._admitted(i, mask)
                probability *= float((shares * factors[a,]).sum())
                if probability <= 0:
                    break
            if probability > 0:
                tree, beliefs = self._beliefs(factors, (), rules)
                yield self._with(tree, beliefs, box), probability

    def _with(self, tree: JunctionTree, beliefs: Sequence[Floats], box: Box) -> Fitted:
        rare = list(self.fitted.rare_cumulative)
        for i, mask in box.items():
            if len(self.fitted.rare[i]):
                weights = np.diff(rare[i][0], prepend=0) * mask[self.fitted.rare[i]]
                rare[i] = cumulative_of(weights[None].astype(np.float64)) if weights.any() else rare[i]
        return replace(self.fitted, steps=steps_of(tree, beliefs), rare_cumulative=tuple(rare))

    def _admitted(self, i: int, mask: NDArray[np.bool_]) -> Floats:
        """The share of each code of an attribute that a mask of its values admits."""
        codes, within = self.fitted.coded(i)
        return np.asarray(np.bincount(codes, weights=within * mask, minlength=len(self.fitted.values[i])), np.float64)

    @cached_property
    def _conditionals(self) -> dict[Set, Floats]:
        """The conditionals of the drawing steps, by their attributes."""
        return self.fitted.conditionals()

    @cached_property
    def _shares(self) -> dict[int, tuple[Set, Floats]]:
        """What rules admit that the model does not keep by itself, by number, where exact tables stay possible."""
        values = [self.fitted.coded(i) for i in range(len(self.domain))]
        codes, within = zip(*values, strict=True)
        possible = {}
        for number, rule in enumerate(self._given_rules):
            share = admitted(rule, codes, within)
            if share is not None:
                inside = [self.fitted.fine[i] for i in rule.attributes]
                order = sorted(range(len(inside)), key=inside.__getitem__)
                possible[number] = tuple(inside[k] for k in order), np.transpose(share, order)
        cards, edges = self.fitted.cardinalities, {pair for s in self._conditionals for pair in combinations(s, 2)}
        return {k: possible[k] for k in fitting(possible, cards, sorted(edges), most=MOST_CELLS // 10)}

    def _beliefs(
        self, evidence: Mapping[Set, Floats], joined: Set, rules: Collection[tuple[Set, Floats]]
    ) -> tuple[JunctionTree, list[Floats]]:
        """The beliefs given evidence and rules, on a tree in which some attributes share a clique."""
        cards, factors = self.fitted.cardinalities, with_zeros(self._conditionals, rules)
        for attributes, table in evidence.items():
            factors[attributes] = factors[attributes] * table if attributes in factors else table
        edges = {pair for scope in [*factors, joined] for pair in combinations(scope, 2)}
        cliques = cliques_of(cards, sorted(edges))
        if cells_of(cliques, cards) > MOST_CELLS:
            raise SpecError(
                "the exact table of these attributes is too large for the model: ask for fewer attributes at a time"
            )
        tree = JunctionTree.of(cards, cliques)
        beliefs = Inference(tree, list(factors)).beliefs(factors)
        if beliefs is None:
            raise SpecError("the condition is too improbable under the model")
        return tree, beliefs


def _refuse(condition: Condition | None, total: float) -> None:
    if total <= 0 and condition is not None:
        raise SpecError(f"no record of the model meets the condition {condition.text!r}")
