"""The sections on a release of two linked tables: margins of each, what is within a parent, rules, attacks."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from dpdist.cluster.executor import Executor
from dpdist.data.operators import through
from dpdist.data.records import RecordsInMemory
from dpdist.data.released import ReleasedTable
from dpdist.data.report import RowReport, check
from dpdist.errors import DataError
from dpdist.evaluation.binning import View, view_of
from dpdist.evaluation.inputs import EvaluatedTables, require_records
from dpdist.evaluation.linked import attacks
from dpdist.evaluation.linked.attacks import wide
from dpdist.evaluation.linked.parents import ParentRecords, by_numbers, real_parents, released_parents
from dpdist.evaluation.linked.within import within_section
from dpdist.evaluation.page.sections import PageSection, does_not_apply
from dpdist.evaluation.request import Request
from dpdist.evaluation.utility import similarity
from dpdist.evaluation.utility.checks import holdout_section, rules_section
from dpdist.evaluation.utility.marginals import Marginals, chosen_triples, marginals_operator
from dpdist.families.base.attempt import Progress
from dpdist.families.base.family import LinkedRows
from dpdist.families.base.graph import run_pass
from dpdist.privacy.arrays import Codes, Counts
from dpdist.spec.schema import Schema


@dataclass(frozen=True, eq=False, repr=False)
class LinkedInputs:
    """Released parents and the real ones; confidential."""

    released: ParentRecords
    real: ParentRecords
    holdout: ParentRecords | None
    broken: Counts  # int64: released records that break each rule
    rows: int  # released records
    reports: dict[str, RowReport]  # what the policies met in ``real`` and ``holdout``


def open_linked(
    released: ReleasedTable,
    linked: LinkedRows,
    tables: EvaluatedTables,
    *,
    executor: Executor,
    seed: int,
    progress: Progress,
) -> LinkedInputs:
    """Read both tables. Raises DataError: one does not fit or changed; SpecError: the hold-out is the table."""
    against, holdout = tables.against, tables.holdout
    tables.check_holdout()
    inputs = {"real": against} | ({} if holdout is None else {"holdout": holdout})
    opened = [one.open(linked.read, beside=linked.unit.by) for one in inputs.values()]
    progress("reading parents", 0, 1)
    located = [one.on(executor) for one in opened]
    graphs = [released_parents(executor, released, linked)]
    graphs += [real_parents(executor, table, linked, released, seed=seed) for table in located]
    ((made, broken), _), *found = executor.compute(
        graphs, progress=lambda done, total: progress("reading parents", done, total)
    )
    if against.fingerprint != located[0].fingerprint:
        raise DataError("the real table changed while it was read: leave its files alone and run it again")
    reports, parents = {}, {}
    for name, (codes, sizes, report) in zip(inputs, found, strict=True):
        check(report, linked.read, rules=False)  # they are counted
        require_records(report)
        reports[name], parents[name] = report, ParentRecords.of(linked, codes, sizes)
    return LinkedInputs(
        by_numbers(linked, made), parents["real"], parents.get("holdout"), broken, released.rows, reports
    )


def linked_sections(inputs: LinkedInputs, request: Request) -> list[PageSection]:
    """All sections."""
    released, real, seed = inputs.released, inputs.real, request.seed
    linked, name = real.linked, real.linked.unit.name
    halves = real.halves(np.random.default_rng([seed, 31]))
    tables = {"released": released, "first half": halves[0], "second half": halves[1]}
    view = view_of(linked.schema)
    counts = _marginals({of: one.codes for of, one in tables.items()}, linked.schema, view, seed)
    members = similarity.marginal_section(counts, view, seed=seed)
    above = view_of(linked.parents_schema)
    tops = _marginals({of: one.top() for of, one in tables.items()}, linked.parents_schema, above, seed)
    parents = similarity.marginal_section(tops, above, seed=seed)
    of_parents = f"A row for each {name}. {parents.verdict}"
    sections = [
        replace(members, title="Marginals of members", verdict=f"Members, with their {name}. {members.verdict}"),
        replace(parents, name="parents-marginals", title="Marginals of parents", verdict=of_parents),
        within_section(released, real, seed=seed),
        similarity.correlation_section(counts, view),
    ]
    rules = linked.schema.forbidden
    if rules:
        report = inputs.reports["real"]
        sections.append(rules_section(rules, inputs.broken, report.broken, rows=(inputs.rows, report.rows)))
    why = (
        f"models would be tested on members of the same {name}s that they were trained on. Marginals, what is within a "
        f"{name} and attacks on {name}s are above and below."
    )
    sections.append(does_not_apply("models", "Models", why))
    return sections + (_attacks(inputs, request) if request.attacks else [])


def _attacks(inputs: LinkedInputs, request: Request) -> list[PageSection]:
    """The attacks, and what is wrong with the hold-out."""
    holdout, found = inputs.holdout, []
    if holdout is not None:
        bad = holdout_section(list(wide(inputs.real)), list(wide(holdout)), seed=request.seed)
        if bad is not None:
            holdout, found = None, [bad]
    return [*found, attacks.section(inputs.released, inputs.real, holdout, seed=request.seed)]


def _marginals(tables: dict[str, Codes], schema: Schema, view: View, seed: int) -> dict[str, Marginals]:
    """Counts as `similarity.marginal_section` takes them."""
    operator = through(view.codes, marginals_operator(view.sizes, chosen_triples(view.sizes, seed=seed)))
    found = {name: run_pass(RecordsInMemory.of(schema, codes), operator)[0] for name, codes in tables.items()}
    return found | {"real": found["first half"] + found["second half"]}
