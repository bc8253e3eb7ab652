"""Trained steps/s of our IMPALA beside its peers, on this machine's CPU: one table, and the raw rows behind it.

    python benchmarks/cpu.py --prototype DIR --sample-factory PYTHON --torchbeast CHECKOUT

Everything runs alone, in a process of its own, one after another; rounds are interleaved, so that a slow minute of the
machine meets all alike. Peers that are not given are skipped, and named. README.md here says what is compared.
"""

import argparse
import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from measure import SAME, Benchmark, Entry, Peer, arguments, checked, hardware, ours, prototype, read_json, run
from table import GOAL, MEASURED, OTHERS, Row, ratio

PEERS = Path(__file__).resolve().parent / "peers"
WORLDS = 32
OURS = ("longtail", "longtail fp32")

CPU = Benchmark(
    name="cpu",
    peers=(
        Peer("prototype", "prototype", "DIR"),
        Peer("sample_factory", "Sample Factory (--sample-factory)", "PYTHON"),
        Peer("torchbeast", "MonoBeast (--torchbeast)", "CHECKOUT"),
    ),
    columns=(
        *MEASURED,
        ratio("longtail / this", "ours/it", 0),
        ratio("longtail fp32 / this", "fp32/it", 1),
        GOAL,
        OTHERS,
    ),
    settings={"worlds": WORLDS} | SAME,
    hardware=hardware,
    env={"CUDA_VISIBLE_DEVICES": ""},  # nobody may use a GPU
)


def read_prototype(output: str) -> Row:
    found = re.search(r"^cpu ok ([0-9.]+)", output, re.MULTILINE)
    if found is None:
        raise ValueError("it printed no line 'cpu ok RATE'")
    return {"steps_per_second": float(found[1]), "detail": {}}


def monobeast(name: str, network: str, args: argparse.Namespace, goal: float | None) -> Entry:
    driver = (str(PEERS / "monobeast.py"), "--checkout", str(args.torchbeast.resolve()), "--network", network)
    return Entry(name, (args.torchbeast_python, *driver, "--seconds", str(args.seconds)), read_json, goal=goal)


def entries(args: argparse.Namespace) -> list[Entry]:
    """What to measure, in order: us, and the peers that were given."""
    precisions = zip(OURS, ("auto", "fp32"), strict=True)
    chosen = [ours(name, WORLDS, "cpu", precision, args.seconds) for name, precision in precisions]
    if args.prototype:
        # It measures eight iterations only, so it gets three tries a round.
        chosen.append(
            Entry("prototype", prototype(args), read_prototype, "bf16 encoder", args.prototype, repeats=3, goal=2.7)
        )
    if args.sample_factory:
        driver = (args.sample_factory, str(PEERS / "sample_factory.py"), "--seconds", str(args.seconds))
        chosen.append(Entry("Sample Factory", driver, read_json, goal=3))
    if args.torchbeast:
        chosen.append(monobeast("MonoBeast", "own", args, 20))
        chosen.append(monobeast("MonoBeast, our network", "same", args, None))
    return [replace(entry, against=OURS) for entry in chosen]


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = arguments(__doc__, rounds=3, seconds=20)
    parser.add_argument("--sample-factory", metavar="PYTHON", help="interpreter that has Sample Factory")
    parser.add_argument("--torchbeast", type=Path, metavar="CHECKOUT", help="checkout of TorchBeast")
    parser.add_argument("--torchbeast-python", default=sys.executable, metavar="PYTHON", help="default: this one")
    return checked(parser, argv)


def main(argv: Sequence[str] | None = None) -> int:
    args = parse(argv)
    return run(CPU, args, entries(args))


if __name__ == "__main__":
    sys.exit(main())
