"""What the benchmarks share: entries are run alone, in processes of their own, in interleaved rounds; then a report.

A script says what to measure (`Entry`) and how to show it (`Benchmark`); `run` does the rest.
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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

from rich.console import Console
from table import Column, Row, markdown, show

from longtail import __version__

UNROLL = 32
SAME = {"unroll": UNROLL, "lstm": 256, "image": [84, 84, 3]}
PARTS = 4  # that `longtail.bench` measures, each for as long
PRECISIONS = {"bfloat16": "bf16", "float32": "fp32"}
# Nobody may be held to one thread by what this shell happens to have set.
UNSET = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


@dataclass(frozen=True)
class Entry:
    """One thing to measure: a command, and how to read the rate in what it prints."""

    name: str
    command: tuple[str, ...]
    read: Callable[[str], Row]
    precision: str = "fp32"
    cwd: Path | None = None
    repeats: int = 1
    against: tuple[str, ...] = ()
    """The entries of ours that this is compared with."""
    goal: float | None = None
    """How many times as fast as this the first of those should be."""


@dataclass(frozen=True)
class Peer:
    """An argument that says where to find one of the others, what is said of it if missing, and a word for its path."""

    argument: str
    title: str
    word: str


@dataclass(frozen=True)
class Benchmark:
    name: str
    """Of what it writes."""
    peers: tuple[Peer, ...]
    columns: tuple[Column, ...]
    settings: Row
    hardware: Callable[[], Row]
    env: Mapping[str, str] = field(default_factory=dict)
    """What every process finds in its environment."""
    script: str | None = None
    """Its file, where it is not named after what it writes."""


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


def ours(name: str, worlds: int, device: str, precision: str, seconds: float, method: str = "impala") -> Entry:
    settings: Row = {"worlds": worlds, "unroll": UNROLL, "device": device, "precision": precision, "method": method}
    settings["seconds"] = seconds / PARTS
    code = f"import json; from longtail.bench import bench; print(json.dumps(bench(**{settings})))"
    return Entry(name, (sys.executable, "-c", code), read_json, precision)


def prototype(args: argparse.Namespace, method: str = "impala") -> tuple[str, ...]:
    return (sys.executable, "iteration.py", "--method", method, "--data", str(args.data.resolve()))


def measure(entry: Entry, timeout: float, env: Mapping[str, str]) -> Row:
    """Run it once. Whatever goes wrong becomes the row's `error`; no process of it is left behind."""
    env = {name: value for name, value in os.environ.items() if name not in UNSET} | dict(env)
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


def collect(
    chosen: Sequence[Entry], rounds: int, timeout: float, env: Mapping[str, str], say: Callable[[str], None]
) -> list[Row]:
    """Rounds of everything, interleaved."""
    rows = []
    for number in range(1, rounds + 1):
        for entry in chosen:
            for _ in range(entry.repeats):
                row = measure(entry, timeout, env) | {"round": number}
                rate = f"{row['steps_per_second']:,.0f} steps/s" if "error" not in row else f"failed: {row['error']}"
                say(f"round {number}: {entry.name}: {rate}")
                rows.append(row)
    return rows


def summarise(chosen: Sequence[Entry], rows: Sequence[Row]) -> list[Row]:
    """Medians over all rounds, and how many times as fast those of ours are that each is compared with."""
    summary = [_line(entry, [row for row in rows if row["name"] == entry.name]) for entry in chosen]
    medians = {line["name"]: line["median"] for line in summary}
    for entry, line in zip(chosen, summary, strict=True):
        mine = line["median"]
        line["ratio"] = {n: medians[n] / mine if medians.get(n) and mine else None for n in entry.against}
    return summary


def _line(entry: Entry, rows: Sequence[Row]) -> Row:
    worked = [row for row in rows if "error" not in row]
    rates = [row["steps_per_second"] for row in worked]
    precision = next((row["precision"] for row in worked), entry.precision)
    line: Row = {"name": entry.name, "precision": precision, "runs": len(rates), "goal": entry.goal}
    line["failed"] = [row["error"] for row in rows if "error" in row]
    line["others"] = max((row["others"] for row in rows if row.get("others") is not None), default=None)
    known = {"median": statistics.median(rates), "low": min(rates), "high": max(rates)} if rates else {}
    memory = [row["detail"]["gpu_memory_gib"] for row in worked if row.get("detail", {}).get("gpu_memory_gib")]
    known |= {"gpu_memory_gib": max(memory)} if memory else {}
    return line | {"median": None, "low": None, "high": None} | known


