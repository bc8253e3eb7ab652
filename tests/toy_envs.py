"""Small Gymnasium environments for tests, registered on import as toy/<name>-v0."""

import os
import signal
import time
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

LIMIT = 6


class ToyTasks(gym.Env[np.ndarray, int]):
    """The action that equals the task (the grey level of the upper half) ends an episode with reward 1.

    A wrong one costs 0.25; LIMIT wrong ones end the episode by its time limit. All frames are one array, drawn anew.
    """

    metadata = {"render_modes": []}

    def __init__(
        self,
        tasks: int = 3,
        counts: str = "num_tasks",
        obeys: bool = True,
        says_success: bool = True,
        start: int = 0,
        dies_outside: int = 0,
    ) -> None:
        self.observation_space = gym.spaces.Box(0, 255, (24, 24, 3), np.uint8)
        self.action_space = gym.spaces.Discrete(tasks, start=start)
        self.start, self.obeys, self.says_success, self._tasks = start, obeys, says_success, tasks
        if dies_outside and os.getpid() != dies_outside:
            os._exit(1)
        if counts:
            setattr(self, counts, tasks if counts == "num_tasks" else ["a task"] * tasks)
        self.frame = np.zeros((24, 24, 3), np.uint8)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.task, self.time = int(self.np_random.integers(self._tasks)), 0
        if self.obeys and options is not None:
            self.task = options["task"]
        self.noise = int(self.np_random.integers(256))
        return self._draw(), {"task": self.task}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        assert self.action_space.contains(action)
        self.time += 1
        right = action - self.start == self.task
        over = right or self.time >= LIMIT
        # A success that the return alone would not give away, to tell the two ways of counting apart.
        info = {"success": right and self.time <= 2} if self.says_success and over else {}
        return self._draw(), 1.0 if right else -0.25, right, self.time >= LIMIT, info

    def _draw(self) -> np.ndarray:
        self.frame[:12], self.frame[12:] = self.task * (255 // self._tasks), self.time
        self.frame[0, 0] = self.noise
        return self.frame


class ToyVector(VectorEnv[np.ndarray, np.ndarray, np.ndarray]):
    """ToyTasks as a vector of its own; final observations come as one array."""

    def __init__(self, num_envs: int, autoreset_mode: AutoresetMode = AutoresetMode.NEXT_STEP, **kwargs: Any) -> None:
        self.metadata = {"autoreset_mode": autoreset_mode}
        self.envs, self.num_envs = [ToyTasks(**kwargs) for _ in range(num_envs)], num_envs
        self.num_tasks, self.closings = self.envs[0].num_tasks, 0
        self.single_observation_space, self.single_action_space = (
            self.envs[0].observation_space, self.envs[0].action_space,
        )  # fmt: skip
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        options = dict(options) if options else None
        mask = options.pop("reset_mask") if options else np.ones(self.num_envs, bool)
        for i in np.flatnonzero(mask):
            self.envs[i].reset(seed=None if seed is None else seed + int(i), options=options)
        return self._frames(), {"task": np.array([env.task for env in self.envs])}

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict]:
        assert self.metadata["autoreset_mode"] == AutoresetMode.SAME_STEP
        results = [env.step(action) for env, action in zip(self.envs, actions, strict=True)]
        reward, terminated, truncated = (np.array([r[k] for r in results]) for k in (1, 2, 3))
        final, over = self._frames(), terminated | truncated
        success = np.array([r[4].get("success", False) for r in results])
        says = np.array(["success" in r[4] for r in results])
        info = {"final_obs": final, "_final_obs": over, "final_info": {"success": success, "_success": says}}
        for i in np.flatnonzero(over):
            self.envs[i].reset()
        return self._frames(), reward, terminated, truncated, info | {"task": np.array([e.task for e in self.envs])}

    def _frames(self) -> np.ndarray:
        return np.stack([env.frame for env in self.envs])

    def close_extras(self, **kwargs: Any) -> None:
        self.closings += 1


class NextStepOnly(ToyVector):
    def __init__(self, num_envs: int) -> None:
        super().__init__(num_envs)


def hang(deaf: bool = False) -> None:
    """Longer than any test waits; a deaf one cannot be asked to end."""
    if deaf:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(60)
    os._exit(1)  # nothing is left behind by a test that fails


class ToyShape(gym.Env[np.ndarray, int]):
    """Images of any shape, pixel after pixel counting on from the time; episodes of LIMIT steps; no tasks.

    From step `at` of its life on, at its reset or when it is closed, it goes wrong in the way `wrong` says if its first
    seed was odd.
    """

    metadata = {"render_modes": []}

    def __init__(self, shape: tuple[int, ...] = (20, 30), wrong: str = "", at: int = 3, dtype: str = "uint8") -> None:
        self.observation_space = gym.spaces.Box(0, 255, shape, np.dtype(dtype).type)
        self.action_space = gym.spaces.Discrete(2) if wrong != "action" else gym.spaces.Box(-1, 1, (2,))
        self.at, self.wrong, self.steps, self.seed = at, wrong, 0, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        self.seed = self.seed if seed is None else seed
        self.time = 0
        if self.wrong == "reset" and self.seed % 2:
            raise KeyError("lost")
        if self.wrong == "hang_reset" and self.seed % 2:
            hang()
        return self._draw(), {}

    def step(self, action: int) -> tuple:
        self.time, self.steps = self.time + 1, self.steps + 1
        wrong = self.wrong if self.steps >= self.at and self.seed % 2 else ""
        if wrong == "raise":
            raise KeyError("lost")
        if wrong == "die":
            os._exit(1)
        if wrong in ("hang", "hang_deaf"):
            hang(deaf=wrong == "hang_deaf")
        if wrong == "slow":
            time.sleep(0.1)
        if wrong == "four":
            return self._draw(), 0.0, False, {}
        obs = {"shape": self._draw()[:-1], "dtype": self._draw().astype(np.float32)}.get(wrong, self._draw())
        reward = {"nan": float("nan"), "inf": float("inf"), "none": None}.get(wrong, 0.5 * self.time)
        return obs, reward, False, self.time >= LIMIT, {}

    def close(self) -> None:
        if self.wrong == "close":
            raise KeyError("lost")
        if self.wrong == "hang_close" and self.seed % 2:
            hang()

    def _draw(self) -> np.ndarray:
        shape = self.observation_space.shape
        return ((np.arange(np.prod(shape)) + 7 * self.time) % 251).astype(self.observation_space.dtype).reshape(shape)


def _register(name: str, entry: type | str, **kwargs: Any) -> None:
    if f"toy/{name}-v0" not in gym.registry:
        gym.register(f"toy/{name}-v0", entry, **kwargs)


_register("Tasks", ToyTasks)
_register("Own", ToyTasks, vector_entry_point=ToyVector)
_register("OwnNextStep", ToyTasks, vector_entry_point=NextStepOnly)
_register("Shape", ToyShape)
_register("Broken", ToyShape, kwargs={"wrong": "raise"})
_register("Missing", "toy_arcade.envs:Arcade")
