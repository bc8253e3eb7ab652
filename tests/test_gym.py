"""The Gymnasium face: by Gymnasium's own rules, and the same world as without Gymnasium."""

import copy
import pickle
import subprocess
import sys
from collections.abc import Iterator
from fractions import Fraction
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.error import ResetNeeded
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from naive_gridworld import NaiveGridworld, as_entry, draw, load, move, object_at

import longtail  # noqa: F401  (registers the environments)
from longtail.worlds import HostConfig
from longtail.worlds.faces import BACKGROUND, GAP, picture, restricted
from longtail.worlds.gridworld import Gridworld, GridworldConfig
from longtail.worlds.gym import GridworldEnv, GridworldVectorEnv, gridworld_config
from longtail.worlds.levels import generate_levels
from longtail.worlds.world import TaskTable

ID = "longtail/Gridworld-v0"
SMALL = {"levels": "generated", "maps": 3, "objects": 4, "rooms": 2, "max_steps": 12}
FACTS = {"task", "map", "object", "map_rank", "object_rank", "probability"}


def make(**keywords: Any) -> Any:
    """The bare environment."""
    return gym.make(ID, **keywords).unwrapped


def make_vec(num_envs: int, **keywords: Any) -> Any:
    return gym.make_vec(ID, num_envs=num_envs, vectorization_mode="vector_entry_point", **keywords)


def episode(env: Any, actions: Any = None) -> list[Any]:
    """Whole episode by random actions from where the environment stands; everything `step` said."""
    actions = np.random.default_rng(0) if actions is None else actions
    said = []
    while not said or not (said[-1][2] or said[-1][3]):
        said.append(env.step(int(actions.integers(8))))
    return said


def outcome(world: Any) -> list[Any]:
    names = ("first", "task", "reward", "terminated", "truncated", "success", "ended_task")
    return [getattr(world, name).tolist() for name in names]


def same(one: Any, other: Any) -> bool:
    """Equal in values, types and shapes, through tuples, dictionaries and arrays of objects."""
    if isinstance(one, tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, np.ndarray) and one.dtype == object:
        return one.shape == other.shape and all(map(same, one, other))
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(one, other)
    return type(one) is type(other) and one == other


# Gymnasium's and Stable-Baselines3's rules. Warnings are errors in all tests.


@pytest.mark.parametrize(
    "keywords", [{}, {"levels": "20x20", "resolution": 63}, SMALL], ids=["10x10", "20x20", "small"]
)
def test_check_env(keywords: dict[str, Any]) -> None:
    check_env(make(**keywords))


def test_check_env_of_stable_baselines() -> None:
    checker = pytest.importorskip("stable_baselines3.common.env_checker")
    checker.check_env(make(render_mode="rgb_array"), skip_render_check=False)


