"""Checkpoints that survive anything: written beside, synced, renamed; damaged ones are noticed and skipped.

A checkpoint is a folder `step-000123456/` with `state.safetensors` (every tensor, the random generator's state
included) and `meta.json`, written last, which holds the digest of both. No pickle.
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

Loaded = tuple[dict[str, Tensor], dict[str, Any]]  # state and meta


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
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise OSError(error.errno, f"{path} could not be written: {error.strerror}") from error
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
    meta = {"format": FORMAT, "step": step, **meta}
    text = json.dumps(meta | {"sha256": _digest(data, meta)}, indent=2) + "\n"
    try:
        for left_by_a_crash in target.parent.glob(".step-*.partial"):
            shutil.rmtree(left_by_a_crash)
        partial.mkdir(parents=True)
        write_durably(partial / STATE, data)
        write_durably(partial / META, text.encode())
        if target.exists():  # only a damaged one: a good one of this step would have been resumed from
            shutil.rmtree(target)
        partial.rename(target)
        _sync_folder(target.parent)
    except OSError as error:
        shutil.rmtree(partial, ignore_errors=True)
        raise OSError(error.errno, f"{target} could not be written: {os.strerror(error.errno or 0)}") from error
    # Those of later steps are damaged, else this step would not be computed again: they must not push this one out.
    for old in [path for path in list_checkpoints(run) if _step(path) <= step][keep:]:
        shutil.rmtree(old)
    return target


def _digest(data: bytes, meta: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(meta, sort_keys=True).encode() + b"\0" + data).hexdigest()


def _step(path: Path) -> int:
    return int(path.name.removeprefix("step-"))


def list_checkpoints(run: Path) -> list[Path]:
    """Newest first; whether they can be read is another question."""
    found = [path for path in (run / "checkpoints").glob("step-*") if path.name.removeprefix("step-").isdigit()]
    return sorted(found, key=_step, reverse=True)


def load_checkpoint(path: Path) -> Loaded:
    """State and meta of one checkpoint; CheckpointError if it is damaged, ValueError if another version wrote it."""
    try:
        meta = json.loads((path / META).read_text())
        data = (path / STATE).read_bytes()
    except (OSError, ValueError) as error:
        what = f"{Path(error.filename).name} is missing" if isinstance(error, FileNotFoundError) else str(error)
        raise CheckpointError(f"{path.name} is not complete: {what}") from error
    if not isinstance(meta, dict) or "format" not in meta:
        raise CheckpointError(f"{path.name} is damaged: {META} is not what was written")
    if meta["format"] != FORMAT:
        raise ValueError(f"{path} has checkpoint format {meta['format']!r}: this version of longtail reads {FORMAT}")
    if meta.pop("sha256", None) != _digest(data, meta):
        raise CheckpointError(f"{path.name} is damaged: it is not what was written")
    if meta["step"] != _step(path):
        raise CheckpointError(f"{path.name} is not what its name says: it holds step {meta['step']}")
    return load(data), meta


def load_newest(run: Path, warn: Callable[[str], None]) -> Loaded | None:
    """The newest checkpoint that can be read; each one that cannot is named and skipped."""
    for path in list_checkpoints(run):
        try:
            return load_checkpoint(path)
        except CheckpointError as error:
            warn(f"skipping a checkpoint: {error}")
    return None


def load_own(run: Path, fingerprint: str, warn: Callable[[str], None]) -> Loaded | None:
    """The newest checkpoint that can be read of a run. One of another run, or none but damaged ones, is refused."""
    found = load_newest(run, warn)
    if not found and list_checkpoints(run):
        raise ValueError(f"{run / 'checkpoints'} holds damaged checkpoints only: bring one back, or move the run away")
    if found and found[1].get("run") != fingerprint:
        raise ValueError(f"{folder(run, found[1]['step'])} belongs to another run: its configuration is not {run}'s")
    return found
