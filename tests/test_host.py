"""Worlds that live on the host: the same, step by step, as a loop over the environments themselves."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import active_children
from threading import Thread
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.vector import AsyncVectorEnv
from torch import Tensor

from longtail import worlds
from longtail.worlds import HostConfig, TaskTable
from longtail.worlds.host import HostWorld
from longtail.worlds.vectors import HostError, make_vector

OUTCOME = ("first", "task", "reward", "terminated", "truncated", "success", "ended_task")
FORMS = ("sync", "async", "own")


@contextmanager
def opened(
    name: str = "Tasks",
    num_worlds: int = 3,
    final_obs: bool = False,
    device: str = "cpu",
    options: tuple[str, ...] = (),
    **fields: Any,
) -> Iterator[HostWorld]:
    name = name if ":" in name else f"gym:toy_envs:toy/{name}-v0"
    world = HostConfig(name=name, options=options, **fields).make(num_worlds, device, final_obs)
    try:
        yield world
    finally:
        world.close()


def outcome(world: HostWorld) -> dict[str, list[float]]:
    return {name: getattr(world, name).tolist() for name in OUTCOME}


def random_actions(world: HostWorld, steps: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(world.num_actions, (steps, world.num_worlds), generator=generator).to(world.device)


def play(world: HostWorld, steps: int = 30, seed: int = 0) -> list[list[int]]:
    """Steps at random; the tasks of all episodes that began, world by world."""
    played = [[int(task)] for task in world.task]
    for action_B in random_actions(world, steps, seed):
        world.step(action_B)
        for i in world.first.nonzero()[:, 0].tolist():
            played[i].append(int(world.task[i]))
    return played


class NaiveWorlds:
    """One environment after the other, as anybody would loop over them."""

    def __init__(self, num_worlds: int, success_return: float, keywords: dict[str, Any], seed: int) -> None:
        self.envs = [gym.make("toy/Tasks-v0", disable_env_checker=True, **keywords) for _ in range(num_worlds)]
        self.success_return = success_return
        self.returns = [0.0] * num_worlds
        starts = [env.reset(seed=seed + i) for i, env in enumerate(self.envs)]
        self.obs = [obs.copy() for obs, _ in starts]
        self.task = [info["task"] for _, info in starts]

    def step(self, actions: list[int]) -> tuple[dict[str, list[float]], list[np.ndarray]]:
        rows, finals = [], []
        for i, (env, action) in enumerate(zip(self.envs, actions, strict=True)):
            obs, reward, terminated, truncated, info = env.step(action)
            final, played, success = obs.copy(), self.task[i], False
            self.returns[i] += reward
            if terminated or truncated:
                success = info.get("success", self.returns[i] > self.success_return)
                obs, info = env.reset()
                self.task[i], self.returns[i] = info["task"], 0.0
            self.obs[i] = obs.copy()
            finals.append(final)
            ended = terminated or truncated
            rows.append((ended, self.task[i], reward, terminated, truncated and not terminated, success, played))
        return {name: [row[k] for row in rows] for k, name in enumerate(OUTCOME)}, finals


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("says_success", [True, False])
def test_steps_as_a_loop_over_the_environments(form: str, says_success: bool, device: str) -> None:
    keywords = {"tasks": 4, "says_success": says_success, "start": 10}
    options = tuple(f"{key}={value}" for key, value in keywords.items())
    with opened("Own", 5, True, device, options, vectorization=form, success_return=0.3) as world:
        assert world.num_actions == 4 and len(world.tasks) == 4 and world.obs_shape == (24, 24, 3)
        world.reset(seed=7)
        naive = NaiveWorlds(5, 0.3, keywords, world._first_seed())
        assert world.first.all() and world.task.tolist() == naive.task
        seen = dict.fromkeys(OUTCOME, 0)
        out = torch.empty(5, 24, 24, 3, dtype=torch.uint8, device=device)
        for action_B in random_actions(world, 60):
            world.step(action_B)
            expected, finals = naive.step([int(action) + 10 for action in action_B])
            assert outcome(world) == expected
            np.testing.assert_array_equal(world.observe(out).cpu(), naive.obs)
            np.testing.assert_array_equal(world.observe_final().cpu(), finals)
            seen = {name: seen[name] + sum(map(bool, expected[name])) for name in OUTCOME}
        assert all(seen.values()) and seen["first"] > seen["success"]


def test_final_observations_are_asked_for() -> None:
    with opened() as world, pytest.raises(RuntimeError, match="final_obs=True"):
        world.observe_final()


@pytest.mark.parametrize("shape", [(20, 30), (4, 20, 30), (20, 30, 3), (2, 20, 30, 3)])
def test_images_of_any_layout(shape: tuple[int, ...]) -> None:
    with opened("Shape", 2, options=(f"shape={shape}",)) as world:
        env = gym.make("toy/Shape-v0", shape=shape)
        env.reset()
        for action_B in random_actions(world, 3):
            world.step(action_B)
            obs = env.step(0)[0]
            moved = {2: obs[..., None], 3: obs if shape[-1] == 3 else np.moveaxis(obs, 0, -1)}.get(obs.ndim)
            if moved is None:
                moved = np.concatenate(list(obs), -1)
            np.testing.assert_array_equal(world.observe(), [moved, moved])
        assert world.obs_shape == moved.shape


def test_the_success_of_a_return() -> None:
    """Episodes of the toy return 0.5 (1 + 2 + ... + 6) = 10.5."""
    for threshold, succeeds in ((10.0, True), (10.5, False)):
        with opened("Shape", 2, success_return=threshold) as world:
            for t in range(1, 19):
                world.step(torch.zeros(2, dtype=torch.int64))
                assert world.success.tolist() == [succeeds and t % 6 == 0] * 2


COUNTS = [
    # options, num_tasks, tasks
    (("tasks=5",), 0, 5),
    (("tasks=5", "counts=tasks"), 0, 5),
    (("tasks=5", "counts="), 5, 5),
    (("tasks=5", "counts="), 1, 1),  # tasks may be ignored
    (("tasks=5",), 6, 6),
]


@pytest.mark.parametrize("form", ["sync", "async"])
@pytest.mark.parametrize(("options", "num_tasks", "expected"), COUNTS)
def test_how_many_tasks_there_are(form: str, options: tuple[str, ...], num_tasks: int, expected: int) -> None:
    with opened(options=options, num_tasks=num_tasks, vectorization=form) as world:
        assert len(world.tasks) == expected
        np.testing.assert_allclose(world.tasks.probability, 1 / expected)
        played = {task for tasks in play(world) for task in tasks}
        assert played == (set(range(5)) if expected > 1 else {0})


def test_without_tasks_there_is_one() -> None:
    with opened("Shape") as world:
        assert len(world.tasks) == 1
        assert play(world) == [[0] * 6] * 3
        world.pin(np.zeros(3, np.int64))
        world.reset(1)
        assert play(world) == [[0] * 6] * 3


def test_tasks_that_nobody_counts_are_an_error() -> None:
    with pytest.raises(ValueError, match=r"does not say how many: set --world\.num-tasks"):
        HostConfig(name="gym:toy_envs:toy/Tasks-v0", options=("counts=",)).make(2)
    with pytest.raises(ValueError, match="num_tasks is 3: gym:longtail/Gridworld-v0 has 100 tasks; leave it at 0"):
        HostConfig(name="gym:longtail/Gridworld-v0", num_tasks=3).make(2)


@pytest.mark.parametrize("form", FORMS)
def test_pinned_tasks_come_back_until_weights_undo_it(form: str) -> None:
    with opened("Own", 6, options=("tasks=4",), vectorization=form) as world:
        pinned = np.array([0, 3, 1, 1, 2, 3])
        world.pin(pinned)
        world.reset(1)
        assert [set(tasks) for tasks in play(world)] == [{task} for task in pinned.tolist()]
        world.set_weights(world.tasks.probability)
        assert all(len(set(tasks[1:])) > 1 for tasks in play(world, 60))
        world.set_weights(np.eye(4)[3])
        assert all(set(tasks[1:]) == {3} for tasks in play(world))


@pytest.mark.parametrize("form", FORMS)
def test_a_pinned_world_leaves_the_others_alone(form: str) -> None:
    """World 1 begins again and again to get its task; worlds 0 and 2 do what they do alone, to the pixel."""
    recorded = []
    for pinned in (False, True):
        with opened("Own", 3, options=("tasks=4",), vectorization=form) as world:
            world.reset(5)
            if pinned:
                weights_Bn = np.tile(world.tasks.probability, (3, 1))
                weights_Bn[1] = np.eye(4)[2]
                world.set_weights(weights_Bn)
            frames = []
            for action_B in random_actions(world, 60):
                world.step(action_B)
                frames.append(world.observe()[[0, 2]].numpy())
            recorded.append(np.stack(frames))
    np.testing.assert_array_equal(*recorded)


def test_pinning_that_is_not_obeyed_is_an_error() -> None:
    with opened(options=("obeys=False",)) as world:
        world.pin(np.array([0, 1, 2]))
        with pytest.raises(
            HostError, match=r"not let tasks be pinned: it began task \d where reset.* asked for task \d"
        ):
            world.reset(0)


def test_a_vector_that_restarts_the_wrong_worlds_is_an_error() -> None:
    with opened("Own", options=("tasks=200",)) as world:
        world.reset(0)
        reset = world._vector.reset
        with changed(world, "reset", lambda _: reset(seed=9, options={"reset_mask": np.ones(3, bool), "task": 3})):
            world._pinned_B[:] = [3, *world.task[1:]]
            with pytest.raises(HostError, match=r"does not obey options.*: it began other worlds again as well"):
                world._take_tasks({"task": world.task.numpy().copy()}, np.ones(3, bool))


def test_laws_of_ones_own_are_refused() -> None:
    with opened() as world:
        for weights in ([0.5, 0.5, 0], [3, 2, 1], np.tile([3, 2, 1], (3, 1))):
            with pytest.raises(ValueError, match=r"weights ask for a law of their own: .* draws its tasks itself"):
                world.set_weights(np.array(weights))
        for weights in ([0, 0, 0], [1, -1, 0], [np.nan, 1, 0]):
            with pytest.raises(ValueError, match="weights must be finite and at least 0, with at least one above 0"):
                world.set_weights(np.array(weights))
        with pytest.raises(ValueError, match=r"weights have shape \(4,\): it must be \(3,\) or \(3, 3\)"):
            world.set_weights(np.ones(4))
        for tasks in ([0, 1], [0, 1, 3], [-1, 0, 1], [0.0, 1.0, 2.0], 1):
            with pytest.raises(ValueError, match=r"it must be 3 task ids of 0\.\.2, one per world"):
                world.pin(np.array(tasks))


def frames_ahead(world: HostWorld) -> set[bytes]:
    """A pixel of every world through the next steps: 256 grey levels of noise, so a few episodes tell worlds apart."""
    seen = [world.observe()[:, 0, 0, 0]]
    for _ in range(24):
        world.step(torch.zeros(world.num_worlds, dtype=torch.int64))
        seen.append(world.observe()[:, 0, 0, 0])
    return {bytes(row) for row in torch.stack(seen, 1).numpy()}


@pytest.mark.parametrize("form", FORMS)
def test_worlds_and_runs_share_no_draws(form: str) -> None:
    """Gymnasium gives world i the seed s + i: runs with neighbouring seeds would repeat each other's worlds."""
    with opened("Own", 16, vectorization=form) as world:
        seen: set[bytes] = set()
        for seed in (1, 2, 3, 2**40):
            world.reset(seed)
            seen |= frames_ahead(world)
        assert len(seen) == 16 * 4
        world.reset(2)
        assert frames_ahead(world) <= seen


