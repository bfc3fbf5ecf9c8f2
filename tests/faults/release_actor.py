"""The command line of dpdist, killed at a chosen point.

    release_actor.py POINT release SPEC ...

POINT is a stage (killed while it runs) or one of `COMMIT`: around what the publication writes down.
"""

import os
import signal
import sys
from collections.abc import Callable
from typing import Any

import dpdist.lifecycle.publication
import dpdist.lifecycle.run
from dpdist import cli
from dpdist.ledger import Books

COMMIT = ("before-commit", "before-manifest", "after-manifest")


def die(*_: Any, **__: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def before(function: Callable[..., Any]) -> Callable[..., Any]:
    return die


def after(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> None:
        function(*args, **kwargs)
        die()

    return call


def arm(point: str) -> None:
    """Let this process die at the point."""
    if point == "before-commit":
        Books.commit = before(Books.commit)  # type: ignore[method-assign]
    elif point == "before-manifest":
        dpdist.lifecycle.publication.publish = before(dpdist.lifecycle.publication.publish)
    elif point == "after-manifest":
        dpdist.lifecycle.publication.publish = after(dpdist.lifecycle.publication.publish)
    else:
        plain = dpdist.lifecycle.run.Run.__enter__
        calls: list[str] = []

        def progress(stage: str, done: int, total: int) -> None:
            calls.append(stage)
            if calls.count(point) == 2:  # the first call is before the stage's graph runs
                die()

        def enter(run: dpdist.lifecycle.run.Run) -> dpdist.lifecycle.run.Run:
            run.progress = progress
            return plain(run)

        dpdist.lifecycle.run.Run.__enter__ = enter  # type: ignore[method-assign]


if __name__ == "__main__":
    arm(sys.argv.pop(1))
    cli.main()
