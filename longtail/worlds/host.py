"""Any Gymnasium environment with image observations and discrete actions, as a world.

The environment steps on the host, in B copies behind a Gymnasium vector environment; this file turns what it says
into the tensors of the world contract and never asks it for more than Gymnasium's own interface.
"""

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_args

import gymnasium as gym
import numpy as np
import torch
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv
from torch import Tensor
from tyro.conf import Suppress

from longtail.worlds.vectors import (
    Channels,
    HostError,
    Vectorization,
    ask,
    call,
    dead_processes,
    image_layout,
    listed,
    make_vector,
    shut,
    told,
)
from longtail.worlds.world import TaskTable

OWN_LAW = -1  # instead of a pinned task: the environment chooses
LONGEST = 1e6  # seconds: the system takes waits of up to 24 days


@dataclass(frozen=True)
class HostConfig:
    """An environment that lives on the host, behind Gymnasium."""

    name: Suppress[str] = "gym:"
    """gym:<id> of a registered environment; gym:<module>:<id> imports the module that registers it first."""
    options: tuple[str, ...] = ()
    """Arguments of the environment as key=value; a value that is not a Python literal is taken as text."""
    vectorization: Vectorization = "auto"
    """How copies run: the environment's own vector form, one process for all (sync) or one process each (async);
    auto takes its own if that resets in the same step, else sync."""
    patience: float = 60.0
    """Seconds that a reset, a step or the closing of an environment in a process of its own (async) may take; 0 waits
    for ever."""
    channels: Channels = "auto"
    """Which axis of an image holds its channels or stacked frames; auto takes the shorter of the first and the last."""
    num_tasks: int = 0
    """Number of tasks that `info["task"]` counts, from 0; 0 asks the environment for `num_tasks` or `tasks`."""
    success_return: float = 0.0
    """An episode whose return is above this counts as a success when the environment does not say."""

    def __post_init__(self) -> None:
        for name, choices in {"vectorization": get_args(Vectorization), "channels": get_args(Channels)}.items():
            if getattr(self, name) not in choices:
                raise ValueError(f"{name} is {getattr(self, name)!r}: it must be one of {', '.join(choices)}")
        if self.num_tasks < 0:
            raise ValueError(f"num_tasks is {self.num_tasks}: it must be at least 0 (0 asks the environment)")
        if not 0 <= self.patience <= LONGEST:
            raise ValueError(
                f"patience is {self.patience}: it must be at least 0 (0 waits for ever) and at most {LONGEST:g} seconds"
            )
        for option in self.options:
            key, equals, _ = option.partition("=")
            if not (equals and key.isidentifier()):
                raise ValueError(f"option is {option!r}: it must be key=value, such as size=9")

    def keywords(self) -> dict[str, Any]:
        """The arguments for the environment, parsed."""
        pairs = (option.split("=", 1) for option in self.options)
        return {key: _literal(value) for key, value in pairs}

    def make(self, num_worlds: int, device: torch.device | str = "cpu", final_obs: bool = False) -> "HostWorld":
        return HostWorld(self, num_worlds, device, final_obs)