@pytest.mark.parametrize("form", FORMS)
def test_a_resumed_world_begins_new_episodes_that_repeat_no_draws(form: str) -> None:
    with opened("Own", 8, vectorization=form) as world, opened("Own", 8, vectorization=form) as other:
        world.pin(np.arange(8) % 3)
        world.reset(4)
        seen = frames_ahead(world)
        for generation in range(3):
            saved = {name: tensor.clone() for name, tensor in world.state_dict().items()}
            assert saved["generation"] == generation
            world.load_state_dict(saved)
            other.load_state_dict(saved)
            assert world.first.all() and not world.success.any() and not world.reward.any()
            assert world.task.tolist() == [0, 1, 2, 0, 1, 2, 0, 1]
            ahead = frames_ahead(world)
            assert len(ahead) == 8 and ahead.isdisjoint(seen)
            assert frames_ahead(other) == ahead  # whoever resumes from it, and how often
            seen |= ahead
        saved["seed"] += 1
        other.load_state_dict(saved)
        assert frames_ahead(other).isdisjoint(seen)


def test_seeds_of_any_size_are_saved() -> None:
    with opened() as world:
        for seed in (0, 2**63 + 5, 2**64 - 1, -3):
            world.reset(seed)
            played = play(world)
            world.load_state_dict(world.state_dict())
            world.reset(seed)
            assert play(world) == played


