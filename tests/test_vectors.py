"""Environments by name, image layouts, and vectors of copies that reset in the same step."""

import os
import signal
import time

import gymnasium as gym
import numpy as np
import pytest
import toy_envs
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv

from longtail.worlds.vectors import (
    Guard,
    HostError,
    ask,
    call,
    dead_processes,
    find_spec,
    image_layout,
    make_vector,
    shut,
    told,
)


def box(*shape: int, dtype: type = np.uint8) -> gym.spaces.Box:
    return gym.spaces.Box(0, 255, shape, dtype)


def pixel(y: int, x: int, channel: int, stacked: int = 0) -> int:
    return (7 * y + 31 * x + 101 * channel + 57 * stacked) % 256


# Shape of an observation, which axis the channels are said to be, and what its axes are (s: stacked frames).
LAYOUTS = [
    ((20, 30), "auto", "yx"),
    ((20, 30), "first", "yx"),
    ((20, 30), "last", "yx"),
    ((20, 30, 3), "auto", "yxc"),
    ((20, 30, 1), "auto", "yxc"),
    ((3, 20, 30), "auto", "cyx"),
    ((4, 84, 84), "auto", "syx"),
    ((24, 20, 30), "auto", "syx"),
    ((24, 20, 30), "last", "yxc"),
    ((20, 30, 24), "auto", "cyx"),  # the rule is what it says: the shorter of the two
    ((20, 30, 24), "last", "yxc"),
    ((5, 5, 5), "auto", "yxc"),
    ((5, 5, 5), "first", "cyx"),
    ((4, 20, 30, 3), "auto", "syxc"),
    ((4, 3, 20, 30), "auto", "scyx"),
    ((4, 20, 30, 24), "first", "scyx"),
]


@pytest.mark.parametrize(("shape", "channels", "axes"), LAYOUTS)
def test_every_pixel_finds_its_place(shape: tuple[int, ...], channels: str, axes: str) -> None:
    sizes = dict(zip(axes, shape, strict=True))
    frames = np.zeros((2, *shape), np.uint8)
    for index in np.ndindex(shape):
        at = dict(zip(axes, index, strict=True))
        frames[(0, *index)] = pixel(at["y"], at["x"], at.get("c", 0), at.get("s", 0))
    layout = image_layout("gym:any", box(*shape), channels)  # type: ignore[arg-type]
    stack, depth = sizes.get("s", 1), sizes.get("c", 1)
    assert layout.hwc == (sizes["y"], sizes["x"], stack * depth)
    expected = np.zeros(layout.hwc, np.uint8)
    for y, x, s, c in np.ndindex(sizes["y"], sizes["x"], stack, depth):
        expected[y, x, s * depth + c] = pixel(y, x, c, s)
    np.testing.assert_array_equal(layout(frames), [expected, np.zeros_like(expected)])
    np.testing.assert_array_equal(layout(frames[0]), expected)


@pytest.mark.parametrize(
    "space",
    [
        box(20),
        box(2, 2, 2, 2, 2),
        box(20, 30, 3, dtype=np.float32),
        gym.spaces.Discrete(5),
        gym.spaces.Dict({"image": box(20, 30, 3)}),
    ],
)
def test_observations_that_are_no_images_are_refused(space: gym.Space) -> None:
    with pytest.raises(ValueError, match=r"gym:any observes .*it must be images, Box uint8 of shape .*; wrap it"):
        image_layout("gym:any", space, "auto")


def test_names() -> None:
    assert find_spec("gym:toy/Tasks-v0").id == find_spec("gym:toy_envs:toy/Tasks-v0").id == "toy/Tasks-v0"
    assert find_spec("gym:longtail/Gridworld-v0").id == "longtail/Gridworld-v0"  # needs no module


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "gym:toy/Task-v0",
            "did you mean toy/Tasks-v0[?] It must be gym:<id> of a registered environment, or gym:<mod",
        ),
        ("gym:toy/Tasks-v7", "did you mean toy/Tasks-v0[?]"),
        ("gym:toy_envs:toy/Own-v1", "did you mean toy/Own-v0[?]"),
        ("gym:toy/Shapes-v1", "did you mean toy/Shape-v0[?] It must be gym:<id>"),
        ("gym:CarRacer-v3", "did you mean CarRacing-v3[?] It must be gym:<id>"),
        ("gym:", "it must be gym:<id>"),
        ("gym:ALE/Pong-v5", "it must be gym:<id>"),
        ("gym:Nope-v0", "it must be gym:<id>"),  # as near to many a short name as -v0 makes it
        ("gym:Snake-v5", "it must be gym:<id>"),
        ("gym:no_such_module:A-v0", "module 'no_such_module' cannot be imported: No module named 'no_such_module'"),
        ("gym:toy_envs.inner:A-v0", "module 'toy_envs.inner' cannot be imported"),
    ],
)
def test_unknown_names_say_what_would_be_right(name: str, message: str) -> None:
    with pytest.raises(ValueError, match=f"^world is '{name}': {message}"):
        find_spec(name)


