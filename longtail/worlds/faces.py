"""A world as Gymnasium sees it: one environment, and a vector of them that resets in the same step.

The classes here turn tensors into what Gymnasium expects and add nothing to a world.
"""

from collections.abc import Mapping
from typing import Any, Protocol

import gymnasium as gym
import numpy as np
import torch
from gymnasium.error import ResetNeeded
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from torch import Tensor

from longtail.worlds.random import TaskQueue
from longtail.worlds.world import TaskTable, World

FACTS = ("map", "object", "map_rank", "object_rank", "probability")  # of a task, in `info`
AHEAD = 64  # steps whose draws are made at once
GAP = 12  # pixels between the two pictures of `render`
BACKGROUND = 96  # grey around them: unlike the floor, which is black


class Playable(World, Protocol):
    """A world that this file can show: it can leave an episode, and draw its whole map for people."""

    config: Any
    law: np.ndarray  # float64 [n]: what tasks are drawn by

    def restart(self, world_B: Tensor) -> None: ...

    def whole_map(self, world: int, final: bool = False) -> np.ndarray: ...


def restricted(tasks: TaskTable, law_n: np.ndarray, map: Any = None, object: Any = None) -> np.ndarray:
    """The law among the tasks of a map, of an object, or of both; a single task is certain, however rare it is."""
    fits_n = np.ones(len(tasks), bool)
    for field, value, ids_n in (("map", map, tasks.map), ("object", object, tasks.object)):
        if value is None:
            continue
        is_whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
        if not is_whole or not 0 <= value <= ids_n.max():
            raise ValueError(f"{field} is {value}: it must be a whole number of 0..{ids_n.max()}")
        fits_n &= ids_n == value
    if fits_n.sum() == 1:
        return fits_n.astype(np.float64)
    weights_n = np.where(fits_n, law_n, 0.0)
    if not weights_n.any():
        raise ValueError(
            f"map is {map} and object is {object}: the law draws no such task; name a map and an object to pin it"
        )
    return weights_n


def _options(options: Mapping[str, Any] | None, known: tuple[str, ...]) -> dict[str, Any]:
    for name in options or {}:
        if name not in known:
            raise ValueError(f"options have {name!r}: it must be one of {', '.join(known)}")
    return dict(options or {})


def picture(view: np.ndarray, whole: np.ndarray) -> np.ndarray:
    """The agent's view beside the whole map, uint8 [H, W, 3]."""
    scale = max(1, round(len(whole) / len(view)))
    view = view.repeat(scale, 0).repeat(scale, 1)
    height = max(len(view), len(whole))
    canvas = np.full((height + 2 * GAP, view.shape[1] + whole.shape[1] + 3 * GAP, 3), BACKGROUND, np.uint8)
    left = GAP
    for image in (view, whole):
        top = (len(canvas) - len(image)) // 2
        canvas[top : top + len(image), left : left + image.shape[1]] = image
        left += image.shape[1] + GAP
    return canvas


