"""What a release of the published method does: both stages and what they may disclose, as frozen records."""

from __future__ import annotations

from dataclasses import dataclass, field

from dpdist.families.prediction.blocks import BLOCK_ROWS
from dpdist.families.prediction.lid.disclosure import ALPHAS, largest_alpha
from dpdist.families.prediction.lid.hybrid import MATCHED_ROWS
from dpdist.families.prediction.scales import Scale
from dpdist.families.prediction.second_stage import RegressionSpec


@dataclass(frozen=True, kw_only=True)
class Disclosure:
    """What may be disclosed."""

    lid: float  # largest share of released rows that may be near their originals
    eta: float  # what is near, as a share of the width of a column's scale
    columns: tuple[int, ...]  # places of the columns that are looked at, among the inputs


@dataclass(frozen=True, kw_only=True)
class Method:
    """Both stages."""

    scales: tuple[Scale, ...]  # of the inputs
    disclosure: Disclosure
    kept: tuple[int, ...] = ()  # places of the inputs that stay original; they are released with the row they stood in
    party: int | None = None  # place of the input that names the party, which is one of those kept
    correlation: float | None = None  # of the regressions of two parties; None: by cross-validation
    first_stage: str = "lhs"  # of `dpdist.families.prediction.latin.FIRST_STAGES`, or a hook
    matching: str = "nearest"
    alpha: float | None = None  # share of the original row; None: the largest within `disclosure`
    regression: RegressionSpec = field(default_factory=RegressionSpec)
    classes: int = 0  # of a response without order; 0 where it is a number
    exact_rows: int = MATCHED_ROWS
    block_rows: int = BLOCK_ROWS

    @property
    def parties(self) -> int:
        """Number of the parties; 0 where no column names one."""
        return 0 if self.party is None else self.scales[self.party].count or 0

    @property
    def relation(self) -> tuple[int, float | None]:
        """The parties that the regression tells apart, and the correlation of two of their regressions."""
        return (0, None) if self.regression.hook is not None else (self.parties, self.correlation)

    @property
    def made(self) -> tuple[int, ...]:
        """Places of the inputs that are synthesised."""
        return tuple(i for i in range(len(self.scales)) if i not in self.kept)

    @property
    def made_scales(self) -> tuple[Scale, ...]:
        """Scales of the inputs that are synthesised."""
        return tuple(self.scales[i] for i in self.made)

    @property
    def watched(self) -> tuple[int, ...]:
        """Places of the disclosure's columns among those that are synthesised."""
        return tuple(self.made.index(i) for i in self.disclosure.columns)

    @property
    def alphas(self) -> tuple[float, ...]:
        """The alphas for which LID is measured."""
        return ALPHAS if self.alpha is None else (self.alpha,)

    @property
    def most_alpha(self) -> float:
        """The alpha of the closed form, 0 where even that discloses too much."""
        form = largest_alpha(self.disclosure.lid, eta=self.disclosure.eta, columns=max(len(self.disclosure.columns), 1))
        return 0.0 if form is None else form
