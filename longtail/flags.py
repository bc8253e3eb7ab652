"""Flags as dataclasses: tyro parses them, and a mistake is one line in the words of all our errors."""

import io
import re
import warnings
from contextlib import redirect_stderr, suppress
from itertools import dropwhile, takewhile
from typing import TypeVar, cast

import tyro
from tyro.conf import AvoidSubcommands
from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

T = TypeVar("T")
REGISTRY = ConstructorRegistry()


@REGISTRY.primitive_rule
def _whole_numbers(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[int] | None:
    if info.type is not int:
        return None
    return PrimitiveConstructorSpec(
        nargs=1,
        metavar="INT",
        instance_from_str=lambda words: whole(words[0]),
        is_instance=lambda value: isinstance(value, int) and not isinstance(value, bool),
        str_from_instance=lambda value: [str(value)],
    )


def whole(text: str) -> int:
    """A whole number as people write them: 40_000_000, and 4e7 as well."""
    try:
        return int(text)
    except ValueError:
        with suppress(ValueError):
            if (value := float(text)).is_integer():
                return int(value)
        raise


def parse(kind: type[T], argv: list[str], command: str, default: T | None = None) -> T:
    """Arguments as a dataclass; a mistake is a ValueError of one line instead of tyro's box."""
    box = io.StringIO()
    try:
        with redirect_stderr(box), warnings.catch_warnings(), REGISTRY:
            warnings.simplefilter("ignore")  # tyro's, about a world of somebody's own: RunConfig does not declare it
            parsed = tyro.cli(kind, args=argv, default=default, prog=f"longtail {command}", config=(AvoidSubcommands,))
            return cast(T, parsed)
    except SystemExit as end:
        if not end.code:
            raise
        raise ValueError(f"{one_line(box.getvalue())} (longtail {command} --help lists all flags)") from None


# What tyro says, in the words of all our errors: field, value, what would be right.
REWORDED = (
    (r"^Error parsing (?!-)\S+: ", ""),  # the error names the field itself
    (r"^Error parsing (\S+): invalid literal for int\(\).*: (.*)$", r"\1 is \2: it must be a whole number"),
    (r"^Error parsing (\S+): could not convert string to float: (.*)$", r"\1 is \2: it must be a number"),
    (r"^Error parsing (\S+): no type matching .*INT .*\[(.*)\]\.$", r"\1 is \2: it must be a whole number"),
    (r"^Missing value for argument '(\S+)'.*$", r"\1 has no value: one must follow it"),
    (r"^Missing from longtail \w+: (\w+) .*$", r"\1 is missing"),
    (r"^[Ii]nvalid choice (.*) for argument '(\S+)'\. Expected one of \((.*)\)\.$", r"\2 is \1: it must be one of \3"),
    (r"^Unrecognized options: ", "not understood: "),
)


def one_line(box: str) -> str:
    """What a box of tyro's says: its first part, and the nearest flag if it suggests one."""
    lines = [line.strip("│╭╮╰╯ \n") for line in box.splitlines()]
    # Under its title, a rule of hyphens where stdout is not UTF-8; a rule again below the first part.
    body = list(dropwhile(_is_rule, lines[1:]))
    text = " ".join(takewhile(lambda line: not _is_rule(line), body))
    for pattern, words in REWORDED:
        text = re.sub(pattern, words, text)
    near = re.search(r"Perhaps you meant:\s*(--[^\s,]+)", box.replace("│", " "))
    return f"{text}; did you mean {near[1]}?" if near else text


def _is_rule(line: str) -> bool:
    return not line.strip("─-")
