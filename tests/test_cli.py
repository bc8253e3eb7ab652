"""The command line, through `main`: what goes wrong is one line and an exit code, and nothing on disk has changed."""

import ast
import errno
import importlib.metadata
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny import digests, steps_saved

import longtail
from examples.signal_world import SignalConfig
from longtail import checkpoint, worlds
from longtail.cli import COMMANDS, main
from longtail.config import fingerprint, from_json
from longtail.flags import whole
from longtail.methods import METHODS

WORLD = "gridworld-small --world.maps 2 --world.objects 2 --world.resolution 21 --world.max-steps 9"
SMALL = "--agent.embedding 8 --agent.hidden 8 --impala.worlds 3 --impala.unroll 4 --device cpu --precision fp32"
TRAIN = f"train {WORLD} {SMALL} --steps 48"


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def run() -> Path:
    """A small run that is finished."""
    assert main(shlex.split(f"{TRAIN} --out run")) == 0
    return Path("run")


def refused(line: str, capsys: pytest.CaptureFixture[str], code: int = 2) -> str:
    """What a command says that is refused: one line, and not a file is other than before."""
    capsys.readouterr()
    before = digests(Path())
    assert main(shlex.split(line)) == code
    said = capsys.readouterr()
    assert said.err.count("\n") == 1 and said.err.startswith("longtail: ") and "Traceback" not in said.err
    assert digests(Path()) == before
    return said.err.removeprefix("longtail: ")


REFUSED = {
    "report": "command is 'report': it must be one of train, eval, play",
    "evl": "command is 'evl': did you mean eval? It must be one of train",
    "--seed 1": "command is '--seed'",
    "train": "world is missing: longtail train WORLD",
    "train --seed 3 gridworld": "the world comes first: longtail train WORLD [flags]",
    "train gridwrld": "world is 'gridwrld': did you mean gridworld?",
    "train chess": "world is 'chess': ",
    "train gym:car:Car-v0": "world is 'gym:car:Car-v0': module 'car' cannot be imported",
    "train gridworld --method impalla": "method is 'impalla': did you mean impala? It must be one of impala",
    "train gridworld --method=dqn": "method is 'dqn': it must be one of impala",
    "train gridworld --preset papr": "preset is 'papr': it must be one of default, paper",
    "train gridworld --steps -5": "steps is -5: it must be at least 0",
    "train gridworld --steps 1.5": "--steps is '1.5': it must be a whole number",
    "train gridworld --stop-at 1.5": "--stop-at is '1.5': it must be a whole number",
    "train gridworld --stop-at -1": "stop_at is -1: it must be at least 0",
    "train gridworld --world.exponent -1": "world.exponent is -1.0: it must be a number of at least 0",
    "train gridworld --world.rooms 1 --world.levels generated": "world.rooms is 1: it must be at least 2",
    "train gridworld --world.law rarest": "--world.law is 'rarest': it must be one of",
    "train gridworld --impala.learning-rate fast": "--impala.learning-rate is 'fast': it must be a number",
    "train gridworld --stepps 3": "not understood: --stepps, 3; did you mean --steps?",
    "train gridworld --steps": "--steps has no value: one must follow it",
    "eval": "RUN is missing",
    "eval nowhere": "run is 'nowhere': no run is there",
    "play gridworld --map 99": "map is 99: it must be a whole number of 0..9",
    "bench --seconds nan": "seconds is nan: it must be above 0",
    "bench --worlds 0": "worlds is 0: it must be at least 1",
    "bench --method boostd": "method is 'boostd': did you mean boosted? It must be one of impala",
    "bench --unroll 1e30": "unroll 1000000000000000019884624838656: they do not fit into memory",
}


