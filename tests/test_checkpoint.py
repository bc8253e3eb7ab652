"""Checkpoints: exact, whole or not there at all, and never the last good one lost."""

import errno
import inspect
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save
from tiny import steps_saved

from longtail import checkpoint
from longtail.checkpoint import (
    META,
    STATE,
    CheckpointError,
    folder,
    load_checkpoint,
    load_newest,
    load_own,
    save_checkpoint,
    write_durably,
)

STATES = {
    "float": torch.tensor([0.1, float("inf"), float("nan"), -0.0]),
    "scalar": torch.tensor(3),
    "bits": torch.tensor([True, False]),
    "bytes": torch.arange(9, dtype=torch.uint8).view(3, 3),
    "transposed": torch.arange(6.0).view(2, 3).t(),
    "double": torch.tensor(1 / 3, dtype=torch.float64),
}


def state(number: int) -> dict[str, torch.Tensor]:
    return {"x": torch.full((5,), float(number))}


def put(run: Path, step: int, keep: int = 3, **meta: Any) -> Path:
    return save_checkpoint(run, step, state(step), {"run": "mine", **meta}, keep)


def newest(run: Path) -> tuple[int | None, list[str]]:
    """Step of the newest checkpoint that can be read, checked against its content, and what was skipped."""
    said: list[str] = []
    found = load_newest(run, said.append)
    if found:
        assert torch.equal(found[0]["x"], state(found[1]["step"])["x"])
    return (found[1]["step"] if found else None), said


def test_exact(tmp_path: Path) -> None:
    loaded, meta = load_checkpoint(save_checkpoint(tmp_path, 7, STATES, {"note": [1, "a"]}, 1))
    assert loaded.keys() == STATES.keys()
    for name, tensor in STATES.items():
        assert loaded[name].dtype == tensor.dtype and loaded[name].shape == tensor.shape
        assert loaded[name].numpy().tobytes() == tensor.contiguous().numpy().tobytes()
    assert meta == {"format": checkpoint.FORMAT, "step": 7, "note": [1, "a"]}


def test_the_newest_are_kept(tmp_path: Path) -> None:
    for step in (0, 9, 10, 11, 1_000_000_000):  # in order of numbers, not of names
        put(tmp_path, step)
    assert steps_saved(tmp_path) == [1_000_000_000, 11, 10]
    assert newest(tmp_path) == (1_000_000_000, [])


def flip_a_bit(path: Path) -> None:
    data = bytearray((path / STATE).read_bytes())
    data[-1] ^= 1
    (path / STATE).write_bytes(data)


def change_meta(path: Path, **changes: Any) -> None:
    (path / META).write_text(json.dumps(json.loads((path / META).read_text()) | changes))