def test_forms() -> None:
    forms = {
        ("toy/Tasks-v0", "auto"): SyncVectorEnv,
        ("toy/Tasks-v0", "sync"): SyncVectorEnv,
        ("toy/Tasks-v0", "async"): AsyncVectorEnv,
        ("toy/Own-v0", "auto"): toy_envs.ToyVector,
        ("toy/Own-v0", "own"): toy_envs.ToyVector,
        ("toy/Own-v0", "sync"): SyncVectorEnv,
        ("toy/OwnNextStep-v0", "auto"): SyncVectorEnv,  # its own form does not reset in the same step
    }
    for (name, mode), kind in forms.items():
        vector = make_vector(f"gym:{name}", {}, mode, 2)  # type: ignore[arg-type]
        assert type(vector) is kind and vector.num_envs == 2
        assert vector.metadata["autoreset_mode"] == gym.vector.AutoresetMode.SAME_STEP
        shut(vector, answers=True, patience=60)


@pytest.mark.parametrize(
    ("name", "keywords", "mode", "message"),
    [
        ("toy/Tasks-v0", {}, "own", "it has no vector form of its own; use auto, sync or async"),
        ("toy/OwnNextStep-v0", {}, "own", "its own vector form resets in mode .*, not SAME_STEP; use sync or async"),
        ("toy/Tasks-v0", {"colour": 3}, "sync", "TypeError: .*unexpected keyword argument 'colour'"),
        ("toy/Own-v0", {"colour": 3}, "auto", "TypeError: .*unexpected keyword argument 'colour'"),
        ("toy/Tasks-v0", {"colour": 3}, "async", "TypeError: .*unexpected keyword argument 'colour'"),
        ("toy/Missing-v0", {}, "auto", "ModuleNotFoundError: No module named 'toy_arcade'"),
    ],
)
def test_environments_that_cannot_be_made(name: str, keywords: dict, mode: str, message: str) -> None:
    with pytest.raises(ValueError, match=f"^gym:{name} cannot be made with vectorization={mode}: .*{message}"):
        make_vector(f"gym:{name}", keywords, mode, 2)  # type: ignore[arg-type]


def test_a_process_that_dies_while_it_makes_its_environment() -> None:
    with pytest.raises(ValueError, match=r"async: .*: a process ended before it had made its environment"):
        make_vector("gym:toy/Tasks-v0", {"dies_outside": os.getpid()}, "async", 2)


@pytest.mark.parametrize("mode", ["sync", "async", "own"])
def test_attributes_are_asked_for(mode: str) -> None:
    vector = make_vector("gym:toy/Own-v0", {}, mode, 2)  # type: ignore[arg-type]
    assert ask(vector, "num_tasks", "no_such_thing") == (3, None)
    shut(vector, answers=True, patience=60)


def test_what_info_tells_and_of_whom() -> None:
    info = {"some": np.array([5, 0, 7]), "_some": np.array([True, False, True]), "all": np.array([1, 2, 3])}
    assert told(info, "some", 3)[1].tolist() == [True, False, True]
    assert told(info, "all", 3)[1].all() and told(info, "all", 3)[0] is info["all"]
    assert not told(info, "none", 3)[1].any()


def test_the_last_observation_is_kept_when_the_next_episode_is_drawn_over_it() -> None:
    env = Guard(toy_envs.ToyTasks(), "gym:toy", 0)
    env.reset(seed=0)
    for _ in range(toy_envs.LIMIT):
        wrong = (env.unwrapped.task + 1) % 3
        last, *_, truncated, _ = env.step(wrong)
    kept = last.copy()
    assert truncated and kept[12, 0, 0] == toy_envs.LIMIT
    env.reset()
    np.testing.assert_array_equal(last, kept)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("raise", r"raised in step: KeyError: 'lost' \(toy_envs\.py:\d+\)$"),
        ("four", "raised in step: ValueError: not enough values to unpack"),
        ("none", "raised in step: TypeError: float"),
        ("shape", r"observed uint8 \(19, 30\): it declares uint8 \(20, 30\)"),
        ("dtype", r"observed float32 \(20, 30\): it declares uint8 \(20, 30\)"),
    ],
)
@pytest.mark.filterwarnings("ignore:.*Worker-|.*last exception:UserWarning", "ignore:.*ERROR:UserWarning")
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_errors_name_the_world(mode: str, wrong: str, message: str) -> None:
    vector = make_vector("gym:toy/Shape-v0", {"wrong": wrong, "at": 2}, mode, 3)  # type: ignore[arg-type]
    vector.reset(seed=10)  # world 1 has the odd seed
    vector.step(np.zeros(3, np.int64))
    with pytest.raises(HostError, match=f"^world 1 of gym:toy/Shape-v0 {message}"):
        vector.step(np.zeros(3, np.int64))
    shut(vector, answers=False, patience=60)


