"""Clients whose noisy sums a release is made of, from their first call to their last."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from dpdist.federated.client import Joined
from dpdist.federated.mailbox import calls_of
from dpdist.federated.messages import LEAST_SIGMA
from dpdist.federated.rounds import BEGUN_FILE, ClientCalls, FederatedAttempt, agree, begin
from dpdist.federated.session import ClientSession
from dpdist.federated.sums import Asking, remaining


@dataclass(frozen=True, eq=False)
class Together:
    """Clients that take part."""

    calls: ClientCalls
    members: dict[str, Joined]

    @classmethod
    def begun(cls, attempt: FederatedAttempt, session: Callable[..., ClientSession], *, known: bool) -> Together:
        """Let clients join and, unless all they will say is `known`, read. Raises RoundFailed: too few can go on."""
        calls = calls_of(attempt, session)
        together = cls(calls, begin(calls, known=known))
        attempt.keep(together)
        return together

    def draw(self) -> None:
        """Say that clients are about to draw noise."""
        self.calls.attempt.before_noise()
        self.calls.attempt.work.write_exclusive(BEGUN_FILE, b"")

    @property
    def noise(self) -> dict[str, Any]:
        """How wide the noise of the sums is, and how wide that of what is charged must be."""
        spec = self.calls.attempt.spec
        widening, least = spec.widening(len(self.members)), LEAST_SIGMA * math.sqrt(spec.honest)
        return {"widening": widening, "least": least}

    def asking(self, *, after: int = 0) -> Asking:
        """What asks for sums, and goes on `after` the questions of earlier steps, by their number."""
        asking = Asking(self.calls, self.members, self.noise["widening"])
        asking.follow(after)
        return asking

    def close(self) -> None:
        """Say who took part, and let those who are left commit."""
        attempt = self.calls.attempt
        left = remaining(attempt.work, self.members)
        attempt.public["clients"] = len(self.members)
        if len(left) < len(self.members):
            attempt.public["clients_lost"] = len(self.members) - len(left)
        attempt.before_commit = partial(agree, self.calls, left, least=attempt.spec.least_clients)
