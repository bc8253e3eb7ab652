"""Trained steps/s of our IMPALA beside its peers, on this machine's CPU: one table, and the raw rows behind it.

    python benchmarks/cpu.py --prototype DIR --sample-factory PYTHON --torchbeast CHECKOUT

Everything runs alone, in a process of its own, one after another; rounds are interleaved, so that a slow minute of the
machine meets all alike. Peers that are not given are skipped, and named. README.md here says what is compared.
"""

import argparse
import contextlib
import json
import os
import platform
import re
import resource
import shlex
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

PEERS = Path(__file__).resolve().parent / "peers"
WORLDS, UNROLL = 32, 32
OURS = ("longtail", "longtail fp32")
PRECISIONS = {"bfloat16": "bf16", "float32": "fp32"}
# Nobody may use a GPU, nor be held to one thread by what this shell happens to have set.
HIDDEN = {"CUDA_VISIBLE_DEVICES": ""}
UNSET = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")

Row = dict[str, Any]


@dataclass(frozen=True)
class Entry:
    """One thing to measure: a command, and how to read the rate in what it prints."""

    name: str
    command: tuple[str, ...]
    read: Callable[[str], Row]
    precision: str = "fp32"
    cwd: Path | None = None
    repeats: int = 1
    goal: float | None = None
    """How many times as fast as this ours should be."""


def read_json(output: str) -> Row:
    """The last line, as our drivers print it; `longtail.bench` has several rates, of which training counts."""
    lines = output.strip().splitlines()
    result = json.loads(lines[-1]) if lines else None
    if not isinstance(result, dict) or "steps_per_second" not in result:
        raise ValueError("its last line is no JSON object with steps_per_second")
    rate = result.pop("steps_per_second")
    parts = {"parts": rate} if isinstance(rate, dict) else {}
    row = {"steps_per_second": float(rate["train"] if parts else rate), "detail": result | parts}
    # What `auto` has chosen.
    return row | ({"precision": PRECISIONS[result["precision"]]} if "precision" in result else {})


def read_prototype(output: str) -> Row:
    found = re.search(r"^cpu ok ([0-9.]+)", output, re.MULTILINE)
    if found is None:
        raise ValueError("it printed no line 'cpu ok RATE'")
    return {"steps_per_second": float(found[1]), "detail": {}}


def ours(name: str, precision: str, seconds: float) -> Entry:
    settings = {"worlds": WORLDS, "unroll": UNROLL, "device": "cpu", "precision": precision, "seconds": seconds}
    code = f"import json; from longtail.bench import bench; print(json.dumps(bench(**{settings})))"
    return Entry(name, (sys.executable, "-c", code), read_json, precision)


def monobeast(name: str, network: str, args: argparse.Namespace, goal: float | None) -> Entry:
    driver = (str(PEERS / "monobeast.py"), "--checkout", str(args.torchbeast.resolve()), "--network", network)
    return Entry(name, (args.torchbeast_python, *driver, "--seconds", str(args.seconds)), read_json, goal=goal)


def entries(args: argparse.Namespace) -> list[Entry]:
    """What to measure, in order: us, and the peers that were given."""
    chosen = [ours(OURS[0], "auto", args.seconds / 4), ours(OURS[1], "fp32", args.seconds / 4)]
    if args.prototype:
        program = (sys.executable, "iteration.py", "--method", "impala", "--data", str(args.data.resolve()))
        # It measures eight iterations only, so it gets three tries a round.
        chosen.append(Entry("prototype", program, read_prototype, "bf16 encoder", args.prototype, 3, goal=2.7))
    if args.sample_factory:
        driver = (args.sample_factory, str(PEERS / "sample_factory.py"), "--seconds", str(args.seconds))
        chosen.append(Entry("Sample Factory", driver, read_json, goal=3))
    if args.torchbeast:
        chosen.append(monobeast("MonoBeast", "own", args, 20))
        chosen.append(monobeast("MonoBeast, our network", "same", args, None))
    return chosen


