"""The folder of a run: one run, one process, and whoever is refused has changed nothing."""

import errno
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tiny import digests, tiny

from longtail import runfolder
from longtail.config import to_json
from longtail.recipes import recipe
from longtail.runfolder import CONFIG, MANIFEST, add_session, claim, default_folder, end_session, read_config
from longtail.worlds import GridworldConfig

CPU = torch.device("cpu")


def begin(run: Path) -> None:
    with claim(run, tiny()):
        runfolder.write_config(run, tiny())


def test_default_folders() -> None:
    assert default_folder(recipe("gridworld-small")) == Path("runs/gridworld-small-impala-s1")
    assert default_folder(replace(recipe("gym:a:B/C-v0"), seed=7)) == Path("runs/gym-a-B-C-v0-impala-s7")
    generated = replace(recipe("gridworld"), world=GridworldConfig(levels="generated", exponent=1.0))
    assert default_folder(generated) == Path("runs/gridworld-levels-generated-exponent-1.0-impala-s1")


def test_a_run_is_claimed_again_and_again(tmp_path: Path) -> None:
    begin(tmp_path / "a" / "b")
    assert read_config(tmp_path / "a" / "b") == tiny()
    before = digests(tmp_path)
    begin(tmp_path / "a" / "b")
    assert digests(tmp_path) == before


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (tiny(seed=2), "seed is 2, but the run in .* has 1: use the same configuration .* or another --out"),
        (tiny(impala={"unroll": 5}, seed=2), "seed is 2"),  # the first of two
        (tiny(impala={"unroll": 5}), "impala.unroll is 5, but the run in .* has 4"),
        (tiny(world=replace(tiny().world, exponent=3.0)), "world.exponent is 3.0, but the run in .* has 1.0"),
        (tiny(world=recipe("gym:x").world), "world.name is 'gym:x'"),
        (tiny(iterations=9), "steps is 108, but the run in .* has 120: it may only grow"),
        (tiny(iterations=11, impala={"schedule": "linear"}), "steps|impala.schedule is 'linear'"),
    ],
)
def test_another_configuration_is_refused(other: runfolder.RunConfig, message: str, tmp_path: Path) -> None:
    begin(tmp_path)
    before = digests(tmp_path)
    with pytest.raises(ValueError, match=message), claim(tmp_path, other):
        pass
    assert digests(tmp_path) == before


def test_steps_grow_only_with_a_constant_learning_rate(tmp_path: Path) -> None:
    for schedule in ("constant", "linear"):
        short, long = (tiny(iterations=n, impala={"schedule": schedule}) for n in (10, 11))
        run = tmp_path / schedule
        with claim(run, short):
            runfolder.write_config(run, short)
        if schedule == "linear":
            with pytest.raises(ValueError, match=r"steps is 132, but the run in .* has 120: .*schedule constant"):
                runfolder.check(run, long)
        else:
            runfolder.check(run, long)


def test_what_is_operational_may_change(tmp_path: Path) -> None:
    begin(tmp_path)
    other = tiny(log_every=7, checkpoint_every=11, keep_checkpoints=1, device="auto", precision="auto")
    with claim(tmp_path, other):
        runfolder.write_config(tmp_path, other)
    assert read_config(tmp_path) == other
    with pytest.raises(ValueError, match="seed is 2, but"):
        runfolder.check(tmp_path, replace(other, seed=2, log_every=8))


def test_folders_that_are_something_else(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").write_text("mine")
    (tmp_path / "empty").mkdir()
    before = digests(tmp_path)
    for out, message in {
        "file": "out is '.*file': that is a file, it must be a folder",
        "file/below": "out is '.*below': it cannot be written",
        "full": "the folder holds something else than a run; choose an empty one",
    }.items():
        with pytest.raises(ValueError, match=message), claim(tmp_path / out, tiny()):
            pass
    assert digests(tmp_path) == before
    begin(tmp_path / "empty")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "config.json cannot be read"),
        ("{}", "config.json cannot be read: world is missing"),
        (to_json(tiny())[:-10], "config.json cannot be read"),
        (to_json(tiny()).replace('"seed": 1', '"seed": 1, "luck": 2'), "luck is a field that this version"),
        (to_json(tiny()).replace('"seed"', '"sead"'), "seed is missing"),
    ],
)
def test_a_configuration_that_cannot_be_read(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / CONFIG).write_text(text)
    before = digests(tmp_path)
    with pytest.raises(ValueError, match=message), claim(tmp_path, tiny()):
        pass
    with pytest.raises(ValueError, match=message):
        read_config(tmp_path)
    assert digests(tmp_path) == before


def test_no_run() -> None:
    with pytest.raises(ValueError, match="run is 'nowhere': no run is there"):
        read_config(Path("nowhere"))


def test_one_process_at_a_time(tmp_path: Path) -> None:
    begin(tmp_path)
    code = f"""
from pathlib import Path
from tiny import tiny
from longtail.runfolder import claim
try:
    with claim(Path({str(tmp_path)!r}), tiny()):
        print("mine")
except ValueError as error:
    print(error)
"""

    def other() -> str:
        done = subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parent, capture_output=True, text=True)
        return done.stdout + done.stderr

    with claim(tmp_path, tiny()):
        assert "another process is training there now" in other()
    assert other() == "mine\n"


def test_nothing_is_left_of_a_run_that_did_not_begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, data: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(runfolder, "write_durably", full)
    with pytest.raises(OSError, match="No space"):
        begin(tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_folder_that_cannot_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(ValueError, match=r"it cannot be written \(Permission denied\)"):
        begin(tmp_path / "run")


def test_manifest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/somewhere/bin/longtail", "train", "a b"])
    end_session(tmp_path, add_session(tmp_path, CPU, torch.float32, 0), 100, 1.5, 1.5)
    session = add_session(tmp_path, CPU, torch.float32, 100)
    written = json.loads((tmp_path / MANIFEST).read_text())
    assert written["sessions"][1] == session  # also while it trains
    (tmp_path / MANIFEST).write_text(json.dumps(written | {"evaluations": [1]}))
    end_session(tmp_path, session, 150, 0.25, 1.75)
    written = json.loads((tmp_path / MANIFEST).read_text())
    assert written["evaluations"] == [1]
    assert [(s["from_step"], s["to_step"], s["wall_seconds"]) for s in written["sessions"]] == [
        (0, 100, 1.5),
        (100, 150, 0.25),
    ]
    assert written["wall_seconds"] == 1.75
    session = written["sessions"][0]
    assert session["command"] == "longtail train 'a b'" and session["precision"] == "float32"
    assert session["hardware"]["kind"] == "cpu" and written["versions"]["torch"] == torch.__version__
    (tmp_path / MANIFEST).write_text("{")
    with pytest.raises(ValueError, match=r"manifest\.json cannot be read"):
        add_session(tmp_path, CPU, torch.float32, 0)


def test_patience_may_change(tmp_path: Path) -> None:
    """A run that ended because an environment was slow goes on with more of it; any other field of a world counts."""
    old = recipe("gym:CartPole-v1")
    runfolder.write_config(tmp_path, old)
    runfolder.check(tmp_path, replace(old, world=replace(old.world, patience=600.0)))
    with pytest.raises(ValueError, match=r"world\.success_return is 1\.0"):
        runfolder.check(tmp_path, replace(old, world=replace(old.world, success_return=1.0)))