# Of methods: what follows `train gridworld`.
REFUSED_METHODS = {
    "--method boostd": "method is 'boostd': did you mean boosted? It must be one of impala",
    "--method boosted --memory.capacity 0": "memory.capacity is 0: it must be at least 1",
    "--method boosted --memory.neighbours 2000": "memory.neighbours is 2000: it must be at most memory.capacity, 1024",
    "--method boosted --memory.neighbours -1": "memory.neighbours is -1: it must be at least 1",
    "--method boosted --memory.transfer 1025": "memory.transfer is 1025: it must be at most memory.familiarity, 1024",
    "--method mem --memory.capacity 500": "memory.transfer is 512: it must be at most memory.capacity, 500",
    "--method boosted --memory.transfer-every 0": "memory.transfer_every is 0: it must be at least 1",
    "--method boosted --memory.beta 1": "memory.beta is 1.0: it must be below 1",
    "--method boosted --memory.beta -0.1": "memory.beta is -0.1: it must be at least 0",
    "--method boosted --memory.beta nan": "memory.beta is nan: it must be",
    "--method boosted --memory.contrastive-cost inf": "memory.contrastive_cost is inf: it must be a finite number",
    "--method boosted --memory.epsilon 0": "memory.epsilon is 0.0: it must be above 0",
    "--method boosted --memory.temperature 0": "memory.temperature is 0.0: it must be above 0",
    "--method boosted --memory.sigma 2": "memory.sigma is 2.0: it must be at most 1",
    "--method boosted --memory.cutout-largest 1.5": "memory.cutout_largest is 1.5: it must be at most 1",
    "--method boosted --memory.cutout-smallest 0.6": "it must be at most memory.cutout_largest, 0.5",
    "--method boosted --memory.hop 0": "memory.hop is 0: it must be at least 1",
    "--method boosted --memory.hop 1.5": "--memory.hop is '1.5': it must be a whole number",
    "--method boosted --memory.familiarity 63 --memory.transfer 8": "memory.familiarity is 63: it must be at least 64",
    "--method boosted --memory.no-contrastive": "memory.contrastive is False: it must be true: the rare states",
    "--method boosted --memory.selection rarest": "--memory.selection is 'rarest': it must be one of 'rare'",
    "--method mem --memory.eviction familiar-first": "memory.eviction is 'familiar-first': it must be fifo unless",
    "--memory.neighbours 8": "--memory.neighbours is given, but method is 'impala': it must be one of mem, mem-",
    "--method vae --memory.neighbours 8": "is given, but method is 'vae': it must be one of mem, mem-contrastive",
    "--method boosted --hcam.chunk 4": "--hcam.chunk is given, but method is 'boosted': it must be one of hcam",
    "--method boosted --memory.neighbors 8": "not understood: --memory.neighbors, 8; did you mean --memory.neighbours?",
    "--method hcam --hcam.chunk 5": "hcam.chunk is 5: it must divide impala.unroll, 32",
    "--method hcam --hcam.chunk 0": "hcam.chunk is 0: it must be at least 1",
    "--method hcam --hcam.chosen 9": "hcam.chosen is 9: it must be at most hcam.chunks, 8",
    "--method hcam --impala.bootstrap-time-limits": "impala.bootstrap_time_limits is True: it must be False with hcam",
    "--method vae --autoencoder.latent 0": "autoencoder.latent is 0: it must be at least 1",
    "--method vae --autoencoder.kl-cost nan": "autoencoder.kl_cost is nan: it must be",
    "--method reconstruction --autoencoder.every 0": "autoencoder.every is 0: it must be at least 1",
    "--method reconstruction --world.resolution 14 --agent.encoder deep": "images of at least 20x20 pixels: these have",
}
REFUSED |= {f"train gridworld {flags}": said for flags, said in REFUSED_METHODS.items()}


