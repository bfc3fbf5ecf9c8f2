"""The one YAML reader and writer of specs, schemas and settings: what a reviewer reads is what runs.

YAML 1.1 lets a later key replace an earlier one, reads ``10:00`` as 600, ``010`` as 8 and ``no`` as false, and lets a
short text stand for a table of billions of values. All of this is refused with the line and the key, as are
characters that an editor does not show, or shows elsewhere: some of them end a line for YAML only.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NoReturn

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from dpdist.errors import SpecError

DEEPEST: Final = 64
"""Most levels of mappings and lists inside each other."""

LONGEST_NUMBER: Final = 60
"""Most characters of a number."""

MOST_REPEATED: Final = 100_000
"""Most values that aliases may add to those that are written out."""

_NOT_ASCII = re.compile(r"\r(?!\n)|[^\t\r\n -~]")
"""Characters that may be hidden: all but printable ASCII, the tab, and line feeds with or without a carriage return."""

_HIDDEN = {"Cc", "Cf", "Cs", "Zl", "Zp", "Zs"}
"""Unicode categories of controls, of marks of direction or of no width, of surrogates, and of other blanks and ends of
lines."""

_BLANK = re.compile("[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0000-\U000e0fff]")
"""Characters of other categories that have no shape of their own: fillers, joiners, selectors of variants."""

_NO_TEXT = re.compile("[\0\ud800-\udfff]")
"""What escapes may stand for and no file holds: NUL, and halves of characters."""

_KEY = re.compile(r"[ -]*([A-Za-z0-9_.-]{1,40}):")
_MERGE = "tag:yaml.org,2002:merge"
_NUMBER = re.compile(
    r"[-+]?(0|[1-9][0-9]*|[1-9][0-9]{0,2}(_[0-9]{3})+|(0|[1-9][0-9]*)?\.[0-9]+|(0|[1-9][0-9]*)\.[0-9]*)([eE][-+]?[0-9]+)?"
)
_OTHER_NUMBER = re.compile(r"[-+]?0(o[0-7]+|[0-9]+)", re.ASCII)
"""Texts of YAML 1.1 that are numbers of YAML 1.2."""

_TRUTHS = {"true", "false", "True", "False", "TRUE", "FALSE"}


class _Refused(Exception):
    """What is refused, and its line."""

    def __init__(self, mark: Any, reason: str) -> None:
        super().__init__(f"line {mark.line + 1}: {reason}")


class _Loader(yaml.SafeLoader):
    """Refuses tags, and deep nesting before the composer descends into it."""

    _depth = 0

    def get_event(self) -> Any:
        event = super().get_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.NodeEvent) and getattr(event, "tag", None) not in (None, "!"):
            raise _Refused(event.start_mark, "tags such as !!int are not read: write the value without one")
        self._depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if self._depth > DEEPEST:
            raise _Refused(event.start_mark, f"sections or lists are nested more than {DEEPEST} deep")
        return event


def _short(text: str) -> str:
    return repr(text if len(text) <= 40 else f"{text[:40]}…")


def check_characters(text: str) -> None:
    """Refuse characters that an editor does not show, or shows in another place. Raises SpecError: there is one; the
    message has its line and its code point.
    """
    for match in _NOT_ASCII.finditer(text):
        if unicodedata.category(match[0]) in _HIDDEN or _BLANK.match(match[0]):
            line, code = text.count("\n", 0, match.start()) + 1, ord(match[0])
            name = f" ({unicodedata.name(match[0])})" if unicodedata.name(match[0], "") else ""
            key = _KEY.match(text, text.rfind("\n", 0, match.start()) + 1, match.start())
            raise SpecError(
                f"line {line}{f', {key[1]}' if key else ''}: the character U+{code:04X}{name} is "
                f'not shown, or shown like another one: leave it out, or write it in double quotes as "\\U{code:08X}"'
            )


def parse_yaml(text: str) -> Any:
    """The value of a YAML text. Raises SpecError: the text is not YAML, or what it says is not plain; the message has
    the line and the key.
    """
    check_characters(text)
    loader = None
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        if node is None:
            return None
        _check_size(node)
        _check_scalars(node)
        _check_keys(node, loader)
        return loader.construct_document(node)
    except _Refused as refused:
        raise SpecError(str(refused)) from None
    except yaml.YAMLError as error:
        where = getattr(error, "problem_mark", None)
        line = "" if where is None else f"line {where.line + 1}: "
        problem = getattr(error, "problem", None)
        raise SpecError(f"{line}not valid YAML{f' ({problem})' if problem else ''}") from None
    finally:
        if loader is not None:
            loader.dispose()


class _Writer(yaml.SafeDumper):
    """Quotes the texts that `parse_yaml` refuses as plain ones, and escapes characters that are not shown."""

    def write_double_quoted(self, text: str, split: bool = True) -> None:
        kept, self.allow_unicode = self.allow_unicode, not _is_hidden(text)
        super().write_double_quoted(text, split)
        self.allow_unicode = kept


def _represent_text(writer: _Writer, text: str) -> ScalarNode:
    if _NO_TEXT.search(text):
        raise SpecError("a text holds NUL or half a character, which no YAML file holds: leave it out")
    style = '"' if _is_hidden(text) else "'" if _OTHER_NUMBER.fullmatch(text) else None
    return writer.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Writer.add_representer(str, _represent_text)


def _is_hidden(text: str) -> bool:
    """Whether a text has characters that `check_characters` refuses, or ends of lines that YAML would change."""
    try:
        check_characters(text)
    except SpecError:
        return True
    return "\r" in text


def write_yaml(tree: Any, *, flow: bool = False) -> str:
    """A value as YAML that `parse_yaml` reads back as the same value. With `flow`, innermost lists and sections stand
    on one line. Raises SpecError: a text holds NUL or halves of characters, which no YAML file holds.
    """
    return yaml.dump(
        tree, Dumper=_Writer, default_flow_style=None if flow else False, sort_keys=False, allow_unicode=True, width=100
    )


def load_yaml(path: str | Path) -> Any:
    """The value of a YAML file. Raises SpecError: the file cannot be read, or as `parse_yaml`."""
    try:
        text = Path(path).read_bytes().decode("utf-8-sig")  # as it is: `read_text` would change the ends of lines
    except OSError as error:
        raise SpecError(f"cannot read {path}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise SpecError(f"{path} is not valid YAML: it is not text in UTF-8") from None
    try:
        return parse_yaml(text)
    except SpecError as error:
        raise SpecError(f"{path}, {error}") from None


def _children(node: Node) -> list[Node]:
    if isinstance(node, MappingNode):
        return [child for pair in node.value for child in pair]
    return list(node.value) if isinstance(node, SequenceNode) else []


def _check_size(root: Node) -> None:
    """Refuse aliases that repeat too many values, or themselves."""
    sizes: dict[int, int] = {}
    written = 0

    def size(node: Node, above: frozenset[int]) -> int:
        nonlocal written
        if id(node) in above:
            raise _Refused(node.start_mark, "an alias stands inside of what it repeats")
        if id(node) not in sizes:
            written += 1
            inside = above | {id(node)} if not isinstance(node, ScalarNode) else above
            sizes[id(node)] = 1 + sum(size(child, inside) for child in _children(node))
            if sizes[id(node)] > written + MOST_REPEATED:
                raise _Refused(node.start_mark, f"aliases repeat more than {MOST_REPEATED:,} values: write them out")
        return sizes[id(node)]

    size(root, frozenset())


def _walk(node: Node, key: str = "", seen: set[int] | None = None) -> Iterator[tuple[Node, str]]:
    """All nodes once, each with the key that it stands under."""
    seen = set() if seen is None else seen
    if id(node) in seen:
        return
    seen.add(id(node))
    yield node, key
    if isinstance(node, MappingNode):
        for name, value in node.value:
            yield from _walk(name, key, seen)
            yield from _walk(value, name.value if isinstance(name, ScalarNode) else key, seen)
    else:
        for child in _children(node):
            yield from _walk(child, key, seen)


def _check_keys(root: Node, loader: _Loader) -> None:
    """Refuse keys that stand twice in a section, whatever their spelling."""
    for node, _ in _walk(root):
        keys: set[Any] = set()
        for name, _ in node.value if isinstance(node, MappingNode) else ():
            if not isinstance(name, ScalarNode):
                raise _Refused(name.start_mark, "a key is a name or a number, not a list or a section")
            key = name.tag if name.tag == _MERGE else loader.construct_object(name)
            if key in keys:
                raise _Refused(name.start_mark, f"the key {_short(name.value)} stands here for the second time")
            keys.add(key)


def _check_scalars(root: Node) -> None:
    """Refuse plain values that YAML 1.1 and YAML 1.2 read differently, long numbers, and halves of characters."""
    for node, key in _walk(root):
        if isinstance(node, ScalarNode) and node.style is None:
            _check_plain(node, key)
        elif isinstance(node, ScalarNode) and (match := _NO_TEXT.search(node.value)):
            raise _Refused(
                node.start_mark, f"an escape stands for U+{ord(match[0]):04X}, which is no text: leave it out"
            )


def _check_plain(node: ScalarNode, key: str) -> None:
    kind = node.tag.rpartition(":")[2]
    if kind in ("int", "float"):
        if len(node.value) > LONGEST_NUMBER:
            _refuse(node, key, f"is a number of {len(node.value):,} characters: expected at most {LONGEST_NUMBER}")
        special = kind == "float" and node.value.lower().lstrip("+-") in (".inf", ".nan")
        if not special and not _NUMBER.fullmatch(node.value):
            value = yaml.safe_load(node.value)
            _refuse(node, key, f"is read as the number {value}: write that number, or put the text in quotes")
    elif kind == "bool" and node.value not in _TRUTHS:
        _refuse(node, key, "is read as true or false by some and as text by others: write true or false, or quote it")
    elif kind == "str" and _OTHER_NUMBER.fullmatch(node.value):
        _refuse(node, key, "is read as a number by some and as text by others: write that number, or quote the text")
    elif kind == "timestamp":
        _refuse(node, key, "is read as a date: put it in quotes")


def _refuse(node: ScalarNode, key: str, reason: str) -> NoReturn:
    where = f"{key[:40]}: " if key else ""
    raise _Refused(node.start_mark, f"{where}{_short(node.value)} {reason}")
