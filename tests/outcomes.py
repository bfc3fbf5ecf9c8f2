"""What tests of interrupted releases share: acting when a stage begins, and what must come out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from clusters import parts

from dpdist.privacy.ledger import Ledger
from dpdist.publish.verify import verify
from dpdist.synthesis.spec import PlausibleDeniabilitySpec


def at(stage: str, act: Callable[[], Any]) -> Callable[[str, int, int], None]:
    """Progress that acts once, when a stage begins."""
    done: list[str] = []

    def progress(name: str, *_: int) -> None:
        if name == stage and not done:
            done.append(name)
            act()

    return progress


def states(spec: PlausibleDeniabilitySpec) -> list[str]:
    ledger = Ledger.open(spec.ledger, create=False)
    try:
        ledger.verify(spec.dataset)
        return [attempt.state for attempt in ledger.show(spec.dataset).attempts]
    finally:
        ledger.close()


def whole(spec: PlausibleDeniabilitySpec, calm: list[bytes]) -> None:
    """The release is what it is without faults, and was charged once."""
    verify(spec.output.path)
    assert parts(Path(spec.output.path)) == calm
    assert states(spec) == ["committed"]
