"""A public table as a prior: the model of this table starts from a model of that one, at no cost.

The public table is learned as if it were private, with next to no noise and a public key: the same rounds pick
pairs and fit a model on this table's coding. Its pairs and potentials are what the private rounds begin with; they
measure where this table differs. Noisy one-way counts are drawn towards those of the public table, as far as they do
not contradict it (James and Stein).
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import numpy as np

from dpdist.data.count import PairCounts
from dpdist.data.inputs import csv_options, table_source
from dpdist.data.operators import pair_counts_operator
from dpdist.data.report import check
from dpdist.data.source import TableSource, is_input, would_find
from dpdist.data.table import open_table
from dpdist.errors import EmptyTable, ReleaseConflict, SpecError
from dpdist.families.base.graph import run_pass
from dpdist.families.base.owners import shared_file
from dpdist.families.synthesis.account import GaussianAccount
from dpdist.families.synthesis.choices import Choices
from dpdist.families.synthesis.marginals import Coding, OneWay
from dpdist.families.synthesis.rake import shrink
from dpdist.families.synthesis.rounds import Learner
from dpdist.families.synthesis.spec import PriorSpec, WholeSynthesisSpec
from dpdist.families.synthesis.tables import PairTables, recode
from dpdist.privacy.noise import Noise
from dpdist.privacy.selection import LARGEST_COST
from dpdist.storage.s3 import is_s3

_SMOOTHING = 0.05
_MU = 30.0  # the noise of a public table: less than a record a cell
_KEY = bytes(32)  # what is drawn with it is public


def refuse_own_table(spec: WholeSynthesisSpec) -> None:
    """Refuse a prior that is the released table, or a part of it, by its address; opens nothing. Raises SpecError: it
    is.
    """
    prior = spec.model.prior
    if prior is None or not spec.data.paths:
        return
    own, public = table_source(spec), _source(spec, prior)
    for source, paths in ((own, prior.paths), (public, spec.data.paths)):
        for path in paths:
            if path in source.paths or (would_find(source, path) if is_s3(path) else is_input(source, Path(path))):
                raise _is_own(path)


def _is_own(path: str) -> SpecError:
    return SpecError(
        f"model.prior: {path} belongs to the table that data.path names, which only a charged release may read: give "
        "a public one, such as last year's"
    )


def _source(spec: WholeSynthesisSpec, prior: PriorSpec) -> TableSource:
    return TableSource(
        paths=prior.paths,
        format=prior.format,
        csv=csv_options(prior.csv),
        extra_columns="ignore",
        storage_options=spec.data.storage.options,
    )


def read_prior(spec: WholeSynthesisSpec) -> PairCounts | None:
    """The pair counts of the public table that a spec names; None where it names none. Raises SpecError: one of its
    files is the released table's; DataError: it cannot be read, or does not follow the schema.
    """
    prior = spec.model.prior
    if prior is None:
        return None
    source = _source(spec, prior)
    if spec.data.paths and (path := shared_file(source, table_source(spec))):
        raise _is_own(path)
    table = open_table(source, spec.table)
    counts, report = run_pass(table, pair_counts_operator(spec.table.cardinalities))
    check(report, spec.table)
    if not counts.total:
        raise EmptyTable("model.prior: the public table has no rows that the policies of the schema keep")
    found: PairCounts = counts
    return found


def prior_digest(spec: WholeSynthesisSpec) -> str | None:
    """SHA-256 of the pair counts of the public table that a spec names, None where it names none: an attempt is bound
    to it. Raises as `read_prior`.
    """
    prior = read_prior(spec)
    return None if prior is None else _digest(prior)


def keep_prior(prior: PairCounts, digest: str | None) -> None:
    """Refuse another prior than the one that an attempt is bound to by its digest, None where nothing binds it: noise
    is drawn for one prior only. Raises ReleaseConflict: the public table was changed after the attempt began.
    """
    if digest not in (None, _digest(prior)):
        raise ReleaseConflict(
            "model.prior: the public table was changed after this attempt began: put the earlier one back, or choose "
            "another release name"
        )


def _digest(prior: PairCounts) -> str:
    return hashlib.sha256(prior.cells.tobytes()).hexdigest()


def towards(one_way: OneWay, prior: PairCounts) -> OneWay:
    """Noisy one-way counts drawn towards a public table's."""
    scale = one_way.records / prior.total
    counts = tuple(
        shrink(table, prior.single(i).astype(np.float64) * scale, sigma)
        for i, (table, sigma) in enumerate(zip(one_way.counts, one_way.sigmas.tolist(), strict=True))
    )
    return replace(one_way, counts=counts)


def public_model(prior: PairCounts, coding: Coding, choices: Choices) -> Learner:
    """A model of the public table on this table's coding: a tree and, with `Choices.prior_cells`, further pairs."""
    attributes = len(prior.cardinalities)
    exact = tuple(prior.single(i).astype(float) for i in range(attributes))
    account = GaussianAccount(_MU, Noise(_KEY))
    sigmas = account.deviations(0.1, [1.0] * attributes)
    one_way = OneWay(exact, sigmas, float(prior.total))
    learner = Learner(_smoothed(recode(prior, coding)), coding, one_way, account, replace(choices, mu=_MU))
    most = 0.9 * (LARGEST_COST / _MU) ** 2 * attributes  # a share of picks that are as precise as they can be
    if learner.round("tree", share=0.2, pick_share=min(0.1, most), most=attributes, tree=True):
        learner.refit(choices.iterations[0])
    for r in range(choices.rounds if choices.prior_cells else 0):
        learner.cells = choices.prior_cells * (r + 1) // choices.rounds
        share = 0.2 / choices.rounds
        if learner.round(f"round/{r}", share=2 * share, pick_share=min(share, most), most=attributes):
            learner.refit(choices.iterations[-1])
    return learner


def _smoothed(tables: PairTables) -> PairTables:
    """Tables with a little of those of independent attributes, so that what the public table lacks stays possible."""
    independent = [np.zeros(0)]
    for k in range(len(tables.pairs)):
        table = tables.table(k)
        independent.append(np.outer(table.sum(1), table.sum(0)).ravel() / table.sum())
    cells = np.rint((1 - _SMOOTHING) * tables.cells + _SMOOTHING * np.concatenate(independent)).astype(np.int64)
    return replace(tables, cells=cells)
