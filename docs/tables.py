"""Every table of results in the docs, rebuilt from the raw rows under results/.

    python docs/tables.py            (or: make figures)

A table stands between `<!-- table: NAME -->` and `<!-- end of table -->`; NAME is a function here. A table whose rows
do not exist yet stays empty, and is named. The demo's rows are made by:
make demo && cp runs/demo/{config,manifest,summary}.json runs/demo/eval.csv results/demo/
"""

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import fmean, median

import method_tables
from rows import SCORES, discovered, markdown, read_rows, source, spread, walkers

from longtail.runfolder import read_config
from longtail.scores import references
from longtail.worlds import make

ROOT = Path(__file__).parents[1]
PAGES = (
    ROOT / "README.md", *(ROOT / "docs" / f"{n}.md" for n in ("performance", "learning", "memory", "first-look"))
)  # fmt: skip
MARK = re.compile(r"(<!-- table: (\w+) -->\n)(.*?)(<!-- end of table -->)", re.DOTALL)


def demo(results: Path) -> str:
    """The agent of `make demo`, those who have not learned, and what the numbers were made by."""
    folder = results / "demo"
    summary, manifest = (json.loads((folder / name).read_text()) for name in ("summary.json", "manifest.json"))
    config = read_config(folder)
    agent = (f"{s['value']:.1f} ({s['low']:.1f} to {s['high']:.1f})" for s in (summary[score] for score in SCORES))
    rows = [[config.method, *agent]]
    for who, scores in references(config.world, make(config.world, 1).tasks).items():
        rows.append([who, *(f"{scores[score]:.1f}" for score in SCORES)])
    last, minutes = manifest["sessions"][-1], manifest["wall_seconds"] / 60
    hardware = f"{last['hardware']['cpus']} cores ({last['hardware']['cpu']}, {last['precision']})"
    about = f"In brackets 95 % intervals. {last['to_step']:,} steps, {minutes:.1f} minutes on {hardware}."
    picture = "![Success of every task, and how often training saw it](docs/img/demo.png)"
    return f"{markdown(('success in %', *SCORES), rows)}\n{about}\n\n{picture}\n"


def cpu(results: Path) -> str:
    return (results / "bench" / "cpu.md").read_text()


def gpu(results: Path) -> str:
    return (results / "bench" / "gpu.md").read_text()


def speed(results: Path) -> str:
    """One line for each device: our training rates, and how many times as fast they are as others' in the same run."""
    lines = []
    for name in ("cpu", "gpu"):
        report = json.loads((results / "bench" / f"{name}.json").read_text())
        where = report["hardware"].get("gpu") or f"{report['hardware']['cores']} cores, {report['hardware']['cpu']}"
        for line in report["summary"]:
            if line["name"] == "longtail" or line["name"].startswith("longtail,"):
                worlds = line["name"].partition(", ")[2] or f"{report['settings']['worlds']} worlds"
                others = (
                    f"{other['ratio'][line['name']]:.1f} x {other['name'].removesuffix(f', {worlds}')}"
                    for other in report["summary"]
                    if line["name"] in other["ratio"] and not other["name"].startswith("longtail")
                )
                lines.append([where, worlds, f"{line['median']:,.0f}", "; ".join(others)])
    return markdown(("on", "", "trained steps/s", "in the same run"), lines)


def parts(results: Path) -> str:
    """Our own rates part by part, medians over the rounds of both benchmarks."""
    reports = [json.loads((results / "bench" / name).read_text()) for name in ("cpu.json", "gpu.json")]
    found: dict[str, list[dict[str, float]]] = {}
    for report in reports:
        for row in report["rows"]:
            if "parts" in row.get("detail", {}):
                name = f"{row['detail']['device']}, {row['detail']['worlds']} worlds, {row['detail']['precision']}"
                found.setdefault(name, []).append(row["detail"]["parts"])
    names = list(next(iter(found.values()))[0])
    lines = [[where, *(f"{median(run[n] for run in runs):,.0f}" for n in names)] for where, runs in found.items()]
    return markdown(("steps/s", *names), lines)


def select(results: Path) -> str:
    """Means over the sets of generated levels, best first."""
    rows = read_rows(results / "learning" / "select-impala-4M.csv")
    about = json.loads((results / "learning" / "select-impala-4M.json").read_text())
    grid = sorted({(row["learning_rate"], row["entropy_cost"]) for row in rows})
    lines = []
    for point in grid:
        mine = [row for row in rows if (row["learning_rate"], row["entropy_cost"]) == point]
        values = {score: [float(row[score]) for row in mine] for score in SCORES}
        lowest = f"{min(values['uniform']):.1f} to {max(values['uniform']):.1f}"
        lines.append([*point, str(len(mine)), *(f"{fmean(values[score]):.1f}" for score in SCORES), lowest])
    lines.sort(key=lambda line: -float(line[3 + SCORES.index(about["chosen_by"])]))
    titles = ("learning rate", "entropy cost", "runs", *SCORES, "uniform, lowest to highest")
    return f"{markdown(titles, lines)}\n{source(about)}\n"


def judge(results: Path) -> str:
    """Means over seeds with the spread between them, beside a random walk and shortest paths."""
    lines, abouts = [], []
    for name, steps in (("judge-impala-4M", "4 million"), ("judge-impala-12.5M", "12.5 million")):
        rows = read_rows(results / "learning" / f"{name}.csv")
        values = {score: [float(row[score]) for row in rows] for score in SCORES}
        lines.append([f"IMPALA, {steps} steps", str(len(rows)), *map(spread, values.values())])
        abouts.append(source(json.loads((results / "learning" / f"{name}.json").read_text())))
    titles = ("success in %, mean (lowest to highest)", "seeds", *SCORES)
    return f"{markdown(titles, [*lines, *walkers()])}\n" + "\n".join(abouts) + "\n"


def discovery(results: Path) -> str:
    """How many seeds have found each of the most frequent tasks (success of more than a half)."""
    names = {"seeds, 4M": "judge-impala-4M-tasks", "seeds, 12.5M": "judge-impala-12.5M-tasks"}
    return discovered({title: read_rows(results / "learning" / f"{name}.csv") for title, name in names.items()})


TABLES: dict[str, Callable[[Path], str]] = {
    table.__name__: table for table in (demo, speed, cpu, gpu, parts, select, judge, discovery, *method_tables.TABLES)
}


def with_tables(text: str, results: Path) -> tuple[str, list[str]]:
    """A page with its tables rebuilt, and the names of those that have no rows yet."""
    missing: list[str] = []

    def rebuilt(match: re.Match[str]) -> str:
        try:
            return f"{match[1]}{TABLES[match[2]](results)}{match[4]}"
        except FileNotFoundError:
            missing.append(match[2])
            return f"{match[1]}{match[4]}"

    return MARK.sub(rebuilt, text), missing


if __name__ == "__main__":
    for page in PAGES:
        text, missing = with_tables(page.read_text(), ROOT / "results")
        page.write_text(text)
        for name in missing:
            print(f"{page.name}: no rows for the table {name!r}", file=sys.stderr)
