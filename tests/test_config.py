"""A run's configuration: checked, written, read back exactly, and named when it differs."""

import dataclasses
import json
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tiny import tiny

from longtail import cli, train
from longtail.config import RunConfig, differences, fingerprint, from_json, to_json
from longtail.recipes import METHODS, command, recipe
from longtail.worlds import WORLDS, HostConfig, world_config

RUNS = {name: recipe(name, preset="paper") for name in WORLDS}
RUNS["tiny"] = tiny()
RUNS["gym"] = replace(
    recipe("gym:CarRacing-v3"), world=HostConfig("gym:CarRacing-v3", options=("continuous=False", "render_mode=None"))
)


@pytest.mark.parametrize("name", RUNS)
def test_written_and_read_back(name: str) -> None:
    assert from_json(to_json(RUNS[name])) == RUNS[name]


def changed(tree: dict[str, Any], path: list[str]) -> Any:
    """Another valid value of a field."""
    value = tree
    for part in path:
        value = value[part]
    others = {
        "method": "impala", "preset": "paper", "device": "auto", "precision": "bf16", "schedule": "linear",
        "encoder": "deep", "levels": "10x10", "law": "rare", "name": "other",
    }  # fmt: skip
    if isinstance(value, bool):
        return not value
    return value + 1 if isinstance(value, int) else value / 2 if isinstance(value, float) else others[path[-1]]


def fields_of(tree: dict[str, Any], path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    found: list[tuple[str, ...]] = []
    for name, value in tree.items():
        found += fields_of(value, (*path, name)) if isinstance(value, dict) else [(*path, name)]
    return found


FIELDS = [path for path in fields_of(dataclasses.asdict(tiny())) if path != ("method",)]


@pytest.mark.parametrize("path", FIELDS, ids=".".join)
def test_every_field_counts(path: tuple[str, ...]) -> None:
    tree = json.loads(to_json(tiny()))
    inner = tree
    for part in path[:-1]:
        inner = inner[part]
    before, inner[path[-1]] = inner[path[-1]], changed(tree, list(path))
    other = from_json(json.dumps(tree))
    assert differences(tiny(), other) == [(".".join(path), before, inner[path[-1]])]
    assert (fingerprint(other) == fingerprint(tiny())) == (path == ("steps",))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"steps": None}, "steps is None: it must be a whole number"),
        ({"steps": 1.5}, "steps is 1.5: it must be a whole number"),
        ({"steps": True}, "steps is True: it must be a whole number"),
        ({"device": "gpu"}, "device is 'gpu': it must be one of auto, cpu, cuda"),
        ({"worlds": 3}, "worlds is a field that this version of longtail does not know"),
        ({"impala": {}}, "impala.worlds is missing"),
        ({"impala": []}, "impala.worlds is missing"),
        ({"impala": None}, "impala.worlds is missing"),
        ({"world": {"name": "gym:x"}}, "world.options is missing"),
        ({"world": {}}, "world.name is missing"),
        ({"method": "boost"}, "method is 'boost': it must be one of impala"),
    ],
)
def test_a_file_that_is_not_of_this_version(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        from_json(json.dumps(json.loads(to_json(tiny())) | change))


@pytest.mark.parametrize("text", ["", "[]", "null", "{}", '"a"', '{"world": 3}'])
def test_a_file_that_is_no_configuration(text: str) -> None:
    with pytest.raises(ValueError, match=r"is missing|Expecting value"):
        from_json(text)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"steps": -1}, "steps is -1: it must be at least 0"),
        ({"seed": -1}, "seed is -1: it must be at least 0"),
        ({"seed": 2**63}, "seed is .*: it must be below"),
        ({"log_every": 0}, "log_every is 0: it must be at least 1"),
        ({"checkpoint_every": 0}, "checkpoint_every is 0: it must be at least 1"),
        ({"keep_checkpoints": 0}, "keep_checkpoints is 0: it must be at least 1"),
        ({"preset": "papr"}, "preset is 'papr': it must be one of default, paper"),
        ({"device": "tpu"}, "device is 'tpu': it must be one of auto, cpu, cuda"),
        ({"precision": "fp16"}, "precision is 'fp16': it must be one of auto, fp32, bf16"),
        ({"method": "impalla"}, "method is 'impalla': did you mean impala"),
        ({"world": replace(tiny().world, name="gym:x")}, "world.name is 'gym:x'"),
    ],
)
def test_values_out_of_range(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        tiny(**change)


def test_recipes() -> None:
    for name in WORLDS:
        assert recipe(name).world == world_config(name)
        paper = recipe(name, preset="paper").impala
        assert (paper.worlds, paper.learning_rate, paper.entropy_cost) == (50, 3e-4, 0.01)
    for method in METHODS:
        assert recipe("gridworld", method).method == method
    with pytest.raises(ValueError, match="preset is 'x'"):
        recipe("gridworld", preset="x")  # type: ignore[arg-type]


CHANGED = {
    "as it is": RUNS["gridworld-small"],
    "paper": RUNS["gridworld"],
    "host": replace(RUNS["gym"], seed=7),
    "own world": tiny(seed=3, impala={"bootstrap_time_limits": True, "schedule": "linear"}),
}


@pytest.mark.parametrize("name", CHANGED)
def test_a_run_says_which_command_makes_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(train, "train", lambda *args: asked.append(args))
    words = shlex.split(command(CHANGED[name], 77, Path("my runs/a")))
    assert words[0] == "longtail"
    assert cli.main(words[1:]) == 0
    assert asked == [(replace(CHANGED[name], steps=77), Path("my runs/a"), None)]


def test_a_run_config_of_its_own_defaults_is_valid() -> None:
    assert from_json(to_json(RunConfig())) == RunConfig()
