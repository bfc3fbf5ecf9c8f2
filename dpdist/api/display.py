"""What people see: bars on a terminal or in a notebook, plain lines elsewhere; and a plan as text or as a table."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from dpdist.privacy.formatting import Displayed, Fact, html_table, lines_of

if TYPE_CHECKING:
    from dpdist.families.base.attempt import Progress
    from dpdist.families.base.plan import Plan


class Text(str):
    """Lines of text; a string that notebooks show as a table."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return html_table(Fact("", line) for line in self.splitlines())


_TERMINALS = {"FORCE_COLOR", "TTY_COMPATIBLE"}
"""Variables by which rich takes a pipe for a terminal."""


def stage_bars(console: Any) -> Any:
    """The progress display of a release: a bar per stage, with the time that remains, then the time it took."""
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn

    return Progress(
        SpinnerColumn(finished_text="✓"),
        TextColumn("{task.description:<22}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeRemainingColumn(elapsed_when_finished=True),
        console=console,
    )


def _on_terminal() -> bool:
    """Whether standard error is a terminal; it may be closed, missing or replaced."""
    try:
        return bool(sys.stderr.isatty())
    except (AttributeError, ValueError):
        return False


def _console() -> Any:
    """The console of a terminal or of a notebook; None elsewhere."""
    if not (_on_terminal() or "IPython" in sys.modules or _TERMINALS & os.environ.keys()):
        return None  # rich need not be imported to know
    from rich.console import Console

    console = Console(stderr=True)
    return console if console.is_terminal or console.is_jupyter else None


_shown: list[Any] = []
"""The live display, which paints over whatever else is printed."""

_quiet: list[bool] = []
"""Whether progress is not shown (``--quiet``)."""


def hush(asked: bool) -> None:
    """Show no progress from now on, if `asked`."""
    _quiet[:] = [True] * asked


def stop_bars() -> None:
    """Take the live display away, so that what is printed next stays."""
    while _shown:
        _shown.pop().stop()


@contextmanager
def bars() -> Iterator[Any]:
    """One progress bar per stage on a terminal or in a notebook; one plain line per finished stage elsewhere.

    At the end the time that all of it took.
    """
    start, console = time.monotonic(), _console()
    if _quiet:
        yield lambda *_: None
        return
    if console is None:
        finished: set[str] = set()

        def plain(stage: str, done: int, total: int) -> None:
            if total and done >= total and stage not in finished:
                finished.add(stage)
                print(f"{stage}: done", file=sys.stderr)

        yield plain
        print(f"total: {time.monotonic() - start:.1f} s", file=sys.stderr)
        return
    with stage_bars(console) as progress:
        tasks: dict[str, Any] = {}
        _shown.append(progress)

        def draw(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = progress.add_task(stage, total=max(total, 1))
            progress.update(tasks[stage], completed=done if total else 1, total=max(total, 1))

        try:
            yield draw
        finally:
            _shown.clear()
    console.print(f"  {'total':<22}{time.monotonic() - start:.1f} s", highlight=False)


@contextmanager
def shown(progress: bool | Progress) -> Iterator[Progress]:
    """What a call reports to: bars, the caller's function, or nothing."""
    if progress is True:
        with bars() as drawn:
            yield drawn
    else:
        from dpdist.families.base.attempt import silent

        yield progress or silent


class PlannedRelease(Displayed):
    """What `dpdist.plan` returns.

    Attributes
    ----------
    plan : Plan
        Of the family.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan

    @property
    def guarantee(self) -> str:
        """What the release would guarantee, in sentences."""
        return " ".join(guarantee.sentence() for guarantee in self.plan.guarantees)

    @property
    def epsilon(self) -> float:
        """Epsilon of the charge."""
        return self.plan.epsilon

    @property
    def delta(self) -> float:
        """Delta at which the guarantee is stated."""
        return self.plan.delta

    def to_json(self) -> dict[str, Any]:
        """The plan as JSON values."""
        return self.plan.to_json()

    def facts(self, *, details: bool = True) -> list[Fact]:
        """What the plan says, the budget before and after it, and whether the contract is kept; without `details`,
        what people ask first.
        """
        from dpdist.ledger.statement import account_facts

        facts = sorted((*self.plan.facts(), *account_facts(self.plan)), key=lambda fact: fact.detail)
        return [fact for fact in facts if details or not fact.detail]

    def explain(self) -> str:
        """All facts as text, a line for each."""
        return "\n".join(lines_of(self.facts()))

    def _facts(self) -> list[Fact]:
        return self.facts(details=False)

    @property
    def _heading(self) -> str:
        return f"Plan of {self.plan.spec.name}"