@contextmanager
def changed(world: HostWorld, method: str, change: Callable[[Any], Any]) -> Iterator[None]:
    """What the vector environment returns, changed on its way to the world."""
    method += "_wait" if isinstance(world._vector, AsyncVectorEnv) else ""
    original = getattr(world._vector, method)
    setattr(world._vector, method, lambda *args, **kwargs: change(original(*args, **kwargs)))
    try:
        yield
    finally:
        setattr(world._vector, method, original)


def task_of(world: int, task: Any) -> Callable[[Any], Any]:
    def change(result: Any) -> Any:
        *rest, info = result
        tasks = np.array(info["task"], object)
        tasks[world] = task
        return (*rest, info | {"task": tasks})

    return change


@pytest.mark.parametrize("task", [3, -1, "one", 1.0, None])
@pytest.mark.parametrize("form", FORMS)
def test_nonsense_tasks_name_the_world(form: str, task: Any) -> None:
    with opened("Own", vectorization=form) as world, changed(world, "reset", task_of(1, task)):
        message = rf'world 1 of gym:.*Own-v0 began an episode with info\["task"\] {task}: it must be .* of 0\.\.2'
        with pytest.raises(HostError, match=message):
            world.reset(0)


def without(*keys: str) -> Callable[[Any], Any]:
    def change(result: Any) -> Any:
        *rest, info = result
        return (*rest, {key: value for key, value in info.items() if key.removeprefix("_") not in keys})

    return change