def hardware() -> Row:
    """The processor, as far as this system tells, and what matters for matrix products."""
    info: dict[str, str] = {}
    if (path := Path("/proc/cpuinfo")).exists():
        lines = [line.split(":", 1) for line in path.read_text().split("\n\n")[0].splitlines() if ":" in line]
        info = {name.strip(): value.strip() for name, value in lines}
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    flags = [flag for flag in info.get("flags", "").split() if re.match(r"avx512f|avx512_bf16|amx|avx2", flag)]
    return {"cpu": info.get("model name", platform.processor()), "cores": cores, "flags": flags}


def arguments(description: str | None, rounds: int, seconds: float) -> argparse.ArgumentParser:
    """A parser of what all benchmarks take."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prototype", type=Path, metavar="DIR", help="folder with the prototype's iteration.py")
    parser.add_argument("--data", type=Path, metavar="DIR", help="the prototype's levels (default PROTOTYPE/../data)")
    parser.add_argument("--rounds", type=int, default=rounds, help=f"default {rounds}")
    about = f"seconds to measure each for, the prototype aside (default {seconds:g})"
    parser.add_argument("--seconds", type=float, default=seconds, help=about)
    parser.add_argument("--timeout", type=float, default=300, help="seconds that a run may take (default 300)")
    parser.add_argument("--out", type=Path, default=Path("results/bench"), metavar="DIR", help="default results/bench")
    return parser


def checked(parser: argparse.ArgumentParser, argv: Sequence[str] | None) -> argparse.Namespace:
    args = parser.parse_args(argv)
    for name in ("rounds", "seconds", "timeout"):
        if getattr(args, name) <= 0:
            parser.error(f"{name} is {getattr(args, name)}: it must be above 0")
    if args.prototype and not (args.prototype / "iteration.py").is_file():
        parser.error(f"prototype is {str(args.prototype)!r}: it must be a folder with iteration.py")
    if args.prototype and args.data is None:
        args.data = args.prototype / ".." / "data"
    return args


def command_line(benchmark: Benchmark, args: argparse.Namespace) -> str:
    """The command, with words for the paths of this machine."""
    script, seconds = f"benchmarks/{benchmark.script or benchmark.name}.py", f"{args.seconds:g}"
    parts = ["python", script, "--rounds", str(args.rounds), "--seconds", seconds]
    for peer in benchmark.peers:
        if getattr(args, peer.argument):
            parts += ["--" + peer.argument.replace("_", "-"), peer.word]
    return shlex.join(parts)


def run(benchmark: Benchmark, args: argparse.Namespace, chosen: Sequence[Entry]) -> int:
    """Measure everything, print and write the report; returns the exit code."""
    console = Console(highlight=False, markup=False)
    skipped = [peer.title for peer in benchmark.peers if not getattr(args, peer.argument)]
    for name in skipped:
        console.print(f"not given, skipped: {name}")
    rows = collect(chosen, args.rounds, args.timeout, benchmark.env, console.print)
    report = {
        "command": command_line(benchmark, args),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "hardware": benchmark.hardware(),
        "versions": {"python": platform.python_version(), "longtail": __version__, "torch": metadata.version("torch")},
        "settings": benchmark.settings,
        "skipped": skipped,
        "summary": summarise(chosen, rows),
        "rows": rows,
    }
    args.out.mkdir(parents=True, exist_ok=True)
    data, table = (args.out / f"{benchmark.name}.{kind}" for kind in ("json", "md"))
    data.write_text(json.dumps(report, indent=1) + "\n")
    table.write_text(markdown(report, benchmark.columns))
    show(report, benchmark.columns, console)
    console.print(f"rows: {data}, table: {table}")
    return 0 if any("error" not in row for row in rows) else 1
