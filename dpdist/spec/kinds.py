"""What a spec names and a process imports: its kind, a family of some distribution, and functions of the user."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from importlib.metadata import EntryPoint, EntryPoints, PackageNotFoundError, distribution, entry_points
from typing import Any

from dpdist.errors import SpecError
from dpdist.spec.release import ReleaseSpec

GROUP = "dpdist.families"
"""The group of entry points by which families are found."""


class Families(MutableMapping[str, Any]):
    """The families by the `kind` of their specs: each is imported when it is first asked for.

    An installed distribution offers a family by an entry point of the group `GROUP`: its name is the kind, its object
    the `dpdist.families.base.family.Family`, whose `spec_class` reads the specs of this kind. Iteration lists the kinds
    and imports nothing; those of dpdist come first, and no other distribution can take them. Raises SpecError: dpdist
    is not installed; a family cannot be imported, is of another kind, or is offered by two distributions.
    """

    def __init__(self) -> None:
        self._known: dict[str, Any] = {}

    @functools.cached_property
    def _shipped(self) -> EntryPoints:
        """The entry points of dpdist: found at once, where finding all takes 10 to 20 ms."""
        try:
            shipped = distribution("dpdist").entry_points.select(group=GROUP)
        except PackageNotFoundError:
            raise SpecError(
                "dpdist is not installed, so no family is found: run `make setup` in its tree, or install it by pip"
            ) from None
        if not shipped:
            raise SpecError("the installation of dpdist is older than its code: run `make setup` again")
        return shipped

    @functools.cached_property
    def _installed(self) -> EntryPoints:
        """The entry points of all distributions."""
        return entry_points(group=GROUP)

    def __getitem__(self, kind: str) -> Any:
        if kind not in self._known:
            offered = self._shipped.select(name=kind) or self._installed.select(name=kind)
            if not offered:
                raise KeyError(kind)
            self._known[kind] = _loaded(tuple(offered))
        return self._known[kind]

    def __setitem__(self, kind: str, family: Any) -> None:
        self._known[kind] = family

    def __delitem__(self, kind: str) -> None:
        del self._known[kind]

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys((*sorted(self._shipped.names), *sorted(self._installed.names), *self._known)))

    def __len__(self) -> int:
        return len(list(iter(self)))


FAMILIES = Families()
"""The families of this process."""


def _loaded(offered: Sequence[EntryPoint]) -> Any:
    """The family of a kind, from the distributions that offer it. Raises SpecError."""
    kind, names = offered[0].name, [entry.dist.name if entry.dist else entry.value for entry in offered]
    if len(offered) > 1:
        raise SpecError(f"kind {kind!r} is offered by {' and '.join(sorted(names))}: uninstall all but one")
    try:
        family = offered[0].load()
    except (ImportError, AttributeError) as error:
        raise SpecError(f"kind {kind!r} of {names[0]} cannot be imported ({error}): install it again") from error
    spec_class = getattr(family, "spec_class", None)
    if not (isinstance(spec_class, type) and issubclass(spec_class, ReleaseSpec)) or family.kind != kind:
        raise SpecError(f"kind {kind!r} of {names[0]}: {offered[0].value} is no `Family` of this kind")
    return family


HOOK = r"^[A-Za-z_][A-Za-z0-9_.]*:[A-Za-z_][A-Za-z0-9_]*$"
"""What a hook looks like: a function or class of a user, which runs on original records with the release's rights."""


def named_hook(hook: Any) -> Any:
    """A class or function as ``module:name``, which a spec made in Python may give instead; other values unchanged."""
    return f"{hook.__module__}:{hook.__qualname__}" if callable(hook) else hook


def load_hook(hook: str, *, setting: str) -> Callable[..., Any]:
    """The function that a hook names. Raises SpecError: there is no such module or function, or it cannot be called."""
    module, _, name = hook.partition(":")
    try:
        function: Callable[..., Any] = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError):
        raise SpecError(f"{setting}: there is no {hook!r}; give module:function, importable by every worker") from None
    if not callable(function):
        raise SpecError(f"{setting}: {hook!r} cannot be called")
    return function