def _literal(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


class Mirror:
    """A tensor on the device and the host array that fills it; on a CPU they are the same memory."""

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> None:
        self.host = torch.zeros(shape, dtype=dtype, pin_memory=device.type == "cuda")
        self.tensor = self.host if device.type == "cpu" else self.host.to(device)
        self.array: np.ndarray = self.host.numpy()

    def send(self) -> None:
        if self.tensor is not self.host:
            self.tensor.copy_(self.host, non_blocking=True)


class HostWorld:
    """B copies of a Gymnasium environment, by the contract of `longtail.worlds.world.World`.

    An environment on the host cannot be saved in the middle of an episode. A checkpoint holds its seed and a count of
    how often it was loaded, `generation`; loading begins new episodes with a seed made of both, so a resumed run goes
    on with draws that it has not seen, but not with those of a run that was never interrupted.

    Tasks are what `info["task"]` says when an episode begins. A pinned task is asked for by `reset(options=...)`;
    any law but the environment's own and one task per world is refused.
    """

    on_device = False

    def __init__(
        self, config: HostConfig, num_worlds: int, device: torch.device | str = "cpu", final_obs: bool = False
    ) -> None:
        self.config, self.num_worlds, self.device = config, num_worlds, torch.device(device)
        self._vector = make_vector(config.name, config.keywords(), config.vectorization, num_worlds)
        self._answers = True  # no call of the vector environment was broken off
        try:
            self._build(final_obs)
        except BaseException:
            self.close()
            raise

    def _build(self, final_obs: bool) -> None:
        name, space = self.config.name, self._vector.single_action_space
        self._layout = image_layout(name, self._vector.single_observation_space, self.config.channels)
        self.obs_shape = self._layout.hwc
        if not isinstance(space, gym.spaces.Discrete):
            raise ValueError(f"{name} acts by {space}: it must be Discrete; wrap it so that actions are numbered")
        self.num_actions, self._first_action = int(space.n), int(space.start)
        self.tasks, self._has_table = self._find_tasks()
        self._pinned_B = np.full(self.num_worlds, OWN_LAW)
        self._return_B = np.zeros(self.num_worlds)
        self._seed = self._generation = 0

        def mirror(dtype: torch.dtype, *shape: int) -> Mirror:
            return Mirror((self.num_worlds, *shape), dtype, self.device)

        self._obs = mirror(torch.uint8, *self.obs_shape)
        self._final = mirror(torch.uint8, *self.obs_shape) if final_obs else None
        self._first, self._terminated, self._truncated = mirror(torch.bool), mirror(torch.bool), mirror(torch.bool)
        self._reward, self._success = mirror(torch.float32), mirror(torch.bool)
        self._task, self._ended_task = mirror(torch.int64), mirror(torch.int64)
        self.first, self.task, self.ended_task = self._first.tensor, self._task.tensor, self._ended_task.tensor
        self.reward, self.success = self._reward.tensor, self._success.tensor
        self.terminated, self.truncated = self._terminated.tensor, self._truncated.tensor
        self.reset(seed=0)

    def _find_tasks(self) -> tuple[TaskTable, bool]:
        """The tasks, and whether the environment brought the table itself."""
        name, count = self.config.name, self.config.num_tasks
        tasks, known = ask(self._vector, "tasks", "num_tasks")
        if isinstance(tasks, TaskTable):
            if count not in (0, len(tasks)):
                raise ValueError(f"num_tasks is {count}: {name} has {len(tasks)} tasks; leave it at 0")
            return tasks, True
        if not count and isinstance(known, int | np.integer):
            count = int(known)
        if not count and hasattr(tasks, "__len__"):
            count = len(tasks)
        if count < 1:
            _, info = self._call("reset", seed=0)
            if "task" in info:
                raise ValueError(f"{name} has tasks but does not say how many: set --world.num-tasks")
            count = 1
        return TaskTable.product(count, 1, exponent=0), False

    def reset(self, seed: int, stagger: bool = False) -> None:
        """Start every world at its first episode. `stagger` has no effect: an environment begins where it begins."""
        self._seed, self._generation = seed % 2**63, 0
        self._begin()

    def _begin(self) -> None:
        self._wait_for_device()
        obs, info = self._call("reset", seed=self._first_seed())
        self._take_obs(obs)
        for mirror in (self._reward, self._success, self._terminated, self._truncated):
            mirror.array[:] = 0
        self._first.array[:] = True
        self._return_B[:] = 0
        self._take_tasks(info, self._first.array)
        self._send()

    def _first_seed(self) -> int:
        """World i begins with this seed + i (Gymnasium's rule); hashed, so that runs 1 and 2 share no worlds."""
        is_single = isinstance(self._vector, SyncVectorEnv | AsyncVectorEnv)
        if self._has_table and not is_single and not self._generation:
            return self._seed  # our vector form hashes the seed itself: the same tasks as without Gymnasium
        state = np.random.SeedSequence((self._seed, self._generation)).generate_state(1)
        return int(state[0]) % (2**31 - 2**20)

    def prepare(self, num_steps: int) -> None:
        pass

    def step(self, action_B: Tensor) -> None:
        action_host_B = action_B.cpu().numpy() + self._first_action
        self._wait_for_device()
        obs, *outcome, info = self._call("step", action_host_B)
        reward_B, terminated_B, truncated_B = self._checked(*outcome)
        ended_B = terminated_B | truncated_B
        self._return_B += reward_B
        self._reward.array[:] = reward_B
        self._terminated.array[:] = terminated_B
        self._truncated.array[:] = truncated_B & ~terminated_B
        self._first.array[:] = ended_B
        self._success.array[:] = ended_B & self._succeeded(info)
        self._ended_task.array[:] = self._task.array
        self._return_B[ended_B] = 0
        self._take_obs(obs)
        if ended_B.any():
            self._take_final(info, ended_B)
            self._take_tasks(info, ended_B)
        elif self._final is not None:
            self._final.array[:] = self._obs.array
        self._send()

    def _checked(self, *arrays: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        reward_B, terminated_B, truncated_B = (np.asarray(array) for array in arrays)
        for what, array in {"rewards": reward_B, "terminated": terminated_B, "truncated": truncated_B}.items():
            if array.shape != (self.num_worlds,):
                raise HostError(f"{self.config.name} gave {what} of shape {array.shape}: it must be one per world")
        for i in np.flatnonzero(~np.isfinite(reward_B)):
            raise HostError(f"world {i} of {self.config.name} gave the reward {reward_B[i]}: it must be finite")
        return reward_B, terminated_B.astype(bool), truncated_B.astype(bool)

    def _succeeded(self, info: Mapping[str, Any]) -> np.ndarray:
        success_B, told_B = told(info.get("final_info", {}), "success", self.num_worlds)
        result_B = self._return_B > self.config.success_return
        if told_B.any():
            result_B[told_B] = np.asarray(success_B)[told_B].astype(bool)
        return result_B

    def _take_obs(self, obs: Any) -> None:
        expected = (self.num_worlds, *self._layout.shape)
        if not isinstance(obs, np.ndarray) or obs.shape != expected or obs.dtype != np.uint8:
            have = f"{obs.dtype} {obs.shape}" if isinstance(obs, np.ndarray) else type(obs).__name__
            raise HostError(f"{self.config.name} observed {have}: it must be uint8 {expected}, one image per world")
        self._obs.array[:] = self._layout(obs)

    def _take_final(self, info: Mapping[str, Any], ended_B: np.ndarray) -> None:
        """The last observation of each episode that ended; the new one of every other world."""
        if self._final is None:
            return
        self._final.array[:] = self._obs.array
        final_obs, told_B = told(info, "final_obs", self.num_worlds)
        for i in np.flatnonzero(ended_B):
            if not told_B[i]:
                raise HostError(f'{self.config.name} ended the episode of world {i} without info["final_obs"]')
            self._final.array[i] = self._layout(np.asarray(final_obs[i]))

    def _take_tasks(self, info: Mapping[str, Any], fresh_B: np.ndarray) -> None:
        """Learn which tasks began, and begin again where a world is pinned to another one."""
        if len(self.tasks) == 1:
            return
        self._read_tasks(info, fresh_B)
        wrong_B = fresh_B & (self._pinned_B != OWN_LAW) & (self._pinned_B != self._task.array)
        for task in np.unique(self._pinned_B[wrong_B]):
            self._begin_again(int(task), wrong_B & (self._pinned_B == task))

    def _begin_again(self, task: int, mask_B: np.ndarray) -> None:
        name, options = self.config.name, {"task": task}
        if self._has_table:
            options = {"map": int(self.tasks.map[task]), "object": int(self.tasks.object[task])}
        before = self._obs.array[~mask_B].copy()
        obs, info = self._call("reset", options=options | {"reset_mask": mask_B.copy()})
        self._take_obs(obs)
        if (self._obs.array[~mask_B] != before).any():
            raise HostError(f'{name} does not obey options["reset_mask"]: it began other worlds again as well')
        self._read_tasks(info, mask_B)
        for started in self._task.array[mask_B & (self._task.array != task)]:
            raise HostError(
                f"{name} does not let tasks be pinned: it began task {started} where reset(options=...) asked for "
                f"{', '.join(f'{key} {value}' for key, value in options.items())}"
            )

    def _read_tasks(self, info: Mapping[str, Any], fresh_B: np.ndarray) -> None:
        task_B, told_B = told(info, "task", self.num_worlds)
        for i in np.flatnonzero(fresh_B):
            task = task_B[i] if told_B[i] else None
            if not isinstance(task, int | np.integer) or not 0 <= task < len(self.tasks):
                raise HostError(
                    f'world {i} of {self.config.name} began an episode with info["task"] {task}: '
                    f"it must be a whole number of 0..{len(self.tasks) - 1}"
                )
            self._task.array[i] = task

    def _call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        self._answers = False
        try:
            result = call(self._vector, method, self.config.name, self.config.patience, *args, **kwargs)
        except HostError:
            raise
        except Exception as error:
            dead = dead_processes(self._vector) if isinstance(error, EOFError | OSError) else []
            who = f"the process of world {listed(dead)} of " if dead else ""
            raise HostError(f"{who}{self.config.name} failed in {method}: {type(error).__name__}: {error}") from error
        self._answers = True
        return result

    def _wait_for_device(self) -> None:
        """Host arrays may be written only after the copies that read them."""
        if self.device.type == "cuda":
            torch.cuda.current_stream(self.device).synchronize()

    def _send(self) -> None:
        for mirror in (self._obs, self._final, self._first, self._task, self._ended_task,
                       self._reward, self._success, self._terminated, self._truncated):  # fmt: skip
            if mirror is not None:
                mirror.send()

    def observe(self, out: Tensor | None = None) -> Tensor:
        return self._obs.tensor.clone() if out is None else out.copy_(self._obs.tensor)

    def observe_final(self, out: Tensor | None = None) -> Tensor:
        if self._final is None:
            raise RuntimeError("final observations were not asked for: build the world with final_obs=True")
        return self._final.tensor.clone() if out is None else out.copy_(self._final.tensor)

    def set_weights(self, weights: np.ndarray) -> None:
        """One task per world (one-hot), or back to the environment's own law (the table's probabilities)."""
        weights, shape = np.asarray(weights, np.float64), (self.num_worlds, len(self.tasks))
        if weights.shape not in (shape, shape[1:]):
            raise ValueError(f"weights have shape {weights.shape}: it must be {shape[1:]} or {shape}")
        weights_Bn = np.broadcast_to(weights, shape)
        total_B = weights_Bn.sum(1, keepdims=True)
        if not np.isfinite(weights_Bn).all() or (weights_Bn < 0).any() or (total_B <= 0).any():
            raise ValueError("weights must be finite and at least 0, with at least one above 0")
        one_hot_B = (weights_Bn > 0).sum(1) == 1
        own_B = np.isclose(weights_Bn / total_B, self.tasks.probability, rtol=1e-9, atol=0).all(1)
        if not (one_hot_B | own_B).all():
            raise ValueError(
                f"weights ask for a law of their own: {self.config.name} draws its tasks itself, so weights must be "
                f"one task per world or the probabilities of its task table, which go back to its own law"
            )
        self._pinned_B = np.where(one_hot_B, weights_Bn.argmax(1), OWN_LAW)

    def pin(self, task_B: np.ndarray) -> None:
        """Give each world one task for good, from its next episode on."""
        task_B, num_tasks = np.asarray(task_B), len(self.tasks)
        one_each = task_B.shape == (self.num_worlds,) and task_B.dtype.kind in "iu"
        if not one_each or task_B.min() < 0 or task_B.max() >= num_tasks:
            raise ValueError(
                f"task is {task_B}: it must be {self.num_worlds} task ids of 0..{num_tasks - 1}, one per world"
            )
        self.set_weights(np.eye(num_tasks)[task_B])

    def state_dict(self) -> dict[str, Tensor]:
        return {
            "seed": torch.tensor(self._seed),
            "generation": torch.tensor(self._generation),
            "pinned": torch.from_numpy(self._pinned_B.copy()),
        }

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Begin new episodes, with draws that the run which saved the state has not seen."""
        self._seed, self._generation = int(state["seed"]), int(state["generation"]) + 1
        self._pinned_B = state["pinned"].cpu().numpy().copy()
        self._begin()

    def close(self) -> None:
        if not self._vector.closed:
            shut(self._vector, self._answers, self.config.patience)
