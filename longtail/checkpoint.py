"""Checkpoints that survive anything: written beside, synced, renamed; damaged ones are noticed and skipped.

A checkpoint is a folder `step-000123456/` with `state.safetensors` (every tensor, the random generator's state
included) and `meta.json`, written last, which holds the digest of the other. No pickle.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors.torch import load, save
from torch import Tensor

FORMAT = 1
STATE, META = "state.safetensors", "meta.json"


class CheckpointError(Exception):
    """This checkpoint cannot be used; the message says why."""


def folder(run: Path, step: int) -> Path:
    return run / "checkpoints" / f"step-{step:09d}"


def write_durably(path: Path, data: bytes) -> None:
    """Replace a file as a whole: after a crash there is the old one or the new one, never half of one."""
    partial = path.with_name(f".{path.name}.partial")
    try:
        with partial.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError:
        partial.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def save_checkpoint(run: Path, step: int, state: dict[str, Tensor], meta: dict[str, Any], keep: int) -> Path:
    """Save, then drop all but the newest `keep`; a failure leaves the older ones as they were."""
    target = folder(run, step)
    partial = target.with_name(f".{target.name}.partial")
    data = save({name: tensor.detach().cpu().contiguous() for name, tensor in state.items()})
    digest = hashlib.sha256(data).hexdigest()
    text = json.dumps({"format": FORMAT, "step": step, "sha256": digest, **meta}, indent=2) + "\n"
    try:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        write_durably(partial / STATE, data)
        write_durably(partial / META, text.encode())
        if target.exists():  # a damaged one of the same step, or the same state once more
            shutil.rmtree(target)
        partial.rename(target)
        _sync_folder(target.parent)
    except OSError as error:
        shutil.rmtree(partial, ignore_errors=True)
        raise OSError(error.errno, f"checkpoint at step {step} could not be written ({error.strerror})") from error
    for old in list_checkpoints(run)[keep:]:
        shutil.rmtree(old)
    return target


def list_checkpoints(run: Path) -> list[Path]:
    """Newest first; whether they can be read is another question."""
    found = [path for path in (run / "checkpoints").glob("step-*") if path.name.removeprefix("step-").isdigit()]
    return sorted(found, key=lambda path: int(path.name.removeprefix("step-")), reverse=True)


def load_checkpoint(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """State and meta of one checkpoint; CheckpointError if it is damaged, ValueError if another version wrote it."""
    try:
        meta = json.loads((path / META).read_text())
        data = (path / STATE).read_bytes()
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path.name} is not complete: {error}") from error
    if meta.get("format") != FORMAT:
        raise ValueError(f"{path} has checkpoint format {meta.get('format')!r}: this version of longtail reads {FORMAT}")
    if hashlib.sha256(data).hexdigest() != meta.get("sha256"):
        raise CheckpointError(f"{path.name} is damaged: {STATE} is not what was written")
    return load(data), meta


def load_newest(run: Path, warn: Callable[[str], None]) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
    """The newest checkpoint that can be read; each one that cannot is named and skipped."""
    for path in list_checkpoints(run):
        try:
            return load_checkpoint(path)
        except CheckpointError as error:
            warn(f"skipping a checkpoint: {error}")
    return None