def test_what_is_missing_names_the_world() -> None:
    with opened(final_obs=True) as world:
        for key, message in (
            ("task", r"world \d .*task.* None"),
            ("final_obs", r'of world \d without info\["final_obs'),
        ):
            world.reset(0)
            with changed(world, "step", without(key)), pytest.raises(HostError, match=message):
                play(world, 10)
        with changed(world, "reset", without("task")), pytest.raises(HostError, match=r"world 0 .*task.* None"):
            world.reset(0)


def part(index: int, value: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda result: (*result[:index], value(result[index]), *result[index + 1 :])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            part(0, lambda obs: obs[:2]),
            r"observed uint8 \(2, 24, 24, 3\): it must be uint8 \(3, 24, 24, 3\), one image p",
        ),
        (part(0, lambda obs: obs[:, :20]), r"observed uint8 \(3, 20, 24, 3\)"),
        (part(0, lambda obs: obs.astype(np.float32)), r"observed float32 \(3, 24, 24, 3\)"),
        (part(0, list), "observed list"),
        (part(1, lambda reward: reward[:2]), r"gave rewards of shape \(2,\): it must be one per world"),
        (part(2, lambda _: False), r"gave terminated of shape \(\)"),
        (part(3, lambda t: t[:, None]), r"gave truncated of shape \(3, 1\)"),
        (part(1, lambda _: np.array([0, np.nan, 0])), r"^world 1 of .* gave the reward nan: it must be finite"),
        (part(1, lambda _: np.array([0, 0, np.inf])), r"^world 2 of .* gave the reward inf"),
    ],
)
def test_nonsense_of_a_vector_of_its_own(change: Callable[[Any], Any], message: str) -> None:
    with opened("Own") as world, changed(world, "step", change), pytest.raises(HostError, match=message):
        world.step(torch.zeros(3, dtype=torch.int64))


RAISED = r"raised in step: KeyError: 'lost' \(toy_envs\.py:\d+\)$"
NAN = "gave the reward nan: it must be finite"
SHAPE = r"observed uint8 \(19, 30\): it declares uint8 \(20, 30\)"