def test_importing_longtail_registers_without_pytorch() -> None:
    script = (
        "import sys, longtail, gymnasium as gym; early = 'torch' in sys.modules; "
        f"env = gym.make('{ID}'); print(early, env.reset(seed=0)[0].shape)"
    )
    ran = subprocess.run([sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, check=True)
    assert ran.stdout == "False (84, 84, 3)\n"


def test_made_by_module_and_without_a_second_time_limit() -> None:
    env: Any = gym.make(f"longtail.worlds.gym:{ID}")
    while isinstance(env, gym.Wrapper):
        assert not isinstance(env, gym.wrappers.TimeLimit)
        env = env.env
    assert env.spec.max_episode_steps is None
    assert isinstance(gym.make_vec(ID, num_envs=2), type(make_vec(2)))


@pytest.mark.parametrize("keywords", [{"vectorization_mode": "async"}, {"vectorization_mode": "sync"}])
def test_gymnasiums_own_vectors(keywords: dict[str, Any]) -> None:
    torch.randn(300, 300).exp().sum()  # a fork must not depend on what the parent's threads have done
    envs = gym.make_vec(ID, num_envs=2, **keywords, **SMALL)
    alone = make(**SMALL)
    obs, info = envs.reset(seed=5)
    np.testing.assert_array_equal(obs[1], alone.reset(seed=6)[0])
    assert info.keys() > FACTS
    for _ in range(20):
        envs.step(envs.action_space.sample())
    envs.close()


# One environment.


@pytest.mark.parametrize("resolution", [63, 84])
def test_steps_as_the_naive_world(resolution: int) -> None:
    entries = load("gridworld_levels.json")["10x10"]
    naive = NaiveGridworld(entries, seed=8, world=0, max_steps=15)
    env = make(resolution=resolution, max_steps=15)
    obs, info = env.reset(seed=8)
    ends = set()
    for action in np.random.default_rng(1).integers(8, size=150):
        assert obs.tobytes() == naive.frame(resolution)
        assert info["task"] == naive.task
        expected = naive.step(int(action), resolution)
        obs, reward, terminated, truncated, info = env.step(action)
        assert obs.tobytes() == expected["final_frame"]
        assert (reward, terminated, truncated) == tuple(expected[k] for k in ("reward", "terminated", "truncated"))
        assert info["task"] == expected["ended_task"] and info.get("success", False) == expected["success"]
        assert ("success" in info) == expected["first"]
        if expected["first"]:
            ends.add((terminated, truncated))
            obs, info = env.reset()
    assert ends == {(True, False), (False, True)}


def test_info_is_the_task_table() -> None:
    env = make(**SMALL, reverse=True, exponent=1.5, law="uniform")
    table = TaskTable.product(3, 4, 1.5, reverse=True)
    _, info = env.reset(seed=0)
    seen = set()
    for _ in range(40):
        infos = [info, *(said[4] for said in episode(env))]
        seen.add(info["task"])
        for at in infos:
            assert at.keys() - {"success"} == FACTS
            for name in FACTS - {"task"}:
                assert at[name] == getattr(table, name)[info["task"]]
            assert {type(at[name]) for name in FACTS} == {int, float}
        _, info = env.reset()
    assert len(seen) > 8 and type(infos[-1]["success"]) is bool
    assert env.tasks.probability.tolist() == table.probability.tolist()


def test_success_is_touching_the_object_shown() -> None:
    entry, env = as_entry(generate_levels(0, 3, 4, 2)[0]), make(**SMALL)
    path = route(entry, target=2)
    for shown in range(4):
        env.reset(options={"map": 0, "object": shown})
        for action in path:
            _, reward, terminated, truncated, info = env.step(action)
        assert (reward, terminated, truncated, info["success"]) == (float(shown == 2), True, False, shown == 2)


def route(entry: dict[str, Any], target: int) -> list[int]:
    """Actions from the start to an object, past the others."""
    start = next((y, row.index("A")) for y, row in enumerate(entry["layout"]) if "A" in row)
    paths = {start: []}
    for square, path in iter_growing(paths):
        for action in range(8):
            after = move(entry, *square, action)
            if object_at(entry, *after) == target:
                return [*path, action]
            if object_at(entry, *after) is None:
                paths.setdefault(after, [*path, action])
    raise AssertionError("unreachable")


def iter_growing(paths: dict[tuple[int, int], list[int]]) -> Iterator[Any]:
    for i in range(1000):
        yield list(paths.items())[i]


def naive_tasks(seed: int, episodes: int, fits: Any = lambda m, o: True) -> list[int]:
    """Tasks of world 0 under the law with exponent 2 among those that fit, 3 maps x 4 objects, by exact fractions."""
    weights = [Fraction(fits(*divmod(task, 4)), (task // 4 + 1) ** 2 * (task % 4 + 1) ** 2) for task in range(12)]
    tasks = []
    for n in range(episodes):
        left, task = Fraction(draw(seed, 0, n, 0), 2**53) * sum(weights), 0
        while left >= weights[task]:
            left, task = left - weights[task], task + 1
        tasks.append(task)
    return tasks


PINS = [{}, {"map": 1}, {"object": 3}, {"map": 2, "object": np.int64(1)}]


@pytest.mark.parametrize("finish", [False, True], ids=["left", "finished"])
def test_pins_hold_for_one_episode_and_take_no_draw_from_another(finish: bool) -> None:
    env, seen = make(**SMALL), []
    for n in range(60):
        _, info = env.reset(seed=3 if n == 0 else None, options=PINS[n % 4] or None)
        seen.append(info["task"])
        said = episode(env) if finish else [env.step(0)]
        assert all(step[4]["task"] == info["task"] for step in said)
    expected = np.array([naive_tasks(3, 60, lambda m, o, p=pin: {"map": m, "object": o}.items() >= p.items())
                         for pin in PINS])  # fmt: skip
    assert seen == expected[np.arange(60) % 4, np.arange(60)].tolist()
    assert len(set(seen[1::4])) > 1 and len(set(seen[2::4])) > 1


def test_a_pin_goes_beyond_what_the_law_draws() -> None:
    env = make(**SMALL, law="rare")
    assert env.reset(seed=0)[1]["task"] == 11
    assert env.reset(options={"map": 0, "object": 0})[1]["task"] == 0
    with pytest.raises(ValueError, match="map is 0 and object is None: the law draws no such task"):
        env.reset(options={"map": 0})


BAD_OPTIONS = [
    ({"map": 3}, r"map is 3: it must be a whole number of 0\.\.2"),
    ({"map": -1, "object": 0}, r"map is -1: it must be a whole number of 0\.\.2"),
    ({"object": 4}, r"object is 4: it must be a whole number of 0\.\.3"),
    ({"object": 1.0}, r"object is 1\.0: it must be a whole number of 0\.\.3"),
    ({"map": "1"}, r"map is 1: it must be a whole number"),
    ({"map": True}, r"map is True: it must be a whole number"),
    ({"maps": 1}, r"options have 'maps': it must be one of map, object"),
]


@pytest.mark.parametrize(("options", "message"), BAD_OPTIONS)
def test_bad_options_are_named_and_change_nothing(options: dict[str, Any], message: str) -> None:
    env, other = make(**SMALL), make(**SMALL)
    envs = make_vec(2, **SMALL)
    env.reset(seed=0)
    other.reset(seed=0)
    with pytest.raises(ValueError, match=message):
        env.reset(seed=9, options=options)
    with pytest.raises(ValueError, match=message):
        envs.reset(options=options)
    assert same(env.step(2), other.step(2))
    assert same(env.reset(), other.reset())


BAD_KEYWORDS = [
    ({"sizes": 3}, "sizes is not an argument of Gridworld: it must be one of levels, level_seed"),
    ({"max_episode_step": 3}, "did you mean max_steps[?] It must be one of levels, level_seed"),
    ({"name": "x"}, "name is not an argument"),
    ({"exponent": -1}, "exponent is -1: it must be a number of at least 0"),
    ({"levels": "30x30"}, "levels is '30x30': it must be 10x10, 20x20 or generated"),
    ({"maps": 20}, "levels is '10x10', which has 10 maps x 10 objects, not 20 x 10"),
    ({"resolution": 80}, "resolution is 80: it must be a multiple of 7"),
    ({"max_steps": 0}, "max_steps is 0: it must be at least 1"),
    ({"law": "zipf"}, "law is 'zipf': it must be one of zipfian, uniform, rare"),
]


@pytest.mark.parametrize(("keywords", "message"), BAD_KEYWORDS)
def test_bad_keywords(keywords: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(**keywords)
    with pytest.raises(ValueError, match=message):
        make_vec(2, **keywords)


def test_public_levels_know_their_size() -> None:
    assert gridworld_config({"levels": "20x20"}) == GridworldConfig(levels="20x20", maps=20, objects=20)
    assert gridworld_config({}) == GridworldConfig()
    assert gridworld_config(SMALL) == GridworldConfig(**SMALL)
    assert make(levels="20x20").reset(options={"map": 19, "object": 19})[1]["map_rank"] == 20


def test_bad_calls() -> None:
    env, envs = make(**SMALL), make_vec(2, **SMALL)
    for one, action in ((env, 0), (envs, np.zeros(2, int))):
        with pytest.raises(ResetNeeded, match="call reset"):
            one.step(action)
    env.reset(seed=0)
    envs.reset(seed=0)
    for action in (8, -1, 2.5, "N", np.array([0])):
        with pytest.raises(ValueError, match=r"action is .*: it must be a whole number of 0\.\.7"):
            env.step(action)
    for actions in (np.zeros(3, int), np.zeros(2), [[0], [1]], 0):
        with pytest.raises(ValueError, match="it must be 2 whole numbers, one per world"):
            envs.step(actions)
    for actions in ([0, 8], [-1, 0]):
        with pytest.raises(ValueError, match=r"each must be a whole number of 0\.\.7"):
            envs.step(actions)
    episode(env)
    with pytest.raises(ResetNeeded, match="call reset"):
        env.step(0)
    for broken in (GridworldEnv, partial(GridworldVectorEnv, 2)):
        with pytest.raises(ValueError, match="render_mode is 'human': it must be rgb_array or None"):
            broken(render_mode="human")
    with pytest.raises(ValueError, match="num_envs is 0: it must be at least 1"):
        make_vec(0)


def test_without_a_seed_the_first_episode_is_random_and_the_next_ones_go_on() -> None:
    def tasks(one: Any, **seed: int) -> list[int]:
        return [one.reset(**(seed if n == 0 else {}))[1]["task"] for n in range(12)]

    one, other = make(law="uniform"), make(law="uniform")
    assert tasks(one) != tasks(other)
    assert tasks(one, seed=4) == tasks(other, seed=4)
    assert tasks(one) == tasks(other)  # goes on: the same draws, and other ones than before
    assert tasks(one, seed=4) != tasks(one)
    vectors = [make_vec(12, law="uniform") for _ in range(2)]
    first = [envs.reset()[1]["task"].tolist() for envs in vectors]
    again = [envs.reset()[1]["task"].tolist() for envs in vectors]
    assert len({tuple(tasks) for tasks in first + again}) == 4


def test_several_at_once_and_copies_in_the_middle_go_on_alike() -> None:
    one, other = make(**SMALL), make(**SMALL)
    one.reset(seed=1)
    other.reset(seed=2)
    for n in range(60):
        copies = [copy.deepcopy(one), pickle.loads(pickle.dumps(one))]
        for twin in copies:
            twin.step(n % 8)  # a twin's steps are its own
        copies = [copy.deepcopy(one), pickle.loads(pickle.dumps(one))]
        said = one.step(n % 8)
        other.step((n + 3) % 8)
        assert all(same(twin.step(n % 8), said) for twin in copies)
        if said[2] or said[3]:
            copies = [copy.deepcopy(one), pickle.loads(pickle.dumps(one))]
            began = one.reset()
            assert all(same(twin.reset(), began) for twin in copies)
            other.reset()
        elif (n + 1) % 12 == 0:
            one.reset()
            other.reset(seed=2)
        if not other._running:
            other.reset()


def test_pickles_are_small_and_vectors_have_them_too() -> None:
    assert len(pickle.dumps(make())) < 200_000  # the tables alone are 20 MB
    envs = make_vec(3, **SMALL)
    envs.reset(seed=1)
    for n in range(30):
        if n % 10 == 0:
            copies = [copy.deepcopy(envs), pickle.loads(pickle.dumps(envs))]
        said = envs.step(np.full(3, n % 8))
        assert all(same(twin.step(np.full(3, n % 8)), said) for twin in copies)


def test_what_was_handed_out_stays_as_it_is() -> None:
    def everything() -> Iterator[Any]:
        env, envs = make(**SMALL), make_vec(3, **SMALL)
        yield envs.reset()
        for n in range(60):
            yield env.reset() if n % 6 == 0 else env.step(0)
            yield envs.step(np.arange(3) + n % 6)

    pairs = [(said, copy.deepcopy(said)) for said in everything()]
    assert all(same(said, before) for said, before in pairs)


# Pictures.


def test_picture_shows_the_view_beside_the_map() -> None:
    env = make(**SMALL, render_mode="rgb_array")
    obs, _ = env.reset(seed=0)
    image = env.render()
    view, whole = obs, env.world.whole_map(0)
    assert whole.shape == (108, 108, 3) and image.shape == (108 + 2 * GAP, 84 + 108 + 3 * GAP, 3)
    assert (image[GAP + 12 : GAP + 96, GAP : GAP + 84] == view).all()
    assert (image[GAP:-GAP, 84 + 2 * GAP : -GAP] == whole).all()
    image[GAP + 12 : GAP + 96, GAP : GAP + 84] = image[GAP:-GAP, 84 + 2 * GAP : -GAP] = BACKGROUND
    assert (image == BACKGROUND).all()
    assert env.render().max() == 255  # a picture is the caller's own


def test_small_views_are_enlarged_beside_large_maps() -> None:
    view, whole = np.arange(12, dtype=np.uint8).reshape(2, 2, 3), np.zeros((5, 5, 3), np.uint8)
    image = picture(view, whole)
    enlarged = image[GAP : GAP + 4, GAP : GAP + 4]
    assert (enlarged == view.repeat(2, 0).repeat(2, 1)).all()


def test_the_last_picture_shows_the_end() -> None:
    env = make(**SMALL, render_mode="rgb_array")
    env.reset(seed=0)
    for _ in range(5):
        last = episode(env)[-1][0]
        for twin in (env, copy.deepcopy(env)):
            image = twin.render()
            assert (image[GAP + 12 : GAP + 96, GAP : GAP + 84] == last).all()
            assert (image[GAP:-GAP, 84 + 2 * GAP : -GAP] == env.world.whole_map(0, final=True)).all()
        obs, _ = env.reset()
        assert (env.render()[GAP + 12 : GAP + 96, GAP : GAP + 84] == obs).all()


def test_vectors_render_one_picture_each() -> None:
    envs, env = make_vec(2, **SMALL, render_mode="rgb_array"), make(**SMALL, render_mode="rgb_array")
    with pytest.raises(ResetNeeded):
        envs.render()
    with pytest.raises(ResetNeeded):
        env.render()
    envs.reset(seed=5)
    env.reset(seed=5)
    images = envs.render()
    assert len(images) == 2 and (images[0] == env.render()).all() and (images[1] != images[0]).any()


@pytest.mark.parametrize("build", [lambda: make(**SMALL), lambda: make_vec(2, **SMALL)])
def test_render_without_a_mode_says_so(build: Any) -> None:
    env = build()
    env.reset(seed=0)
    with pytest.warns(UserWarning, match=r"render_mode=.rgb_array"):
        assert env.render() is None


# The vector environment.


def test_vector_speaks_as_gymnasiums_own_does() -> None:
    """With a single task, draws cannot tell the two apart."""
    keywords = SMALL | {"maps": 1, "objects": 1, "max_steps": 40, "level_seed": 1}
    envs = make_vec(4, **keywords)
    theirs = SyncVectorEnv([lambda: make(**keywords)] * 4, autoreset_mode=AutoresetMode.SAME_STEP)
    assert envs.metadata["autoreset_mode"] == AutoresetMode.SAME_STEP
    for name in ("observation_space", "action_space", "single_observation_space", "single_action_space", "num_envs"):
        assert getattr(envs, name) == getattr(theirs, name)
    assert same(envs.reset(seed=0), theirs.reset(seed=0))
    rng, ended = np.random.default_rng(0), np.zeros(2)
    for n in range(400):
        actions = rng.integers(8, size=4)
        said, expected = envs.step(actions), theirs.step(actions)
        assert same(said, expected)
        ended += said[2].sum(), said[3].sum()
        if n % 90 == 0:
            mask = np.array([True, False, False, True])
            # Gymnasium takes the mask out of the options that it is given.
            began = [one.reset(options={"reset_mask": mask, "object": 0}) for one in (envs, theirs)]
            assert same(*began)
    assert (ended > 3).all()


@pytest.mark.parametrize("num_envs", [1, 5])
def test_vector_plays_what_the_world_plays(num_envs: int) -> None:
    envs, world = make_vec(num_envs, **SMALL), Gridworld(GridworldConfig(**SMALL), num_envs, final_obs=True)
    world.reset(6)
    world.prepare(120)
    obs, info = envs.reset(seed=6)
    for actions in np.random.default_rng(0).integers(8, size=(120, num_envs)):
        assert (obs == world.observe().numpy()).all() and (info["task"] == world.task.numpy()).all()
        assert (info["map"] == world.tasks.map[info["task"]]).all()
        world.step(torch.from_numpy(actions))
        obs, reward, terminated, truncated, info = envs.step(actions)
        over = world.first.numpy()
        assert (reward == world.reward.numpy()).all()
        assert (terminated == world.terminated.numpy()).all() and (truncated == world.truncated.numpy()).all()
        assert ("final_info" in info) == over.any()
        if over.any():
            final = info["final_info"]
            assert (info["_final_obs"] == over).all() and (info["_final_info"] == over).all()
            assert (final["task"][over] == world.ended_task.numpy()[over]).all()
            assert (final["success"][over] == world.success.numpy()[over]).all()
            for i in np.flatnonzero(over):
                assert (info["final_obs"][i] == world.observe_final()[i].numpy()).all()


def test_training_through_gymnasium_has_the_tasks_of_the_device_world() -> None:
    options = tuple(f"{key}={value}" for key, value in SMALL.items())
    hosted = HostConfig(name=f"gym:{ID}", options=options).make(6, final_obs=True)
    world = Gridworld(GridworldConfig(**SMALL), 6, final_obs=True)
    for seed in (0, 7):
        hosted.reset(seed)
        world.reset(seed)
        for actions in torch.randint(8, (60, 6), generator=torch.Generator().manual_seed(seed)):
            for one in (hosted, world):
                one.prepare(1)
                one.step(actions)
            assert outcome(hosted) == outcome(world)
            assert torch.equal(hosted.observe(), world.observe())
            assert torch.equal(hosted.observe_final(), world.observe_final())
    assert hosted.tasks.probability.tolist() == world.tasks.probability.tolist()
    assert hosted.tasks.rare.tolist() == world.tasks.rare.tolist()
    pinned = np.array([11, 0, 5, 5, 7, 2])
    hosted.pin(pinned)
    hosted.reset(1)
    for _ in range(30):
        assert (hosted.task.numpy() == pinned).all()
        hosted.step(torch.arange(6))


def test_reset_mask_begins_only_these_worlds_anew() -> None:
    envs, twin = make_vec(4, **SMALL, law="uniform"), make_vec(4, **SMALL, law="uniform")
    for one in (envs, twin):
        one.reset(seed=2)
        one.step(np.arange(4))
    options = {"reset_mask": np.array([False, True, True, False]), "map": 2, "object": [0, 1, 2, 3]}
    asked = copy.deepcopy(options)
    _, info = envs.reset(options=options)
    assert same(options, asked)
    assert info["task"].tolist() == [0, 9, 10, 0] and info["_task"].tolist() == [False, True, True, False]
    assert info["probability"][0] == 0 and info["object_rank"].tolist() == [0, 2, 3, 0]
    actions = np.array([1, 5, 5, 7])
    said, expected = envs.step(actions), twin.step(actions)
    for i in (0, 3):
        assert (said[0][i] == expected[0][i]).all() and said[4]["task"][i] == expected[4]["task"][i]
    seen = [envs.step(np.full(4, n % 8))[4]["task"] for n in range(120)]
    assert len(np.unique(np.array(seen)[:, 1])) > 4  # the pin was for one episode


@pytest.mark.parametrize("seed", [None, 3])
def test_vector_pins(seed: int | None) -> None:
    envs = make_vec(6, **SMALL)
    envs.reset(seed=0)
    assert envs.reset(seed=seed, options={"map": 1, "object": 3})[1]["task"].tolist() == [7] * 6
    info = envs.reset(seed=seed, options={"map": np.array([0, 1, 2, 0, 1, 2])})[1]
    assert info["map"].tolist() == [0, 1, 2, 0, 1, 2]
    info = envs.reset(seed=seed, options={"object": [3, None, 3, None, 3, None]})[1]
    assert info["object"].tolist()[::2] == [3, 3, 3] and info["_object"].all()
    assert len(set(envs.reset(seed=seed)[1]["task"].tolist())) > 1


def test_vector_errors() -> None:
    envs = make_vec(3, **SMALL)
    with pytest.raises(ResetNeeded, match="without reset_mask first"):
        envs.reset(options={"reset_mask": np.ones(3, bool)})
    envs.reset(seed=0)
    for mask in (np.ones(2, bool), np.zeros(3, bool), np.ones(3, int), True):
        with pytest.raises(ValueError, match=r"reset_mask is .*: it must be 3 bools, at least one of them true"):
            envs.reset(options={"reset_mask": mask})
    with pytest.raises(ValueError, match="seed and reset_mask are both given"):
        envs.reset(seed=1, options={"reset_mask": np.ones(3, bool)})
    with pytest.raises(ValueError, match=r"seed is \[1, 2, 3\]: it must be one whole number"):
        envs.reset(seed=[1, 2, 3])
    with pytest.raises(ValueError, match=r"map is \[0, 1\]: it must be one whole number, or 3, one per world"):
        envs.reset(options={"map": [0, 1]})
    with pytest.raises(ValueError, match=r"object is 9: it must be a whole number of 0\.\.3"):
        envs.reset(options={"object": [0, 9, 1]})


def test_only_one_reset_mode() -> None:
    for mode in (AutoresetMode.SAME_STEP, "SameStep"):
        assert make_vec(1, autoreset_mode=mode).metadata["autoreset_mode"] == AutoresetMode.SAME_STEP
    for mode in (AutoresetMode.NEXT_STEP, AutoresetMode.DISABLED, "NextStep", "same"):
        with pytest.raises(ValueError, match=r"autoreset_mode is \w+: it must be SameStep"):
            make_vec(1, autoreset_mode=mode)


def test_restricted_law_by_hand() -> None:
    tasks, law = TaskTable.product(2, 2, 1.0), np.array([0.5, 0.25, 0.25, 0.0])
    assert restricted(tasks, law).tolist() == law.tolist()
    assert restricted(tasks, law, map=0).tolist() == [0.5, 0.25, 0, 0]
    assert restricted(tasks, law, object=1).tolist() == [0, 0.25, 0, 0]
    assert restricted(tasks, law, map=1, object=1).tolist() == [0, 0, 0, 1]
