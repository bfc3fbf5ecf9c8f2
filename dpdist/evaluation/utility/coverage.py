"""Whether the intervals that a release gives hold what the real table says."""

from __future__ import annotations

from dpdist.data.released import ReleasedTable
from dpdist.evaluation.page.sections import PageSection, PageTable, State, does_not_apply
from dpdist.inference.coverage import coverage_of
from dpdist.inference.published import Published
from dpdist.privacy.arrays import Codes

_GOOD, _FAIR = 0.92, 0.85
TITLE = "Intervals"


def coverage_section(real: Codes, released: ReleasedTable, *, known: bool) -> list[PageSection]:
    """The section on a release with measured accuracy; none for others.

    Parameters
    ----------
    real : Codes
        The real records.
    released : ReleasedTable
    known : bool
        Whether these are all real records. Of a sample nothing is said.
    """
    release = Published(released.store, released.manifest)
    if release.errors is None:
        return []
    if not known:
        return [does_not_apply("coverage", TITLE, "the real table was sampled, and its counts are not known.")]
    found = coverage_of(real, release)
    least = min(found, key=lambda one: one.coverage)
    state: State = "good" if least.coverage >= _GOOD else "fair" if least.coverage >= _FAIR else "bad"
    table = PageTable(
        title="Nominal 95 % intervals",
        columns=("of", "number", "held the truth", "naive intervals", "length"),
        rows=tuple((one.of, one.number, one.coverage, one.naive, one.width) for one in found),
        note="Cells above 1 % of the records. Naive intervals take the released records for a simple random sample. "
        "Lengths are medians, in lengths of the intervals of a simple random sample as large as the table.",
    )
    verdict = (
        f"95 % intervals of the release held the truth in {100 * least.coverage:.0f} % of the estimates or more "
        f"(least: {least.of}); naive ones in {100 * min(one.naive for one in found):.0f} %."
    )
    figures = {one.of: {"coverage": one.coverage, "naive": one.naive, "width": one.width} for one in found}
    return [PageSection(name="coverage", title=TITLE, verdict=verdict, state=state, tables=(table,), figures=figures)]