@pytest.mark.filterwarnings("ignore:.*ERROR:UserWarning")
@pytest.mark.parametrize(
    ("form", "wrong", "message"),
    [
        ("sync", "raise", f"^world {{}} of gym:toy_envs:toy/Shape-v0 {RAISED}"),
        ("async", "raise", f"^world {{}} of gym:toy_envs:toy/Shape-v0 {RAISED}"),
        ("sync", "nan", f"^world {{}} of gym:toy_envs:toy/Shape-v0 {NAN}"),
        ("async", "nan", f"^world {{}} of gym:toy_envs:toy/Shape-v0 {NAN}"),
        ("sync", "shape", f"^world {{}} of gym:toy_envs:toy/Shape-v0 {SHAPE}"),
        ("async", "shape", f"^world {{}} of gym:toy_envs:toy/Shape-v0 {SHAPE}"),
        ("async", "die", "^the process of world {} of gym:toy_envs:toy/Shape-v0 failed in step: "),
    ],
)
def test_an_environment_that_goes_wrong_is_named_and_all_are_closed(form: str, wrong: str, message: str) -> None:
    with opened("Shape", 2, options=(f"wrong={wrong}",), vectorization=form) as world:
        world.reset(0)
        odd = 1 - world._first_seed() % 2  # which of the two worlds has an odd seed
        world.step(torch.zeros(2, dtype=torch.int64))
        world.step(torch.zeros(2, dtype=torch.int64))
        with pytest.raises(HostError, match=message.format(odd)):
            world.step(torch.zeros(2, dtype=torch.int64))
    assert world._vector.closed
    assert not any(process.is_alive() for process in getattr(world._vector, "processes", ()))


def test_an_environment_that_hangs_is_named_and_all_are_closed() -> None:
    with opened("Shape", 2, options=("wrong=hang",), vectorization="async", patience=0.5) as world:
        world.reset(0)
        odd = 1 - world._first_seed() % 2
        world.step(torch.zeros(2, dtype=torch.int64))
        world.step(torch.zeros(2, dtype=torch.int64))
        with pytest.raises(HostError, match=rf"^world {odd} of .*toy/Shape-v0 did not answer to step within 0\.5 sec"):
            world.step(torch.zeros(2, dtype=torch.int64))
    assert world._vector.closed and not active_children()
    with pytest.raises(HostError, match=r"^world 1 of .*toy/Shape-v0 did not answer to reset within 0\.5 seconds"):
        HostConfig(
            "gym:toy_envs:toy/Shape-v0", options=("wrong=hang_reset",), vectorization="async", patience=0.5
        ).make(2)
    assert not active_children()


def test_without_patience_a_world_is_waited_for() -> None:
    """Control: it is the limit that ends the wait above, not what the environment does."""
    raised: list[HostError] = []

    def step(world: HostWorld) -> None:
        try:
            world.step(torch.zeros(2, dtype=torch.int64))
        except HostError as error:
            raised.append(error)

    with opened("Shape", 2, options=("wrong=hang", "at=1"), vectorization="async", patience=0) as world:
        vector: Any = world._vector
        thread = Thread(target=step, args=(world,), daemon=True)
        thread.start()
        thread.join(1)
        assert thread.is_alive() and not raised
        for process in vector.processes:
            process.kill()
        thread.join(10)
        assert "the process of world" in str(raised[0])