class _Face:
    """What one environment and a vector of them have in common: the world behind them."""

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 8}

    def _open(self, config: Any, num_worlds: int, render_mode: str | None) -> None:
        if render_mode not in (None, *self.metadata["render_modes"]):
            raise ValueError(f"render_mode is {render_mode!r}: it must be rgb_array or None")
        self.world: Playable = config.make(num_worlds, final_obs=True)
        self.render_mode = render_mode
        self._drawn = 0  # steps whose draws are made already
        self._seeded = False
        self._actions = torch.zeros(num_worlds, dtype=torch.int64)

    @property
    def tasks(self) -> TaskTable:
        return self.world.tasks

    def _spaces(self) -> tuple[gym.spaces.Box, gym.spaces.Discrete]:
        return gym.spaces.Box(0, 255, self.world.obs_shape, np.uint8), gym.spaces.Discrete(self.world.num_actions)

    def _draw_ahead(self) -> None:
        """To be called before every step; draws are made for many steps at once."""
        if not self._drawn:
            self.world.prepare(AHEAD)
            self._drawn = AHEAD
        self._drawn -= 1

    def __getstate__(self) -> dict[str, Any]:
        """Copies and pickles carry the world's state, but not the tables of its levels."""
        saved = {name: tensor.clone() for name, tensor in self.world.state_dict().items()}
        return vars(self) | {"world": (self.world.config, self.world.num_worlds, saved)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        config, num_worlds, saved = state["world"]
        world = config.make(num_worlds, final_obs=True)
        world.load_state_dict(saved)
        vars(self).update(state | {"world": world, "_drawn": 0})


class WorldEnv(_Face, gym.Env[np.ndarray, np.int64]):
    """One world. It draws its tasks itself, one for each `reset`, and pins the world to them."""

    def __init__(self, config: Any, render_mode: str | None = None) -> None:
        self._open(config, 1, render_mode)
        self.observation_space, self.action_space = self._spaces()
        self._queue = TaskQueue(1, self.world.law, self.world.device)
        self._task, self._running = 0, False
        self._last_picture: np.ndarray | None = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        weights_n = restricted(self.tasks, self.world.law, **_options(options, ("map", "object")))
        super().reset(seed=seed)
        if seed is None and not self._seeded:
            seed = int(self.np_random.integers(2**63))
        self._task = self._next_task(seed, weights_n)
        self._seeded = self._running = True
        self.world.set_weights(np.arange(len(self.tasks)) == self._task)
        self._draw_ahead()
        self.world.restart(torch.ones(1, dtype=torch.bool))
        return self.world.observe()[0].numpy(), self._info()

    def _next_task(self, seed: int | None, weights_n: np.ndarray) -> int:
        """Episode n since the seed takes draw n of world 0, whether it is pinned or not."""
        self._queue.set_weights(weights_n)
        if seed is not None:
            return int(self._queue.reset(seed))
        self._queue.prepare(1)
        return int(self._queue.advance(torch.ones(1, dtype=torch.bool)))

    def step(self, action: int | np.int64) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        if not self._running:
            raise ResetNeeded("the episode is over or has not begun: call reset() before step()")
        if not self.action_space.contains(action):
            raise ValueError(f"action is {action}: it must be a whole number of 0..{self.world.num_actions - 1}")
        self._draw_ahead()
        self._actions.fill_(int(action))
        self.world.step(self._actions)
        terminated, truncated, info = bool(self.world.terminated), bool(self.world.truncated), self._info()
        # The world is in the next episode already; what belongs to this one is kept as its final observation.
        obs = self.world.observe_final()[0].numpy()
        if terminated or truncated:
            self._running, info["success"] = False, bool(self.world.success)
            if self.render_mode == "rgb_array":
                self._last_picture = picture(obs, self.world.whole_map(0, final=True))
        return obs, float(self.world.reward), terminated, truncated, info

    def _info(self) -> dict[str, Any]:
        return {"task": self._task} | {name: getattr(self.tasks, name)[self._task].item() for name in FACTS}

    def render(self) -> np.ndarray | None:  # type: ignore[override]
        if self.render_mode is None:
            gym.logger.warn('render() draws nothing: make the environment with render_mode="rgb_array"')
            return None
        if not self._seeded:
            raise ResetNeeded("nothing has begun: call reset() before render()")
        if not self._running and self._last_picture is not None:
            return self._last_picture.copy()
        return picture(self.world.observe()[0].numpy(), self.world.whole_map(0))


class WorldVectorEnv(_Face, VectorEnv[np.ndarray, np.ndarray, np.ndarray]):
    """B worlds. Which world plays which tasks is the world's own affair: the same as without Gymnasium."""

    metadata: dict[str, Any] = _Face.metadata | {"autoreset_mode": AutoresetMode.SAME_STEP}

    def __init__(
        self,
        config: Any,
        num_envs: int,
        render_mode: str | None = None,
        autoreset_mode: AutoresetMode | str = AutoresetMode.SAME_STEP,
    ) -> None:
        if autoreset_mode not in (AutoresetMode.SAME_STEP, AutoresetMode.SAME_STEP.value):
            mode = getattr(autoreset_mode, "value", autoreset_mode)
            raise ValueError(f'autoreset_mode is {mode}: it must be SameStep; vectorization_mode="sync" has the others')
        if num_envs < 1:
            raise ValueError(f"num_envs is {num_envs}: it must be at least 1")
        self._open(config, num_envs, render_mode)
        self.num_envs = num_envs
        self.single_observation_space, self.single_action_space = self._spaces()
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._final = np.empty((num_envs, *self.world.obs_shape), np.uint8)

    def reset(  # type: ignore[override]
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        asked = _options(options, ("map", "object", "reset_mask"))
        mask_B = self._mask(asked.pop("reset_mask", None), seed)
        weights_Bn = self._pinned(asked, mask_B)
        super().reset(seed=seed)
        if seed is None and not self._seeded:
            seed = int(self.np_random.integers(2**63))
        if weights_Bn is not None:
            self.world.set_weights(weights_Bn)
        if seed is not None:
            self.world.reset(seed)
        else:
            self._draw_ahead()
            self.world.restart(torch.from_numpy(mask_B))
        if weights_Bn is not None:
            self.world.set_weights(self.world.law)
        self._seeded = True
        return self.world.observe().numpy(), self._info(self.world.task.numpy(), mask_B)

    def _mask(self, mask: Any, seed: Any) -> np.ndarray:
        if seed is not None and not isinstance(seed, int):
            raise ValueError(f"seed is {seed}: it must be one whole number, from which each world draws its own tasks")
        if mask is None:
            return np.ones(self.num_envs, bool)
        if seed is not None:
            raise ValueError("seed and reset_mask are both given: a seed starts every world, so leave one out")
        mask_B = np.array(mask)
        if mask_B.shape != (self.num_envs,) or mask_B.dtype != np.bool_ or not mask_B.any():
            raise ValueError(f"reset_mask is {mask}: it must be {self.num_envs} bools, at least one of them true")
        if not self._seeded:
            raise ResetNeeded("nothing has begun: call reset() without reset_mask first")
        return mask_B

    def _pinned(self, asked: dict[str, Any], mask_B: np.ndarray) -> np.ndarray | None:
        """The law of each world's next episode; None if it is the usual one everywhere."""
        pins = {}
        for name, value in asked.items():
            value_B = np.asarray(value, dtype=object)
            if value_B.shape not in ((), (self.num_envs,)):
                raise ValueError(f"{name} is {value}: it must be one whole number, or {self.num_envs}, one per world")
            pins[name] = np.broadcast_to(value_B, self.num_envs)
        if not pins:
            return None
        weights_Bn = np.tile(self.world.law, (self.num_envs, 1))
        for i in np.flatnonzero(mask_B):
            weights_Bn[i] = restricted(self.tasks, self.world.law, **{name: pin_B[i] for name, pin_B in pins.items()})
        return weights_Bn

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        if not self._seeded:
            raise ResetNeeded("nothing has begun: call reset() before step()")
        self._take(np.asarray(actions))
        self._draw_ahead()
        world = self.world
        world.step(self._actions)
        terminated_B, truncated_B = world.terminated.numpy().copy(), world.truncated.numpy().copy()
        ended_B = terminated_B | truncated_B
        info = self._info(world.task.numpy(), np.ones(self.num_envs, bool))
        if ended_B.any():
            info |= self._final_info(ended_B)
        reward_B = world.reward.numpy().astype(np.float64)
        return world.observe().numpy(), reward_B, terminated_B, truncated_B, info

    def _take(self, action_B: np.ndarray) -> None:
        most = self.world.num_actions - 1
        if action_B.shape != (self.num_envs,) or action_B.dtype.kind not in "iu":
            raise ValueError(f"actions are {action_B}: it must be {self.num_envs} whole numbers, one per world")
        if action_B.min() < 0 or action_B.max() > most:
            raise ValueError(f"actions are {action_B}: each must be a whole number of 0..{most}")
        self._actions.numpy()[:] = action_B

    def _info(self, task_B: np.ndarray, told_B: np.ndarray) -> dict[str, Any]:
        """Facts of each world's task, and of which worlds they are told; zero elsewhere, as Gymnasium has it."""
        info = {"task": task_B * told_B} | {name: getattr(self.tasks, name)[task_B] * told_B for name in FACTS}
        return info | {f"_{name}": told_B.copy() for name in info}

    def _final_info(self, ended_B: np.ndarray) -> dict[str, Any]:
        info = self._info(self.world.ended_task.numpy(), ended_B)
        info |= {"success": self.world.success.numpy().copy(), "_success": ended_B.copy()}
        self.world.observe_final(torch.from_numpy(self._final))
        final_obs = np.full(self.num_envs, None, dtype=object)
        for i in np.flatnonzero(ended_B):
            final_obs[i] = self._final[i].copy()
        return {"final_obs": final_obs, "_final_obs": ended_B.copy(), "final_info": info, "_final_info": ended_B.copy()}

    def render(self) -> tuple[np.ndarray, ...] | None:
        if self.render_mode is None:
            gym.logger.warn('render() draws nothing: make the environment with render_mode="rgb_array"')
            return None
        if not self._seeded:
            raise ResetNeeded("nothing has begun: call reset() before render()")
        return tuple(picture(view, self.world.whole_map(i)) for i, view in enumerate(self.world.observe().numpy()))
