"""A run's configuration: checked, written, read back exactly, and named when it differs."""

import dataclasses
import json
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from counting import counting_run
from tiny import tiny

from examples.signal_world import SignalConfig
from longtail import cli, train
from longtail.agents.agent import AgentConfig
from longtail.config import OPERATIONAL, RunConfig, differences, fingerprint, from_json, to_json
from longtail.memory import MemoryConfig
from longtail.methods import METHODS, SECTIONS
from longtail.methods.hcam import HCAMConfig
from longtail.recipes import command, hosted, preset_label, recipe
from longtail.worlds import WORLDS, GridworldConfig, HostConfig, world_config

RUNS = {name: recipe(name, preset="paper") for name in WORLDS}
RUNS |= {f"paper {method}": recipe("gridworld", method, "paper") for method in METHODS}
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
        "encoder": "deep", "levels": "10x10", "law": "rare", "name": "gridworld-20", "selection": "rare",
        "eviction": "familiar-first", "negatives": "all",
    }  # fmt: skip
    if isinstance(value, bool):
        return not value
    return value + 1 if isinstance(value, int) else value / 2 if isinstance(value, float) else others[path[-1]]


def fields_of(tree: dict[str, Any], path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    found: list[tuple[str, ...]] = []
    for name, value in tree.items():
        found += fields_of(value, (*path, name)) if isinstance(value, dict) else [(*path, name)]
    return found


# A run in which another value of the field is valid: one method has no contrastive loss, another no other eviction.
OWNERS = {"memory": "boosted", "hcam": "hcam", "autoencoder": "vae"}
RUN_OF = {path: tiny() for path in fields_of(dataclasses.asdict(tiny())) if path[0] not in ("method", *SECTIONS)}
RUN_OF |= {
    path: tiny(method=method)
    for section, method in OWNERS.items()
    for path in fields_of(dataclasses.asdict(tiny(method=method)))
    if path[0] == section
}
RUN_OF |= {("memory", name): tiny(method="mem-contrastive") for name in ("contrastive", "selection")}


@pytest.mark.parametrize("path", RUN_OF, ids=".".join)
def test_every_field_counts(path: tuple[str, ...]) -> None:
    run = RUN_OF[path]
    tree = json.loads(to_json(run))
    inner = tree
    for part in path[:-1]:
        inner = inner[part]
    before, inner[path[-1]] = inner[path[-1]], changed(tree, list(path))
    other = from_json(json.dumps(tree))
    assert differences(run, other) == [(".".join(path), before, inner[path[-1]])]
    assert (fingerprint(other) == fingerprint(run)) == (".".join(path) in {"steps", *OPERATIONAL})


def test_every_section_is_covered() -> None:
    assert set(OWNERS) == set(SECTIONS)
    assert {path[0] for path in RUN_OF} == {f.name for f in dataclasses.fields(RunConfig)} - {"method"}
    assert len({fingerprint(tiny(method=method)) for method in METHODS}) == len(METHODS)


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
        ({"world": {"name": "griworld"}}, "world.name is 'griworld': it must be one of gridworld, .* or gym:"),
        ({"method": "dqn"}, "method is 'dqn': it must be one of impala"),
        ({"method": "boost"}, "method is 'boost': did you mean boosted"),
        ({"memory": {}}, "memory.capacity is missing"),
        ({"memory": 3}, "memory.capacity is missing"),
        ({"hcam": {"chunk": 4}}, "hcam.chunks is missing"),
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
        ({"method": "boosted", "hcam": HCAMConfig()}, "hcam is given, but method is 'boosted': it must be None"),
        ({"memory": MemoryConfig()}, "memory is given, but method is 'impala': it must be None, impala has no section"),
        ({"method": "hcam", "impala": {"bootstrap_time_limits": True}}, "bootstrap_time_limits is True: it must be"),
        ({"world": replace(tiny().world, name="gym:x")}, "world.name is 'gym:x'"),
        ({"world": HostConfig("gridworld")}, "world.name is 'gridworld': gym: is for Gymnasium"),
        ({"world": GridworldConfig("mine")}, "world.name is 'mine': it must be gridworld or gridworld-20 or"),
        ({"world": SignalConfig("gridworld")}, "world.name is 'gridworld': that is the name of another world"),
        ({"impala": {"learning_rate": float("inf")}}, "impala.learning_rate is inf: it must be a finite"),
        ({"impala": {"grad_clip": float("inf")}}, "impala.grad_clip is inf: it must be a finite number"),
        ({"world": HostConfig("gym:x", success_return=float("nan"))}, "world.success_return is nan: it must be"),
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
        ours = recipe(name).impala
        assert (ours.worlds, ours.learning_rate, ours.entropy_cost) == (32, 1e-3, 0.003)
    for method in METHODS:
        assert recipe("gridworld", method).method == method
        assert recipe("gridworld", method) == RunConfig(method=method)
    with pytest.raises(ValueError, match="preset is 'x'"):
        recipe("gridworld", preset="x")  # type: ignore[arg-type]
    assert hosted("gym:x", preset="paper").impala == recipe("gridworld", preset="paper").impala
    assert hosted("gym:x").impala == replace(RunConfig().impala, worlds=8)


def test_worlds_of_somebodys_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a name of their own: registered or not, but read back from a folder only if they are."""
    assert counting_run().world_label == "counting"
    run = tiny(world=SignalConfig(delay=5))
    with pytest.raises(ValueError, match=r"world\.name is 'signal': it must be one of gridworld"):
        from_json(to_json(run))
    monkeypatch.setitem(WORLDS, "signal", SignalConfig())
    assert from_json(to_json(run)) == run and run.world_label == "signal-delay-5"
    with pytest.raises(ValueError, match=r"world\.name is 'light': it must be signal, or registered in WORLDS"):
        tiny(world=SignalConfig("light"))
    monkeypatch.setitem(WORLDS, "light", SignalConfig("light", size=36))
    assert recipe("light").world_label == "light"


@pytest.mark.parametrize(
    ("world", "label"),
    [
        *((config, name) for name, config in WORLDS.items()),
        (GridworldConfig(levels="generated", level_seed=3), "gridworld-levels-generated-level_seed-3"),
        (GridworldConfig(reverse=True), "gridworld-reverse"),
        (replace(WORLDS["gridworld-20"], maps=10), "gridworld-20-maps-10"),
        (HostConfig("gym:a:B-v0"), "gym:a:B-v0"),
        (HostConfig("gym:B-v0", options=("n=3", "a=")), "gym:B-v0-options-n=3,a="),
    ],
)
def test_a_world_says_what_it_is(world: Any, label: str) -> None:
    assert tiny(world=world).world_label == label


OTHER = {"memory": {"neighbours": 8}, "hcam": {"chosen": 3}, "autoencoder": {"cost": 0.5}}


def test_a_preset_is_named_only_where_it_is_used() -> None:
    for name in (*WORLDS, "gym:x"):
        for preset in ("default", "paper"):
            run = recipe(name, preset=preset)  # type: ignore[arg-type]
            assert preset_label(replace(run, seed=3, steps=7, log_every=1, device="cpu")) == preset
            assert preset_label(replace(run, impala=replace(run.impala, unroll=20))) == "custom"
            assert preset_label(replace(run, agent=AgentConfig(encoder="deep"))) == "custom"
    for method, entry in METHODS.items():
        assert preset_label(recipe("gridworld", method)) == "default"
        assert preset_label(recipe("gridworld", method, "paper")) == "paper"
        if entry.section:
            other = replace(recipe("gridworld", method).method_config, **OTHER[entry.section])  # type: ignore[type-var]
            assert preset_label(replace(recipe("gridworld", method), **{entry.section: other})) == "custom"  # type: ignore[arg-type]
    assert preset_label(replace(recipe("gridworld"), preset="paper")) == "custom"
    assert preset_label(counting_run()) == "custom"


def test_the_name_of_a_world_is_no_flag(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(train, "train", lambda *args: None)
    for line in ("gridworld --world.name gridworld-20", "gym:a --world.name gym:b"):
        assert cli.main(["train", *line.split()]) == 2
        assert "not understood: --world.name" in capsys.readouterr().err


CHANGED = {
    "as it is": RUNS["gridworld-small"],
    "paper": RUNS["gridworld"],
    "host": replace(RUNS["gym"], seed=7),
    "own world": tiny(seed=3, impala={"bootstrap_time_limits": True, "schedule": "linear"}),
    "own memory": tiny(method="boosted", memory=MemoryConfig(neighbours=8, transfer_once=False, negatives="all")),
    "own chunks": tiny(method="hcam", hcam=HCAMConfig(chunk=4, chosen=3)),
    "paper's memory": recipe("gridworld", "boosted", "paper"),
}


@pytest.mark.parametrize("name", CHANGED)
def test_a_run_says_which_command_makes_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(train, "train", lambda *args: asked.append(args))
    words = shlex.split(command(CHANGED[name], 77, Path("my runs/a")))
    assert words[0] == "longtail"
    assert cli.main(words[1:]) == 0
    assert asked == [(replace(CHANGED[name], steps=77), Path("my runs/a"), None)]


def test_a_run_config_of_its_own_defaults_is_the_default_preset() -> None:
    assert from_json(to_json(RunConfig())) == RunConfig() == recipe("gridworld")
