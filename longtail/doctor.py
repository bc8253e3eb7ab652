"""What works on this machine, what to do where something does not, and which worlds there are."""

import importlib
import os
import platform
from dataclasses import replace
from importlib import metadata

from rich.console import Console
from rich.table import Table

GOOD, NOTE, BAD = "[green]ok[/]", "[yellow]--[/]", "[red]no[/]"
Line = tuple[str, str, str]  # what, mark, remark

NEEDED = ("numpy", "scipy", "gymnasium", "numba", "safetensors", "tensorboard", "matplotlib")
OPTIONAL = {
    "triton": "optional: comes with CUDA builds of PyTorch; nothing to do, it makes reads of the memory faster",
    "stable_baselines3": "optional, to train its agents in our worlds: pip install 'longtail[sb3]'",
}


def report() -> list[Line]:
    """Every check, in words. It goes on as far as what is installed allows."""
    lines = [("longtail", GOOD, _version("longtail")), _python(), _package("torch", "install it from pytorch.org")]
    needed = [_package(name, f"pip install {name}") for name in NEEDED]
    lines += needed
    lines += [_package(name, remark, is_needed=False) for name, remark in OPTIONAL.items()]
    if lines[2][1] == GOOD:
        lines += [_cpu(), _cuda()]
    if any(mark == BAD for _, mark, _ in lines):
        return [*lines, ("training", BAD, "not tried: first see to the lines marked no")]
    return [*lines, _bf16(), _iteration()]


def _version(name: str) -> str:
    try:
        return metadata.version(name.replace("_", "-"))
    except metadata.PackageNotFoundError:
        return "present, but not installed as a package"


def _python() -> Line:
    return "python", GOOD, f"{platform.python_version()} on {platform.system()} {platform.machine()}"


def _package(name: str, otherwise: str, is_needed: bool = True) -> Line:
    """Imported, since an installed package may still not work here."""
    mark = BAD if is_needed else NOTE
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name == name:
            return name, mark, f"missing: {otherwise}" if is_needed else otherwise
        return name, mark, f"cannot be imported without {error.name}: pip install {error.name}"
    except Exception as error:  # whatever it is, a person wants to read it here
        again = f"pip install --force-reinstall {name.replace('_', '-')}"
        return name, mark, f"cannot be imported: {' '.join(str(error).split())}; try {again}"
    return name, GOOD, _version(name)


def _cpu() -> Line:
    import torch

    from longtail.config import cpu_has_bf16

    kind = torch.backends.cpu.get_cpu_capability() + (" with bf16" if cpu_has_bf16() else " without bf16")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return "cpu", GOOD, f"{cores} cores, {torch.get_num_threads()} threads, {kind}"


def _cuda() -> Line:
    import torch

    if torch.cuda.is_available():
        properties = torch.cuda.get_device_properties(0)
        return "cuda", GOOD, f"{properties.name}, {properties.total_memory / 2**30:.0f} GiB, CUDA {torch.version.cuda}"
    if torch.version.cuda is None:
        return "cuda", NOTE, "this PyTorch is for the CPU; to use a GPU, install one from pytorch.org"
    return "cuda", NOTE, "no GPU is visible: check nvidia-smi and CUDA_VISIBLE_DEVICES"


def _bf16() -> Line:
    import torch

    from longtail.config import resolve_device, resolve_precision

    device = resolve_device("auto")
    if resolve_precision("auto", device) == torch.bfloat16:
        return "bf16", GOOD, f"{device.type}: image encoders run in bf16"
    faster = "a processor with AVX512-BF16 or AMX, or a GPU," if device.type == "cpu" else "a GPU from Ampere on"
    return "bf16", NOTE, f"not in this {device.type}: nothing to do, fp32 is used; {faster} would be faster"


def _iteration() -> Line:
    """The real thing, small: two iterations of training on the best device."""
    try:
        from longtail.recipes import recipe
        from longtail.train import Trainer

        config = recipe("gridworld-small")
        trainer = Trainer(replace(config, impala=replace(config.impala, worlds=4, unroll=4)))
        for _ in range(2):
            trainer.iterate()
        trainer.check_finite()
    except Exception as error:  # whatever it is, a person wants to read it here
        what = f"failed: {type(error).__name__}: {' '.join(str(error).split())}"
        return "training", BAD, f"{what}; longtail train gridworld-small --steps 1 --out /tmp/doctor shows where"
    form = "as a CUDA graph" if trainer.device.type == "cuda" else "on the CPU"
    return "training", GOOD, f"two small iterations {form}"


def print_report() -> None:
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(no_wrap=True)
    for what, mark, remark in report():
        table.add_row(what.replace("_", "-"), mark, remark.replace("[", "\\["))
    Console(highlight=False).print(table)


def print_worlds() -> None:
    from longtail.methods import METHODS
    from longtail.scores import references
    from longtail.worlds import WORLDS, make

    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for column in ("world", "tasks", "actions", "image", "rarest task", "random walk"):
        table.add_column(column, justify="left" if column == "world" else "right", no_wrap=True)
    for name, config in WORLDS.items():
        world = make(config, 1)
        known = references(config, world.tasks).get("random walk", {})
        walk = " / ".join(f"{known[score]:.1f}" for score in ("zipfian", "uniform", "rare") if score in known)
        rarest, shape = f"1 in {1 / world.tasks.probability.min():,.0f}", "x".join(map(str, world.obs_shape))
        table.add_row(name, str(len(world.tasks)), str(world.num_actions), shape, rarest, walk)
        world.close()
    console = Console(highlight=False)
    console.print(table)
    console.print(
        "\nrandom walk: what it scores, zipfian / uniform / rare, in %"
        "\ngym:<id>: any Gymnasium environment with image observations and discrete"
        "\nactions, such as gym:ale_py:ALE/Breakout-v5 (with ale-py installed)"
        f"\nmethods: {', '.join(METHODS)}"
    )