def measure(entry: Entry, timeout: float) -> Row:
    """Run it once. Whatever goes wrong becomes the row's `error`; no process of it is left behind."""
    env = {name: value for name, value in os.environ.items() if name not in UNSET} | HIDDEN
    began, used = time.perf_counter(), cpu_seconds()
    row: Row = {"name": entry.name, "precision": entry.precision}
    try:
        with subprocess.Popen(
            entry.command,
            cwd=entry.cwd,
            env=env,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        ) as process:
            try:
                output, errors = process.communicate(timeout=timeout)
            finally:
                _end_group(process.pid)
        if process.returncode:
            last = (errors.strip() or output.strip() or "nothing printed").splitlines()[-1]
            raise ValueError(f"exit status {process.returncode}: {last}")
        row |= entry.read(output) | {"others": others(used, time.perf_counter() - began)}
    except subprocess.TimeoutExpired:
        row["error"] = f"not done after {timeout:.0f} s"
    except (OSError, ValueError, KeyError) as error:
        text = str(error) if isinstance(error, ValueError) else repr(error)
        row["error"] = re.sub(r"(/[\w.+-]+)+/", "", text)  # rows are published: folders of this machine help nobody
    return row | {"wall_seconds": round(time.perf_counter() - began, 1)}


def _end_group(pid: int) -> None:
    """End the processes that a peer has left: some of them hang when one of their processes fails."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def cpu_seconds() -> tuple[float, float] | None:
    """What all processes and the hypervisor have used of the processors until now, and our ended children of that."""
    path = Path("/proc/stat")
    if not path.exists():
        return None
    user, nice, system, _, _, irq, softirq, steal, *_ = map(int, path.read_text().split("\n")[0].split()[1:])
    mine = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK"), mine.ru_utime + mine.ru_stime


def others(before: tuple[float, float] | None, seconds: float) -> float | None:
    """Share of the processors that somebody else had meanwhile: a rate measured beside others is no rate."""
    after = cpu_seconds()
    if before is None or after is None:
        return None
    return round(max(0.0, (after[0] - before[0]) - (after[1] - before[1])) / seconds / (os.cpu_count() or 1), 3)


def collect(chosen: Sequence[Entry], rounds: int, timeout: float, say: Callable[[str], None]) -> list[Row]:
    """Rounds of everything, interleaved."""
    rows = []
    for number in range(1, rounds + 1):
        for entry in chosen:
            for _ in range(entry.repeats):
                row = measure(entry, timeout) | {"round": number}
                rate = f"{row['steps_per_second']:,.0f} steps/s" if "error" not in row else f"failed: {row['error']}"
                say(f"round {number}: {entry.name}: {rate}")
                rows.append(row)
    return rows


def summarise(chosen: Sequence[Entry], rows: Sequence[Row]) -> list[Row]:
    """Medians over all rounds, and how many times as fast our two precisions are."""
    summary: list[Row] = []
    for entry in chosen:
        mine = [row for row in rows if row["name"] == entry.name]
        rates = [row["steps_per_second"] for row in mine if "error" not in row]
        precision = next((row["precision"] for row in mine if "error" not in row), entry.precision)
        line: Row = {"name": entry.name, "precision": precision, "runs": len(rates), "goal": entry.goal}
        line["failed"] = [row["error"] for row in mine if "error" in row]
        known = {"median": statistics.median(rates), "low": min(rates), "high": max(rates)} if rates else {}
        line["others"] = max((row["others"] for row in mine if row.get("others") is not None), default=None)
        summary.append(line | {"median": None, "low": None, "high": None} | known)
    medians = {line["name"]: line["median"] for line in summary}
    for line in summary:
        peer = line["median"]
        line["ratio"] = {name: medians[name] / peer if medians.get(name) and peer else None for name in OURS}
    return summary


def cells(line: Row) -> list[str]:
    """One line of the table."""
    if line["median"] is None:
        return [line["name"], line["precision"], f"failed: {line['failed'][-1]}", "", "", "", "", ""]
    ratios = [f"{ratio:.2f}" if (ratio := line["ratio"][name]) else "" for name in OURS]
    spread = f"{line['low']:,.0f} to {line['high']:,.0f}"
    goal = "" if line["goal"] is None else f"{line['goal']:g}"
    meanwhile = "" if line["others"] is None else f"{line['others']:.0%}"
    return [line["name"], line["precision"], f"{line['median']:,.0f}", spread, *ratios, goal, meanwhile]


RATIOS = tuple(f"{name} / this" for name in OURS)
COLUMNS = ("", "precision", "steps/s", "lowest to highest", *RATIOS, "goal", "CPU others had")
SHORT = ("", "precision", "steps/s", "range", "ours / it", "fp32 / it", "goal", "others")  # fits 100 letters


def markdown(report: Row) -> str:
    lines = ["| " + " | ".join(COLUMNS) + " |", "|" + "---|" * len(COLUMNS)]
    lines += ["| " + " | ".join(cell.replace("|", "/") for cell in cells(line)) + " |" for line in report["summary"]]
    hardware = ", ".join(f"{name} {value}" for name, value in report["hardware"].items() if name != "flags")
    skipped = f"Skipped: {', '.join(report['skipped'])}.\n\n" if report["skipped"] else ""
    return "\n".join(lines) + f"\n\n{skipped}{report['date']}, {hardware}.\n\n    {report['command']}\n"


def show(report: Row, console: Console) -> None:
    table = Table()
    for column in SHORT:
        table.add_column(column, justify="left" if column in ("", "precision") else "right", no_wrap=not column)
    for line in report["summary"]:
        table.add_row(*cells(line))
    console.print(table)


def hardware() -> Row:
    """The processor, as far as this system tells, and what matters for matrix products."""
    info: dict[str, str] = {}
    if (path := Path("/proc/cpuinfo")).exists():
        lines = [line.split(":", 1) for line in path.read_text().split("\n\n")[0].splitlines() if ":" in line]
        info = {name.strip(): value.strip() for name, value in lines}
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    flags = [flag for flag in info.get("flags", "").split() if re.match(r"avx512f|avx512_bf16|amx|avx2", flag)]
    return {"cpu": info.get("model name", platform.processor()), "cores": cores, "flags": flags}


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prototype", type=Path, metavar="DIR", help="folder with the prototype's iteration.py")
    parser.add_argument("--data", type=Path, metavar="DIR", help="the prototype's levels (default PROTOTYPE/../data)")
    parser.add_argument("--sample-factory", metavar="PYTHON", help="interpreter that has Sample Factory")
    parser.add_argument("--torchbeast", type=Path, metavar="CHECKOUT", help="checkout of TorchBeast")
    parser.add_argument("--torchbeast-python", default=sys.executable, metavar="PYTHON", help="default: this one")
    parser.add_argument("--rounds", type=int, default=3, help="default 3")
    parser.add_argument("--seconds", type=float, default=20, help="seconds to measure each for (default 20)")
    parser.add_argument("--timeout", type=float, default=300, help="seconds that a run may take (default 300)")
    parser.add_argument("--out", type=Path, default=Path("results/bench"), metavar="DIR", help="default results/bench")
    args = parser.parse_args(argv)
    for name in ("rounds", "seconds", "timeout"):
        if getattr(args, name) <= 0:
            parser.error(f"{name} is {getattr(args, name)}: it must be above 0")
    if args.prototype and not (args.prototype / "iteration.py").is_file():
        parser.error(f"prototype is {str(args.prototype)!r}: it must be a folder with iteration.py")
    if args.prototype and args.data is None:
        args.data = args.prototype / ".." / "data"
    return args


def command_line(args: argparse.Namespace) -> str:
    """The command, with words for the paths of this machine."""
    words = {"prototype": "DIR", "sample_factory": "PYTHON", "torchbeast": "CHECKOUT"}
    parts = ["python", "benchmarks/cpu.py", "--rounds", str(args.rounds), "--seconds", f"{args.seconds:g}"]
    for name, word in words.items():
        if getattr(args, name):
            parts += ["--" + name.replace("_", "-"), word]
    return shlex.join(parts)


def main(argv: Sequence[str] | None = None) -> int:
    args = parse(argv)
    console = Console(highlight=False)
    given = {
        "prototype": args.prototype,
        "Sample Factory (--sample-factory)": args.sample_factory,
        "MonoBeast (--torchbeast)": args.torchbeast,
    }
    skipped = [name for name, value in given.items() if not value]
    for name in skipped:
        console.print(f"not given, skipped: {name}")
    chosen = entries(args)
    rows = collect(chosen, args.rounds, args.timeout, console.print)
    report = {
        "command": command_line(args),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "hardware": hardware(),
        "versions": {"python": platform.python_version()} | {n: metadata.version(n) for n in ("longtail", "torch")},
        "settings": {"worlds": WORLDS, "unroll": UNROLL, "lstm": 256, "image": [84, 84, 3]},
        "skipped": skipped,
        "summary": summarise(chosen, rows),
        "rows": rows,
    }
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "cpu.json").write_text(json.dumps(report, indent=1) + "\n")
    (args.out / "cpu.md").write_text(markdown(report))
    show(report, console)
    console.print(f"rows: {args.out / 'cpu.json'}, table: {args.out / 'cpu.md'}")
    return 0 if any("error" not in row for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