@pytest.mark.parametrize("line", REFUSED)
def test_bad_input_is_one_line(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    said = refused(line, capsys)
    assert REFUSED[line] in said


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
def test_no_cuda(capsys: pytest.CaptureFixture[str]) -> None:
    assert "device is cuda" in refused("train gridworld --device cuda", capsys)


class Picky(SignalConfig):
    """Finds out only when it is built."""

    def make(self, *_: Any, **__: Any) -> Any:
        raise ValueError(f"no cue fits into {self.size} pixels")


def test_a_world_of_somebodys_own(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(worlds.WORLDS, "signal", SignalConfig())
    line = f"train signal {SMALL} --steps 12 --world.size 21 --out own"
    assert refused(f"{line} --world.delay -2", capsys).startswith("world.delay is -2: it must be at least 0")
    assert refused(f"{line} --world.delay soon", capsys).startswith("--world.delay is 'soon': it must be a whole")
    with monkeypatch.context() as patch:
        patch.setitem(worlds.WORLDS, "signal", Picky())
        assert refused(line, capsys).startswith("no cue fits into 21 pixels")
    assert main(shlex.split(f"{line} --world.delay 2")) == 0
    assert json.loads(Path("own/config.json").read_text())["world"]["delay"] == 2


def test_whole_numbers() -> None:
    numbers = {"7": 7, "-3": -3, "1e6": 10**6, "4E7": 4 * 10**7, "2.5e3": 2500, "40_000_000": 4 * 10**7, "3.0": 3}
    assert {text: whole(text) for text in numbers} == numbers
    for text in ("1.5", "1e-1", "nan", "inf", "1e400", "", "x"):
        with pytest.raises(ValueError, match="invalid literal"):
            whole(text)


def test_steps_as_people_write_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(shlex.split(f"train {WORLD} {SMALL} --steps 1e2 --stop-at=1.2e1 --out run")) == 0
    assert json.loads(Path("run/config.json").read_text())["steps"] == 100 and steps_saved(Path("run")) == [12]


# Folders.


def test_folders_that_are_not_this_runs(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("file").write_text("mine")
    Path("full").mkdir()
    Path("full/thesis.tex").write_text("mine")
    assert refused(f"{TRAIN} --out file", capsys).startswith("out is 'file': that is a file, it must be a folder")
    assert refused(f"{TRAIN} --out full", capsys).startswith("out is 'full': the folder holds something else")
    said = refused(f"{TRAIN} --out run --seed 2 --impala.unroll 5", capsys)
    assert said.startswith("seed is 2, but the run in 'run' has 1")
    assert "no run is there" in refused("eval full", capsys)
    assert "no run is there" in refused("eval file", capsys)


def test_the_same_command_twice(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    before = digests(run)
    assert main(shlex.split(f"{TRAIN} --out run")) == 0
    assert "run is finished: 48 steps" in capsys.readouterr().out
    assert digests(run) == before


BOOSTED = "--method boosted --memory.familiarity 16 --memory.hop 2 --memory.transfer 3"


def test_a_memory_of_another_size(capsys: pytest.CaptureFixture[str]) -> None:
    """By its configuration; and where that was changed along with it, by the tensors of its checkpoint."""
    assert main(shlex.split(f"{TRAIN} {BOOSTED} --out run")) == 0
    said = refused(f"{TRAIN} {BOOSTED} --memory.capacity 900 --out run", capsys)
    assert said.startswith("memory.capacity is 900, but the run in 'run' has 1024")
    said = refused(f"{TRAIN} --method mem --memory.familiarity 16 --memory.hop 2 --memory.transfer 3 --out run", capsys)
    assert said.startswith("method is 'mem', but the run in 'run' has 'boosted'")
    config = Path("run/config.json")
    config.write_text(config.read_text().replace('"capacity": 1024', '"capacity": 900'))
    assert "step-000000048 belongs to another run" in refused("eval run --device cpu", capsys)
    meta = checkpoint.list_checkpoints(Path("run"))[0] / checkpoint.META
    state, found = checkpoint.load_checkpoint(meta.parent)
    found |= {"run": fingerprint(from_json(config.read_text()))}
    checkpoint.save_checkpoint(Path("run"), found["step"], state, found, keep=1)
    said = refused(f"{TRAIN} {BOOSTED} --memory.capacity 900 --steps 96 --out run", capsys)
    assert said.startswith("the checkpoint does not fit this run: its method.memory.mem.h is torch.float32 [1024, 8]")


@pytest.mark.parametrize("line", [f"{TRAIN} --out run", "eval run --episodes 1"])
def test_a_checkpoint_of_another_version(line: str, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    meta = checkpoint.list_checkpoints(run)[0] / checkpoint.META
    meta.write_text(json.dumps(json.loads(meta.read_text()) | {"format": 99}))
    said = refused(line, capsys)
    assert "has checkpoint format 99: this version of longtail reads" in said and "step-000000048" in said


def test_a_full_disk(run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    assert "out is 'new': the disk is full" in refused(f"{TRAIN} --out new", capsys)
    assert "eval.csv could not be written: No space left" in refused("eval run --episodes 1 --device cpu", capsys)


# Exit codes.


def test_not_finite(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(shlex.split(f"{TRAIN} --impala.learning-rate 1e38 --out run")) == 3
    said = capsys.readouterr().err
    assert "is not finite, first seen at step" in said and said.count("\n") == 1
    assert steps_saved(Path("run")) == []


MISTAKES = {
    "numpy, in Python": lambda: np.stack([]),
    "numpy, in C": lambda: np.zeros(3) + np.zeros(4),
    "torch": lambda: torch.zeros(3).view(2),
    "python": lambda: int("x"),
    "json": lambda: json.loads("{"),
    "not ours": lambda: (_ for _ in ()).throw(ValueError("raised elsewhere")),
    "a closed file": lambda: os.write(-1, b""),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_of_ours_are_not_taken_for_bad_input(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("longtail.doctor.print_worlds", MISTAKES[name])
    with pytest.raises((ValueError, RuntimeError, OSError)):
        main(["worlds"])


def test_absurd_numbers(run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise MemoryError("Unable to allocate 1.16 TiB")

    monkeypatch.setattr("longtail.evaluate.play_tasks", full)
    assert refused("eval run --episodes 1e10", capsys).startswith("episodes is 10000000000: so many do not fit")
    monkeypatch.setattr("longtail.doctor.print_worlds", full)
    assert "memory is too small" in refused("worlds", capsys)


class Interrupting:
    """Ctrl-C while a module of longtail is imported."""

    def find_spec(self, name: str, *_: Any) -> None:
        if name.startswith("longtail."):
            raise KeyboardInterrupt


@pytest.mark.parametrize(("line", "module"), [(TRAIN, "train"), ("bench", "bench"), ("eval run", "evaluate")])
def test_interrupted_while_importing(
    line: str, module: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delitem(sys.modules, f"longtail.{module}", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Interrupting(), *sys.meta_path])
    assert main(shlex.split(line)) == 130
    said = capsys.readouterr()
    assert said.err.startswith("interrupted") and said.err.count("\n") == 1 and not said.out


def test_interrupted_before_the_first_iteration(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("longtail.train.build", interrupted)
    assert main(shlex.split(f"{TRAIN} --out run")) == 130
    assert capsys.readouterr().err.startswith("interrupted without saving: the same command begins again")
    assert not Path("run").exists()


# Help.


def texts(path: str, *classes: str) -> list[str]:
    """The texts below the fields of a file's dataclasses; a section's is for readers of the code, it is no flag."""
    found = []
    for kind in ast.walk(ast.parse((Path(longtail.__file__).parent / path).read_text())):
        if isinstance(kind, ast.ClassDef) and kind.name in classes:
            for field, below in zip(kind.body, kind.body[1:], strict=False):
                kind_of = ast.unparse(field.annotation) if isinstance(field, ast.AnnAssign) else "Suppress"
                is_flag = "Suppress" not in kind_of and not kind_of.endswith("Config | None")
                if is_flag and isinstance(below, ast.Expr):
                    found.append(ast.literal_eval(below.value))
    assert found
    return found


RUN_TEXTS = [*texts("config.py", "RunConfig"), *texts("agents/agent.py", "AgentConfig"), *texts("cli.py", "TrainArgs")]
RUN_TEXTS += [*texts("impala/learn.py", "ImpalaConfig"), *texts("worlds/gridworld.py", "GridworldConfig")]
HELP = {
    "train gridworld": RUN_TEXTS,
    "train": RUN_TEXTS,
    "train gridworld --method boosted": [*RUN_TEXTS, *texts("memory/boosted.py", "MemoryConfig")],
    "train gridworld --method hcam": [*RUN_TEXTS, *texts("methods/hcam.py", "HCAMConfig")],
    "train gridworld --method vae": [*RUN_TEXTS, *texts("methods/autoencoder.py", "AutoencoderConfig")],
    "eval": texts("cli.py", "EvalArgs"),
    "play": texts("cli.py", "PlayArgs"),
    "bench": texts("cli.py", "BenchArgs"),
    "worlds": ["List the worlds"],
    "doctor": ["Say what works on this machine"],
}


@pytest.mark.parametrize("command", HELP)
def test_help_says_what_every_field_is(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main([*command.split(), "--help"])
    assert not end.value.code
    shown = "".join(capsys.readouterr().out.replace("│", " ").split())
    for text in HELP[command]:
        assert "".join(text.split()) in shown, text
    assert {line.split()[0] for line in HELP} == set(COMMANDS)
    assert f"What is trained: {', '.join(METHODS)}." in RUN_TEXTS


@pytest.mark.parametrize("argv", [[], ["--help"], ["-h"], ["help"]])
def test_usage(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(argv) == 0
    shown = capsys.readouterr().out
    assert all(f"longtail {command}" in shown for command in COMMANDS)


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"longtail {importlib.metadata.version('longtail')}\n"


def test_as_a_module_into_a_pipe_that_is_closed() -> None:
    """Its own errors are bad input there too, and a reader that has seen enough is no error."""
    line = f"{shlex.quote(sys.executable)} -m longtail.cli"
    script = f"{line} reprot; echo $?; {line} --version | true; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True)
    assert done.stderr.startswith("longtail: command is 'reprot'") and done.stderr.count("\n") == 1
    assert done.stdout.split() == ["2", "1"]
