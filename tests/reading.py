"""The words of a text that a test searches for private numbers, without those that would match by chance."""

import re

_BY_CHANCE = re.compile(
    r"""
    0x[0-9a-f]+                                                     # the address of an object
    | \b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b               # the id of an attempt
    | \b(?:sha256:)?[0-9a-f]{16,}\b                                 # a digest
    | \bdata/[0-9a-f]{8}\b                                          # the parts of an attempt
    | "bytes":\ \d+(?=,(?:\s|\\n)+"name")                           # the size of a published file
    | \b\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d(?:\.\d+)?)?            # a time
    | pytest-of-[^/]+/pytest-\d+(?:/popen-gw\d+)?(?:/[^/\s'":]*\d)?  # a folder of the tests
    """,
    re.VERBOSE,
)


def readable(*things: object) -> str:
    """The texts of some things, without the digits that differ from run to run."""
    return _BY_CHANCE.sub("…", "\n".join(thing if isinstance(thing, str) else repr(thing) for thing in things))
