"""What a release of the published method does: both stages and what they may disclose, as frozen records."""

from __future__ import annotations

from dataclasses import dataclass, field

from dpdist.families.prediction.blocks import BLOCK_ROWS
from dpdist.families.prediction.defaults import DISTRIBUTED_ROWS, EXACT_ROWS, GROUP_ROWS, LANDMARKS
from dpdist.families.prediction.lid.disclosure import ALPHAS, largest_alpha
from dpdist.families.prediction.lid.hybrid import MATCHED_ROWS
from dpdist.families.prediction.lid.ridge import TUNING_ROWS
from dpdist.families.prediction.scales import Scale

ESTIMATORS = ("exact", "distributed", "nystroem")


@dataclass(frozen=True, kw_only=True)
class Disclosure:
    """What may be disclosed.

    Attributes
    ----------
    lid : float
        Largest share of released rows that may be near their originals.
    eta : float
        What is near, as a share of the width of a column's scale.
    columns : tuple of int
        Places of the columns that are looked at, among the inputs.
    """

    lid: float
    eta: float
    columns: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Regression:
    """Stage 2.

    Attributes
    ----------
    kernel : str
        Of `dpdist.families.prediction.kernels.PROFILES`.
    width, penalty : float or None
        None: by cross-validation.
    estimator : str or None
        Of `ESTIMATORS`; None: by the number of rows.
    group_rows, landmarks, tuning_rows : int
    hook : str or None
        A regression of the user's in place of kernel ridge.
    """

    kernel: str = "compact"
    width: float | None = None
    penalty: float | None = None
    estimator: str | None = None
    group_rows: int = GROUP_ROWS
    landmarks: int = LANDMARKS
    tuning_rows: int = TUNING_ROWS
    hook: str | None = None

    def estimator_for(self, rows: int) -> str:
        """The estimator for so many rows."""
        if self.estimator is not None:
            return self.estimator
        if rows <= EXACT_ROWS:
            return "exact"
        return "distributed" if rows <= DISTRIBUTED_ROWS else "nystroem"


@dataclass(frozen=True, kw_only=True)
class Method:
    """Both stages.

    Attributes
    ----------
    scales : tuple of Scale
        Of the inputs.
    kept : tuple of int
        Places of the inputs that stay original; they are released with the row they stood in.
    first_stage : str
        Of `dpdist.families.prediction.latin.FIRST_STAGES`, or a hook.
    bandwidth : {"cross-validated", "silverman"}
    matching : {"nearest", "independent"}
    alpha : float or None
        Share of the original row; None: the largest within `disclosure`.
    disclosure : Disclosure
    regression : Regression
    exact_rows, block_rows : int
    """

    scales: tuple[Scale, ...]
    disclosure: Disclosure
    kept: tuple[int, ...] = ()
    first_stage: str = "lhs"
    bandwidth: str = "cross-validated"
    matching: str = "nearest"
    alpha: float | None = None
    regression: Regression = field(default_factory=Regression)
    exact_rows: int = MATCHED_ROWS
    block_rows: int = BLOCK_ROWS

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
