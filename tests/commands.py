"""The command line in the process of the tests: all but the start of an interpreter."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Answer:
    """How a command ended and what it printed."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """What it printed, as JSON."""
        return json.loads(self.out)

    @property
    def words(self) -> str:
        """What it printed in one line, however wide the terminal is."""
        return " ".join(self.out.split())


Command = Callable[..., Answer]
