"""The folder of a run: whose it is, what made it, and that only one process at a time trains in it."""

import fcntl
import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from longtail.checkpoint import write_durably
from longtail.config import DTYPES, OPERATIONAL, RunConfig, differences, from_json, to_json

CONFIG, MANIFEST, LOCK = "config.json", "manifest.json", ".lock"
PACKAGES = ("longtail", "torch", "numpy", "numba", "gymnasium", "safetensors")


def default_folder(config: RunConfig) -> Path:
    world = re.sub(r"[^A-Za-z0-9._-]+", "-", config.world_label)
    return Path("runs") / f"{world}-{config.method}-s{config.seed}"


def read_config(run: Path) -> RunConfig:
    """The configuration of a run that exists."""
    path = run / CONFIG
    if not path.is_file():
        raise ValueError(f"run is {str(run)!r}: no run is there ({CONFIG} is missing)")
    try:
        return from_json(path.read_text())
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from error


@contextmanager
def claim(run: Path, config: RunConfig) -> Iterator[None]:
    """Hold the folder for one run and one process, or refuse; whoever is refused has changed nothing."""
    check(run, config)
    is_new = not run.exists()
    try:
        run.mkdir(parents=True, exist_ok=True)
        lock = (run / LOCK).open("a")
    except OSError as error:
        raise ValueError(f"out is {str(run)!r}: it cannot be written ({error.strerror})") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(f"out is {str(run)!r}: another process is training there now") from None
        try:
            check(run, config)  # again, since another process may have begun a run here in the meantime
            yield
        except BaseException:
            if is_new and not (run / CONFIG).exists():
                shutil.rmtree(run)  # it did not come to a run
            raise


def check(run: Path, config: RunConfig) -> None:
    """Refuse a folder that is not this run's."""
    if run.exists() and not run.is_dir():
        raise ValueError(f"out is {str(run)!r}: that is a file, it must be a folder")
    if (run / CONFIG).exists():
        _check_same(run, read_config(run), config)
    elif run.exists() and any(path.name not in (LOCK, f".{CONFIG}.partial") for path in run.iterdir()):
        raise ValueError(f"out is {str(run)!r}: the folder holds something else than a run; choose an empty one")


def _check_same(run: Path, old: RunConfig, new: RunConfig) -> None:
    grown = new.impala.schedule == "constant" and new.steps >= old.steps
    free = {*OPERATIONAL, "steps"} if grown else OPERATIONAL
    different = [one for one in differences(old, new) if one[0] not in free]
    if not different:
        return
    name, was, now = different[0]
    if name == "steps":
        raise ValueError(
            f"steps is {now}, but the run in {str(run)!r} has {was}: it may only grow, and only with "
            f"--impala.schedule constant (--stop-at ends a run early)"
        )
    raise ValueError(
        f"{name} is {now!r}, but the run in {str(run)!r} has {was!r}: use the same configuration to go on with it, "
        f"or another --out (or --seed) for a new run"
    )


def place(device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
    """What the last bits depend on besides the configuration: noted in every checkpoint."""
    precision = next(name for name, one in DTYPES.items() if one == dtype)
    threads = torch.get_num_threads() if device.type == "cpu" else None
    return {"device": device.type, "precision": precision, "threads": threads}


def check_place(run: Path, was: dict[str, Any], here: dict[str, Any]) -> None:
    """Refuse to go on with a checkpoint where other bits would follow from it; threads alone are not worth that."""
    for name, why in {"device": "draws random numbers of its own", "precision": "gives other results"}.items():
        if here[name] != was[name]:
            raise ValueError(
                f"{name} is {here[name]}, but the run in {str(run)!r} was trained with {was[name]}: go on with "
                f"--{name} {was[name]}, since each {name} {why}"
            )


def write_config(run: Path, config: RunConfig) -> None:
    """Once it is sure that the run begins or goes on."""
    data = to_json(config).encode()
    if not (run / CONFIG).exists() or (run / CONFIG).read_bytes() != data:
        write_durably(run / CONFIG, data)


def add_session(run: Path, device: torch.device, dtype: torch.dtype, step: int) -> dict[str, Any]:
    """Note in the manifest what trains here from `step` on; returns the entry, which `end_session` completes."""
    manifest = read_manifest(run)
    manifest["versions"] = {"python": platform.python_version()} | {name: _version(name) for name in PACKAGES}
    session = {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": command_line(),
        "git_commit": git_commit(),
        "hardware": _hardware(device),
        "precision": str(dtype).removeprefix("torch."),
        "from_step": step,
        "to_step": None,
        "wall_seconds": None,
    }
    manifest["sessions"].append(session)
    write_manifest(run, manifest)
    return session


def end_session(run: Path, session: dict[str, Any], step: int, seconds: float, total: float) -> None:
    """`total` is what the run took in all: sessions that were killed could not note theirs."""
    manifest = read_manifest(run)  # again, since the run may have been evaluated in the meantime
    manifest["sessions"][-1:] = [session | {"to_step": step, "wall_seconds": round(seconds, 3)}]
    manifest["wall_seconds"] = round(total, 3)
    write_manifest(run, manifest)


def read_manifest(run: Path) -> dict[str, Any]:
    path = run / MANIFEST
    try:
        manifest: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"sessions": []}
    except ValueError as error:
        raise ValueError(f"{path} cannot be read: {error}; move it away to go on without it") from error
    return manifest


def write_manifest(run: Path, manifest: dict[str, Any]) -> None:
    write_durably(run / MANIFEST, (json.dumps(manifest, indent=2) + "\n").encode())


def command_line() -> str:
    """What this process was started by."""
    return shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def git_commit() -> str | None:
    """Of the checkout that longtail runs from, with "-dirty" if files differ from it; None for an installed package."""
    checkout = Path(__file__).parents[1]
    if not (checkout / ".git").exists():
        return None

    def git(*words: str) -> str:
        command = ["git", "-C", str(checkout), *words]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        return git("rev-parse", "HEAD") + ("-dirty" if git("status", "--porcelain") else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def _hardware(device: torch.device) -> dict[str, Any]:
    cpu = platform.processor() or platform.machine()
    try:
        models = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
        cpu = models[0].split(":", 1)[1].strip()
    except (OSError, IndexError):
        pass
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else cpu
    return {"device": name, "kind": device.type, "cpu": cpu, "cpus": os.cpu_count(), "threads": torch.get_num_threads()}
