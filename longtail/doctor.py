"""What works on this machine, what to do where something does not, and which worlds there are."""

import importlib.util
import os
import platform
from importlib import metadata

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from longtail.config import cpu_has_bf16, resolve_device, resolve_precision
from longtail.evaluate import references
from longtail.recipes import METHODS, recipe
from longtail.worlds import WORLDS, make

GOOD, NOTE, BAD = "[green]ok[/]", "[yellow]--[/]", "[red]no[/]"
Line = tuple[str, str, str]  # what, mark, remark


def report() -> list[Line]:
    """Every check, in words."""
    lines = [("longtail", GOOD, _version("longtail")), ("python", GOOD, platform.python_version())]
    lines += [("pytorch", GOOD, torch.__version__), ("numba", *_package("numba"))]
    lines += [("cpu", GOOD, f"{os.cpu_count()} cores, {torch.get_num_threads()} threads, {_cpu_kind()}"), _cuda(), _bf16()]
    lines.append(("triton", *_package("triton", "comes with CUDA builds of PyTorch; nothing needs it yet")))
    lines.append(("stable-baselines3", *_package("stable_baselines3", "optional: pip install stable-baselines3")))
    return [*lines, _iteration()]


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed as a package (running from source)"


def _package(module: str, otherwise: str = "missing: pip install it") -> tuple[str, str]:
    found = importlib.util.find_spec(module) is not None
    return (GOOD, _version(module.replace("_", "-"))) if found else (NOTE, otherwise)


def _cpu_kind() -> str:
    return torch.backends.cpu.get_cpu_capability() + (" with bf16" if cpu_has_bf16() else " without bf16")


def _cuda() -> Line:
    if torch.cuda.is_available():
        properties = torch.cuda.get_device_properties(0)
        return "cuda", GOOD, f"{properties.name}, {properties.total_memory / 2**30:.0f} GiB, CUDA {torch.version.cuda}"
    if torch.version.cuda is None:
        return "cuda", NOTE, "this build of PyTorch is for the CPU; for a GPU install one from pytorch.org"
    return "cuda", NOTE, "no GPU is visible: check nvidia-smi and CUDA_VISIBLE_DEVICES"


def _bf16() -> Line:
    device = resolve_device("auto")
    uses = resolve_precision("auto", device) == torch.bfloat16
    remark = "encoder runs in bf16" if uses else "not in this hardware, so the encoder runs in fp32"
    return "bf16", GOOD if uses else NOTE, f"{remark} ({device.type})"


def _iteration() -> Line:
    """The real thing, small: one iteration of training on the best device."""
    from dataclasses import replace

    from longtail.train import Trainer

    config = recipe("gridworld-small")
    try:
        trainer = Trainer(replace(config, impala=replace(config.impala, worlds=4, unroll=4)))
        trainer.iterate()
        trainer.check_finite()
    except Exception as error:  # whatever it is, a person wants to read it here
        return "training", BAD, f"one iteration failed: {error}"
    return "training", GOOD, f"one iteration on {trainer.device.type} works"


def print_report() -> None:
    table = Table(box=None, show_header=False, pad_edge=False)
    for what, mark, remark in report():
        table.add_row(what, mark, remark)
    Console(highlight=False).print(table)


def print_worlds() -> None:
    table = Table(box=None, pad_edge=False)
    for column in ("world", "tasks", "actions", "observation", "rarest task", "random walk (zipfian / uniform / rare)"):
        table.add_column(column)
    for name, config in WORLDS.items():
        world = make(config, 1)
        known = references(recipe(name), world.tasks).get("random walk", {})
        walk = " / ".join(f"{known[score]:.1f}" for score in ("zipfian", "uniform", "rare") if score in known)
        rarest = f"1 in {1 / float(np.min(world.tasks.probability)):,.0f}"
        shape = "x".join(map(str, world.obs_shape))
        table.add_row(name, str(len(world.tasks)), str(world.num_actions), shape, rarest, walk)
        world.close()
    table.add_row("gym:<id>", "?", "?", "images", "?", "any Gymnasium environment with discrete actions")
    console = Console(highlight=False)
    console.print(table)
    console.print(f"\nmethods: {', '.join(METHODS)}")
