"""What a reader of a release opens at most: whoever made it may have written anything.

Everything larger is refused before memory is taken for it, and nothing larger is published. ``docs/release-format.md``
has the same numbers.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

from dpdist.errors import VerificationFailed

MANIFEST_BYTES: Final = 64 << 20
"""Size of a manifest, and of a model's description."""

JSON_VALUES: Final = 1_000_000
"""Numbers, texts and sections in one of them."""

PART_BYTES: Final = 1 << 30
"""Size of a part, and of a model's file. A reader holds one of them at a time."""

PART_ROWS: Final = 10_000_000
"""Rows of a part."""

GROUP_BYTES: Final = 1 << 30
"""Size of a row group of a part or of a model's file when it is decompressed."""

GROUP_TEXT_BYTES: Final = 1 << 28
"""Size of its columns of texts."""

PAGES: Final = 100_000
"""Pages of a part or of a model's file."""

HEADER_BYTES: Final = 1 << 24
"""Size of the headers of all its pages: a reader's time grows with them."""

MODEL_ARRAYS: Final = 1 << 16
"""Arrays of a model."""

MODEL_VALUES: Final = 1 << 27
"""Numbers in a file of a model: 1 GiB of memory."""

REPLICATE_VALUES: Final = 1 << 31
"""Released records times replicates: 8 GiB of memory."""

EVENTS: Final = 1_000
"""Privacy events of a release."""

EVENT_SECONDS: Final = 60
"""Time in which a guarantee is recomputed from them."""


@contextmanager
def within(seconds: int, what: str) -> Iterator[None]:
    """Bound the time of a block, in the main thread of a process, which alone receives signals.
    Raises VerificationFailed: the time is over.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def over(number: int, frame: FrameType | None) -> None:
        raise VerificationFailed(f"{what} takes more than {seconds} seconds: do not use the release")

    before = signal.signal(signal.SIGALRM, over)
    running, _ = signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, running)
        signal.signal(signal.SIGALRM, before)
