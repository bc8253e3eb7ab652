"""Trained steps/s of our IMPALA beside the prototype's, on one NVIDIA GPU: one table, and the raw rows behind it.

    python benchmarks/gpu.py --prototype DIR

Ours and the prototype's with as many worlds run one after the other, each alone in a process of its own; rounds are
interleaved, so that a slow minute of the machine meets all alike. README.md here says what is compared.
"""

import argparse
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace

import measure
import torch
from measure import SAME, Benchmark, Entry, Peer, arguments, checked, ours, prototype, run
from table import GOAL, MEASURED, OTHERS, Column, Row, ratio, text

# How many steps the prototype trains for, by the number of worlds: about 20 s each on a current GPU.
STEPS = {32: "2e6", 128: "6e6"}
# Goals: how many times as fast as the prototype ours should be, and the memory it should stay under.
FASTER, MEMORY_GIB = 1.5, 4


def hardware() -> Row:
    """The machine's own, the GPU, its driver, and the CUDA version that PyTorch was built for."""
    return measure.hardware() | {"gpu": torch.cuda.get_device_name(), "driver": driver(), "cuda": torch.version.cuda}


def driver() -> str:
    """PyTorch does not tell the driver's version; its own tool does, where it is installed."""
    query = ("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
    try:
        return subprocess.run(query, capture_output=True, text=True, check=True, timeout=30).stdout.split()[0]
    except (OSError, subprocess.SubprocessError, IndexError):
        return "unknown"


MEMORY = Column(
    f"GPU memory in GiB (ours: under {MEMORY_GIB})", "GiB", lambda line: text(line.get("gpu_memory_gib"), "g")
)
GPU = Benchmark(
    name="gpu",
    peers=(Peer("prototype", "prototype", "DIR"),),
    columns=(*MEASURED, ratio("longtail / this", "ours/it"), GOAL, MEMORY, OTHERS),
    settings={"worlds": list(STEPS)} | SAME | {"goal": {"ratio": FASTER, "gpu_memory_gib": MEMORY_GIB}},
    hardware=hardware,
)


def read_prototype(output: str) -> Row:
    """Its rate, which other lines may follow, and the memory that it says it has before it trains."""
    total = re.search(r"^TOTAL ([\d,]+) steps/s", output, re.MULTILINE)
    memory = re.search(r"^capture .* mem ([\d.]+) GiB", output, re.MULTILINE)
    if total is None or memory is None:
        missing = "capture ..., mem MEMORY GiB" if total else "TOTAL RATE steps/s"
        raise ValueError(f"it printed no line '{missing}'")
    return {"steps_per_second": float(total[1].replace(",", "")), "detail": {"gpu_memory_gib": float(memory[1])}}


def entries(args: argparse.Namespace) -> list[Entry]:
    """What to measure, in order: pairs of us and the prototype, if it was given."""
    chosen = []
    for worlds, steps in STEPS.items():
        us = ours(f"longtail, {worlds} worlds", worlds, "cuda", "auto", args.seconds)
        chosen.append(us)
        if args.prototype:
            command = (*prototype(args), "--B", str(worlds), "--steps", steps, "--every", "1")
            peer = Entry(f"prototype, {worlds} worlds", command, read_prototype, "bf16 encoder", args.prototype)
            chosen.append(replace(peer, against=(us.name,), goal=FASTER))
    return chosen


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    return checked(arguments(__doc__, rounds=2, seconds=10), argv)


def main(argv: Sequence[str] | None = None) -> int:
    args = parse(argv)
    if not torch.cuda.is_available():
        print("gpu.py: PyTorch sees no CUDA GPU here; longtail doctor says what is missing", file=sys.stderr)
        return 2
    return run(GPU, args, entries(args))


if __name__ == "__main__":
    sys.exit(main())