def test_close_in_all_circumstances(monkeypatch: pytest.MonkeyPatch) -> None:
    with opened("Own") as world:
        vector: Any = world._vector
        world.close()
        world.close()
        assert vector.closings == 1
    made = []
    monkeypatch.setattr("longtail.worlds.host.make_vector", lambda *args: made.append(make_vector(*args)) or made[-1])
    for name, options in (("Shape", ("shape=(20,)",)), ("Shape", ("wrong=action",)), ("Tasks", ("counts=",))):
        with pytest.raises(ValueError, match="gym:toy/"):
            HostConfig(name=f"gym:toy/{name}-v0", options=options).make(2)
    assert len(made) == 3 and all(vector.closed for vector in made)


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_a_call_that_is_broken_off_can_be_closed(error: type[BaseException], monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C in a notebook hits between the answers of two processes; asking again would wait for ever."""
    with opened("Tasks", 3, vectorization="async") as world:
        vector: Any = world._vector

        def interrupted() -> Any:
            raise error

        monkeypatch.setattr(vector.parent_pipes[1], "recv", interrupted, raising=False)
        with pytest.raises(error):
            world.step(torch.zeros(3, dtype=torch.int64))
    assert not any(process.is_alive() for process in vector.processes)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"name": "gym:CartPole-v1"},
            "gym:CartPole-v1 observes Box.*: it must be images, .*; wrap it so that it gives i",
        ),
        ({"name": "gym:toy/Shape-v0", "options": ("wrong=action",)}, r"acts by Box.*: it must be Discrete; wrap it so"),
        ({"name": "gym:toy/Shape-v0", "options": ("dtype=float32",)}, r"observes Box.*float32\): it must be images"),
        ({"name": "gym:toy/Nothing-v0"}, "world is 'gym:toy/Nothing-v0'"),
        ({"name": "gym:CarRacing-v3"}, "gym:CarRacing-v3 cannot be made .*: DependencyNotInstalled: .*pip install"),
        ({"options": ("size",)}, "option is 'size': it must be key=value, such as size=9"),
        ({"options": ("a=1", "=9")}, "option is '=9'"),
        ({"options": ("two words=9",)}, "option is 'two words=9'"),
        ({"num_tasks": -1}, "num_tasks is -1: it must be at least 0"),
        ({"patience": -0.5}, r"patience is -0\.5: it must be at least 0 \(0 waits for ever\)"),
        ({"patience": float("nan")}, "patience is nan: it must be at least 0"),
        ({"patience": float("inf")}, "patience is inf: .* and at most 1e\\+06 seconds"),
        ({"vectorization": "threads"}, "vectorization is 'threads': it must be one of auto, own, sync, async"),
        ({"channels": "middle"}, "channels is 'middle': it must be one of auto, first, last"),
    ],
)
def test_bad_input_is_one_line(fields: dict[str, Any], message: str) -> None:
    if fields.get("name") == "gym:CarRacing-v3" and gym_has("Box2D"):
        pytest.skip("Box2D is installed")
    with pytest.raises(ValueError, match=message) as caught:
        HostConfig(**{"name": "gym:toy/Tasks-v0"} | fields).make(2)
    assert "\n" not in str(caught.value)


def gym_has(module: str) -> bool:
    import importlib.util

    return importlib.util.find_spec(module) is not None


def test_options_are_literals_or_text() -> None:
    config = HostConfig(options=("a=3", "b=(4, 84)", "c=True", "d=10x10", "e=", "f='7'", "g=x=y", "h=None"))
    expected = {"a": 3, "b": (4, 84), "c": True, "d": "10x10", "e": "", "f": "7", "g": "x=y", "h": None}
    assert config.keywords() == expected


class TestOurOwn:
    """Gridworld through Gymnasium and back is Gridworld."""

    options = ("levels=10x10",)

    def test_the_table_comes_along(self) -> None:
        for form in ("own", "sync"):
            with opened("gym:longtail/Gridworld-v0", 2, options=self.options, vectorization=form) as world:
                assert isinstance(world.tasks, TaskTable)
                native = worlds.make(worlds.world_config("gridworld"), 1)
                np.testing.assert_array_equal(world.tasks.probability, native.tasks.probability)

    def test_the_same_steps_as_without_gymnasium(self) -> None:
        native = worlds.make(worlds.world_config("gridworld"), 6, final_obs=True)
        with opened("gym:longtail/Gridworld-v0", 6, True, options=self.options) as world:
            native.reset(3)
            world.reset(3)
            ended = 0
            for t, action_B in enumerate(random_actions(world, 300)):
                if t % 100 == 0:
                    native.prepare(100)
                native.step(action_B)
                world.step(action_B)
                for name in OUTCOME:
                    assert torch.equal(getattr(native, name), getattr(world, name)), name
                assert torch.equal(native.observe(), world.observe())
                assert torch.equal(native.observe_final(), world.observe_final())
                ended += int(world.first.sum())
            assert ended > 6

    @pytest.mark.parametrize("form", ["own", "sync"])
    def test_maps_and_objects_are_pinned(self, form: str) -> None:
        with opened("gym:longtail/Gridworld-v0", 4, options=self.options, vectorization=form) as world:
            pinned = np.array([99, 0, 42, 42])
            world.pin(pinned)
            world.reset(0)
            assert [set(tasks) for tasks in play(world, 150)] == [{99}, {0}, {42}, {42}]
