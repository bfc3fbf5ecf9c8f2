"""What tests of interrupted releases share: acting when a stage begins, and what must come out."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from dpdist.errors import DpdistError
from dpdist.families.base.attempt import Progress
from dpdist.families.deniability.spec import PlausibleDeniabilitySpec
from dpdist.ledger import Books
from dpdist.lifecycle import publication
from dpdist.publish.verify import verify
from dpdist.spec.release import ReleaseSpec
from dpdist.storage.store import Store

MOMENTS = (
    "charge",
    "reading",
    "counting",
    "learning parameters",
    "indexing seeds",
    "synthesising",
    "writing",
    "publishing",
    "commit",
    "manifest",
)
"""When a fault may strike: as the key is shared, as a stage begins, before the ledger commits, before the manifest."""

_CALLS = {"charge": (Books, "share_key"), "commit": (Books, "commit"), "manifest": (publication, "publish")}


@contextmanager
def at_moments(act: Callable[[str], Any]) -> Iterator[Progress]:
    """Call `act` with each moment of a run as it comes, once; yields the progress to give to the run."""
    met: set[str] = set()

    def meet(moment: str, *_: int) -> None:
        if moment in MOMENTS and moment not in met:
            met.add(moment)
            act(moment)

    with ExitStack() as stack:
        for moment, (holder, name) in _CALLS.items():
            plain = getattr(holder, name)

            def call(*args: Any, moment: str = moment, plain: Any = plain, **kwargs: Any) -> Any:
                meet(moment)
                return plain(*args, **kwargs)

            setattr(holder, name, call)
            stack.callback(setattr, holder, name, plain)
        yield meet


@contextmanager
def at(chosen: str, act: Callable[[], Any]) -> Iterator[Progress]:
    """As `at_moments`, for one moment."""
    with at_moments(lambda moment: act() if moment == chosen else None) as progress:
        yield progress


def broken_at_each(
    moments: Sequence[str], run: Callable[[Progress, bool], Any], act: Callable[[], Any]
) -> Iterator[DpdistError]:
    """Run a release, broken by `act` at each moment in turn and resumed for the next; yield what each run raised."""
    for number, moment in enumerate(moments):
        with at(moment, act) as progress, pytest.raises(DpdistError) as caught:
            run(progress, number > 0)
        yield caught.value


def states(spec: ReleaseSpec) -> list[str]:
    ledger = Books.open(spec.ledger, create=False)
    try:
        ledger.verify(spec.dataset)
        return [attempt.state for attempt in ledger.show(spec.dataset).attempts]
    finally:
        ledger.close()


def whole(spec: PlausibleDeniabilitySpec, calm: list[bytes], *, before: Sequence[str] = ()) -> None:
    """The release is what it is without faults, and was charged once; `before` are attempts given back."""
    verify(spec.output.path)
    output = Store(spec.output.path)
    assert [output.read_bytes(name) for name in output.names() if name.endswith(".parquet")] == calm
    assert states(spec) == [*before, "committed"]