def test_a_dead_process_is_found_and_the_others_are_ended() -> None:
    vector = make_vector("gym:toy/Shape-v0", {"wrong": "die", "at": 2}, "async", 4)
    assert isinstance(vector, AsyncVectorEnv)
    vector.reset(seed=[2, 4, 5, 6])
    vector.step(np.zeros(4, np.int64))
    with pytest.raises((EOFError, ConnectionError)):
        vector.step(np.zeros(4, np.int64))
    assert dead_processes(vector) == [2]
    began = time.monotonic()
    shut(vector, answers=False, patience=60)  # asking them would wait for the answer of world 0, which was read already
    assert time.monotonic() - began < 5
    assert dead_processes(vector) == [0, 1, 2, 3] and vector.closed


@pytest.mark.parametrize("wrong", ["hang", "hang_deaf"])
def test_processes_that_hang_are_named_and_ended(wrong: str) -> None:
    vector = make_vector("gym:toy/Shape-v0", {"wrong": wrong, "at": 2}, "async", 4)
    assert isinstance(vector, AsyncVectorEnv)
    call(vector, "reset", "toys", 60, seed=[1, 2, 3, 5])
    call(vector, "step", "toys", 60, np.zeros(4, np.int64))
    began = time.monotonic()
    try:
        with pytest.raises(HostError, match=r"^world 0, 2, 3 of toys did not answer to step within 0\.5 seconds: it h"):
            call(vector, "step", "toys", 0.5, np.zeros(4, np.int64))
        assert 0.5 <= time.monotonic() - began < 1.4  # not one patience after the other
    finally:
        shut(vector, answers=False, patience=60)
    assert dead_processes(vector) == [0, 1, 2, 3] and time.monotonic() - began < 10


def test_processes_are_waited_for_if_they_are_only_slow() -> None:
    """Patience is for each call anew, and for all worlds at once."""
    vector = make_vector("gym:toy/Shape-v0", {"wrong": "slow", "at": 1}, "async", 3)
    call(vector, "reset", "toys", 0.5, seed=1)
    began = time.monotonic()
    for _ in range(6):
        call(vector, "step", "toys", 0.5, np.zeros(3, np.int64))
    assert time.monotonic() - began > 0.5
    shut(vector, answers=True, patience=60)


def test_a_close_that_hangs_is_a_warning() -> None:
    vector = make_vector("gym:toy/Shape-v0", {"wrong": "hang_close"}, "async", 3)
    vector.reset(seed=2)  # world 1 has the odd seed
    with pytest.warns(RuntimeWarning, match=r"^world 1 did not close within 0\.5 seconds: its process was ended"):
        shut(vector, answers=True, patience=0.5)
    assert dead_processes(vector) == [0, 1, 2] and vector.closed


def test_a_failing_close_is_a_warning() -> None:
    for mode in ("sync", "async"):
        vector = make_vector("gym:toy/Shape-v0", {}, mode, 2)  # type: ignore[arg-type]
        if isinstance(vector, AsyncVectorEnv):
            os.kill(vector.processes[0].pid, signal.SIGKILL)  # type: ignore[arg-type]
            vector.processes[0].join()
        else:
            vector.set_attr("wrong", "close")
        with pytest.warns(
            RuntimeWarning,
            match=r"an environment failed in close: (KeyError|.*Error: .*[Pp]ipe)",
        ):
            shut(vector, answers=True, patience=60)
        assert vector.closed
    assert len(dead_processes(vector)) == 2


def test_processes_are_in_groups_of_their_own() -> None:
    """So Ctrl-C, which a terminal sends to the run's whole group, cannot end a world before the run is saved."""
    vector = make_vector("gym:toy/Shape-v0", {}, "async", 2)
    assert isinstance(vector, AsyncVectorEnv)
    groups = {os.getpgid(process.pid) for process in vector.processes}  # type: ignore[arg-type]
    assert len(groups) == 2 and os.getpgrp() not in groups
    shut(vector, answers=True, patience=60)
