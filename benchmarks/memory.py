"""Trained steps/s of the two memories beside the prototype's: one table, and the raw rows behind it.

    python benchmarks/memory.py --prototype DIR        # on a GPU if there is one, else on the CPU

Everything runs alone, in a process of its own, one after another; rounds are interleaved, so that a slow minute of the
machine meets all alike. 1,024 slots, 16 neighbours, one contrastive pass per gradient step.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace

import cpu
import gpu
import torch
from measure import SAME, Benchmark, Entry, Peer, arguments, checked, ours, prototype, run
from table import GOAL, MEASURED, OTHERS, Column, ratio

METHODS = ("mem", "boosted")
# Goals by device: steps/s, and how many times as fast as the prototype.
RATES = {"cpu": {"mem": 7000, "boosted": 4000}, "cuda": {}}
FASTER = {"cpu": {"boosted": 4.0}, "cuda": {"mem": 1.5, "boosted": 1.5}}
# How many steps the prototype trains for on a GPU, by the number of worlds: about 15 s each.
STEPS = {32: "8e5", 128: "3e6"}
COLUMNS: tuple[Column, ...] = (*MEASURED, ratio("longtail / this", "ours/it"), GOAL, OTHERS)


def benchmark(device: str) -> Benchmark:
    """Of one device; what it writes is named after it."""
    on_gpu = device == "cuda"
    return Benchmark(
        name="memory-gpu" if on_gpu else "memory-cpu",
        script="memory",
        peers=(Peer("prototype", "prototype", "DIR"),),
        columns=COLUMNS,
        settings=SAME | {"methods": list(METHODS), "slots": 1024, "neighbours": 16, "goal": RATES[device]},
        hardware=gpu.hardware if on_gpu else cpu.hardware,
        env={} if on_gpu else cpu.CPU.env,
    )


def entries(args: argparse.Namespace, device: str) -> list[Entry]:
    """Pairs of us and the prototype, if it was given."""
    chosen = []
    for method in METHODS:
        for worlds in STEPS if device == "cuda" else (cpu.WORLDS,):
            what = f"{method}, {worlds} worlds"
            us = ours(f"longtail, {what}", worlds, device, "auto", args.seconds, method)
            chosen.append(us)
            if args.prototype:
                flags = ("--B", str(worlds), "--steps", STEPS[worlds], "--every", "1") if device == "cuda" else ()
                read = gpu.read_prototype if device == "cuda" else cpu.read_prototype
                command = (*prototype(args, method), *flags)
                peer = Entry(f"prototype, {what}", command, read, "bf16 encoder", args.prototype)
                # On a CPU it measures eight iterations only, so it gets three tries a round.
                peer = replace(peer, repeats=1 if device == "cuda" else 3)
                chosen.append(replace(peer, against=(us.name,), goal=FASTER[device].get(method)))
    return chosen


def main(argv: Sequence[str] | None = None) -> int:
    args = checked(arguments(__doc__, rounds=3, seconds=15), argv)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return run(benchmark(device), args, entries(args, device))


if __name__ == "__main__":
    sys.exit(main())