DAMAGE: dict[str, Callable[[Path], Any]] = {
    "bit flipped": flip_a_bit,
    "state cut short": lambda path: (path / STATE).write_bytes((path / STATE).read_bytes()[:-9]),
    "state empty": lambda path: (path / STATE).write_bytes(b""),
    "state missing": lambda path: (path / STATE).unlink(),
    "state of another": lambda path: (path / STATE).write_bytes(save(state(99))),
    "meta cut short": lambda path: (path / META).write_text((path / META).read_text()[:20]),
    "meta empty": lambda path: (path / META).write_text(""),
    "meta not text": lambda path: (path / META).write_bytes(b"\xff\xfe\x00"),
    "meta missing": lambda path: (path / META).unlink(),
    "meta a list": lambda path: (path / META).write_text("[]"),
    "meta without format": lambda path: (path / META).write_text("{}"),
    "meta changed": lambda path: change_meta(path, run="yours"),
    "empty": lambda path: [file.unlink() for file in path.iterdir()],
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_ones_are_named_and_skipped(damage: str, tmp_path: Path) -> None:
    for step in (1, 2):
        put(tmp_path, step)
    DAMAGE[damage](folder(tmp_path, 2))
    step, said = newest(tmp_path)
    assert step == 1 and len(said) == 1 and "step-000000002" in said[0] and "\n" not in said[0]
    DAMAGE[damage](folder(tmp_path, 1))
    assert newest(tmp_path)[0] is None
    with pytest.raises(ValueError, match="damaged checkpoints only"):
        load_own(tmp_path, "mine", lambda _: None)


def test_a_folder_under_another_name(tmp_path: Path) -> None:
    put(tmp_path, 1)
    folder(tmp_path, 1).rename(folder(tmp_path, 5))
    with pytest.raises(CheckpointError, match="it holds step 1"):
        load_checkpoint(folder(tmp_path, 5))


def test_other_versions_and_other_runs_are_refused(tmp_path: Path) -> None:
    put(tmp_path, 1)
    assert load_own(tmp_path, "mine", print)
    with pytest.raises(ValueError, match="step-000000001 belongs to another run"):
        load_own(tmp_path, "yours", print)
    change_meta(folder(tmp_path, 1), format=99)
    with pytest.raises(ValueError, match="has checkpoint format 99: this version of longtail reads 1"):
        newest(tmp_path)


def test_what_is_no_checkpoint_is_left_alone(tmp_path: Path) -> None:
    assert load_own(tmp_path, "mine", print) is None
    (tmp_path / "checkpoints" / "step-of-mine").mkdir(parents=True)
    (tmp_path / "checkpoints" / "notes.txt").write_text("")
    assert newest(tmp_path) == (None, [])
    put(tmp_path, 1, keep=1)
    assert len(list((tmp_path / "checkpoints").iterdir())) == 3


def test_damaged_newer_ones_never_push_out_the_good_one(tmp_path: Path) -> None:
    for step in (100, 200, 300):
        put(tmp_path, step)
        flip_a_bit(folder(tmp_path, step))
    put(tmp_path, 50)
    assert newest(tmp_path)[0] == 50  # resumed from nothing, say
    put(tmp_path, 75, keep=1)
    assert newest(tmp_path)[0] == 75 and 50 not in steps_saved(tmp_path)
    put(tmp_path, 100)  # takes the place of a damaged one
    assert newest(tmp_path)[0] == 100


class Killed(BaseException):
    """Stands for kill -9: nothing that cleans up gets to see it."""


def fail_at(monkeypatch: pytest.MonkeyPatch, call: int, error: BaseException) -> list[str]:
    """Let the n-th file system call of a checkpoint fail; returns the calls made."""
    made: list[str] = []

    def wrap(module: Any, name: str) -> None:
        real = getattr(module, name)

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            if made[-1:] == ["failed"]:
                return None if isinstance(error, Killed) else real(*args, **kwargs)  # the dead do nothing
            made.append(name)
            if len(made) == call:
                made.append("failed")
                raise error
            return real(*args, **kwargs)

        monkeypatch.setattr(module, name, wrapped)

    for module, names in ((os, ("fsync", "open")), (Path, ("mkdir", "rename", "replace")), (shutil, ("rmtree",))):
        for name in names:
            wrap(module, name)
    return made


def fail_everywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException) -> int:
    """Whatever call of saving fails, the newest checkpoint is the one before or the new one, whole; how many calls."""
    for call in range(1, 100):
        run = tmp_path / str(call)
        for step in (1, 2, 3):
            put(run, step, keep=2)
        with monkeypatch.context() as patch:
            made = fail_at(patch, call, error)
            try:
                put(run, 4, keep=2)
                return call - 1
            except (OSError, Killed):
                assert made[-1] == "failed"
        step, said = newest(run)
        assert step in (3, 4) and not said
        if isinstance(error, OSError):
            assert not list(run.rglob("*.partial"))
        put(run, 4, keep=2)  # and then it works, and what the crash left is gone
        assert steps_saved(run) == [4, 3] and not list(run.rglob("*.partial"))
    raise AssertionError("saving never ends")


@pytest.mark.parametrize("error", [Killed(), OSError(errno.ENOSPC, "No space left on device")], ids=["kill", "disk"])
def test_a_failure_at_any_moment(error: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert fail_everywhere(tmp_path, monkeypatch, error) >= 8


def test_a_checkpoint_written_in_place_does_not_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control of the test above: the same save, but not beside its place and without the rename."""
    source, names = inspect.getsource(checkpoint.save_checkpoint), dict(vars(checkpoint))
    for old, new in {
        'partial = target.with_name(f".{target.name}.partial")': "partial = target",
        "        if target.exists():": "        if False:",
        "        partial.rename(target)\n": "",
    }.items():
        assert source.count(old) == 1
        source = source.replace(old, new)
    exec(source, names)
    monkeypatch.setitem(globals(), "save_checkpoint", names["save_checkpoint"])
    put(tmp_path / "works", 1)
    assert newest(tmp_path / "works") == (1, [])
    with pytest.raises(AssertionError, match=r"step-000000004 is not complete: meta\.json is missing"):
        fail_everywhere(tmp_path, monkeypatch, Killed())


def test_write_durably(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    write_durably(path, b"old")

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="file could not be written: No space left on device"):
        write_durably(path, b"new")
    assert path.read_bytes() == b"old" and list(tmp_path.iterdir()) == [path]
