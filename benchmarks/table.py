"""The table of a benchmark: its columns, as Markdown and in a terminal."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

Row = dict[str, Any]


@dataclass(frozen=True)
class Column:
    """One column of the table; in a terminal it has a shorter title, so that all of them fit 100 letters."""

    title: str
    short: str
    cell: Callable[[Row], str]


def text(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def ratio(title: str, short: str, place: int = 0) -> Column:
    """How many times as fast that one of ours is which has this place in `Entry.against`."""

    def cell(line: Row) -> str:
        ratios = list(line["ratio"].values())
        return text(ratios[place], ".2f") if place < len(ratios) else ""

    return Column(title, short, cell)


MEASURED = (
    Column("", "", lambda line: line["name"]),
    Column("precision", "precision", lambda line: line["precision"]),
    Column("steps/s", "steps/s", lambda line: f"{line['median']:,.0f}"),
    Column("lowest to highest", "range", lambda line: f"{line['low']:,.0f} to {line['high']:,.0f}"),
)
GOAL = Column("goal", "goal", lambda line: text(line["goal"], "g"))
OTHERS = Column("CPU others had", "others", lambda line: text(line["others"], ".0%"))


def cells(line: Row, columns: Sequence[Column]) -> list[str]:
    """One line of the table."""
    if line["median"] is None:
        failed = [line["name"], line["precision"], f"failed: {line['failed'][-1]}"]
        return failed + [""] * (len(columns) - len(failed))
    return [column.cell(line) for column in columns]


def markdown(report: Row, columns: Sequence[Column]) -> str:
    lines = ["| " + " | ".join(column.title for column in columns) + " |", "|" + "---|" * len(columns)]
    rows = [cells(line, columns) for line in report["summary"]]
    lines += ["| " + " | ".join(cell.replace("|", "/") for cell in row) + " |" for row in rows]
    hardware = ", ".join(f"{name} {value}" for name, value in report["hardware"].items() if name != "flags")
    skipped = f"Skipped: {', '.join(report['skipped'])}.\n\n" if report["skipped"] else ""
    return "\n".join(lines) + f"\n\n{skipped}{report['date']}, {hardware}.\n\n    {report['command']}\n"


def show(report: Row, columns: Sequence[Column], console: Console) -> None:
    """The table without its failures, which come after it: one long message would leave no room for numbers."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for column in columns:
        words = column in MEASURED[:2]
        table.add_column(column.short, justify="left" if words else "right", no_wrap=not words, overflow="fold")
    for line in report["summary"]:
        if line["median"] is not None:
            table.add_row(*cells(line, columns))
    console.print(table)
    for line in report["summary"]:
        if line["median"] is None:
            console.print(f"{line['name']} failed: {line['failed'][-1]}")
