"""Gymnasium environments by name, as B copies in one vector environment that resets in the same step."""

import difflib
import importlib
import inspect
import os
import signal
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from multiprocessing import connection
from pathlib import Path
from typing import Any, Literal

import gymnasium as gym
import numpy as np
import torch
from gymnasium.envs.registration import EnvSpec, load_env_creator
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv

Vectorization = Literal["auto", "own", "sync", "async"]
Channels = Literal["auto", "first", "last"]
Vector = VectorEnv[Any, Any, Any]
NEAR = 0.72  # how alike a name must be to be suggested: two short names ending in -v0 reach 0.63 by that alone
GRACE = 1.0  # seconds that a process has to end itself when it is told to


class HostError(RuntimeError):
    """An environment that raised, hung, died or returned nonsense; the message names it and its index."""


def find_spec(name: str) -> EnvSpec:
    """The registered environment that gym:<id> or gym:<module>:<id> stands for."""
    module, _, env_id = name.removeprefix("gym:").rpartition(":")
    if env_id.startswith("longtail/"):
        module = "longtail.worlds.gym"  # registers our own worlds
    try:
        if module:
            importlib.import_module(module)
        return gym.spec(env_id)
    except ImportError as error:
        raise ValueError(f"world is {name!r}: module {module!r} cannot be imported: {error}") from error
    except gym.error.Error as error:
        near = difflib.get_close_matches(env_id, gym.registry, n=1, cutoff=NEAR)
        hint = f"did you mean {near[0]}? It" if near else "it"
        raise ValueError(
            f"world is {name!r}: {hint} must be gym:<id> of a registered environment, "
            f"or gym:<module>:<id> with the module that registers it"
        ) from error


@dataclass(frozen=True)
class ImageLayout:
    """How one observation of an environment becomes height, width, channels."""

    shape: tuple[int, ...]  # of the environment's observation
    axes: tuple[int, ...]  # the order of its axes that puts height and width first
    hwc: tuple[int, int, int]

    def __call__(self, obs: np.ndarray) -> np.ndarray:
        """[..., *shape] to [..., H, W, C]; stacked frames are merged into the channels, frame by frame."""
        lead = obs.ndim - len(self.shape)
        moved = obs.transpose(*range(lead), *(lead + axis for axis in self.axes))
        return moved.reshape(*obs.shape[:lead], *self.hwc)


def image_layout(name: str, space: gym.Space[Any], channels: Channels) -> ImageLayout:
    if not (isinstance(space, gym.spaces.Box) and space.dtype == np.uint8 and len(space.shape) in (2, 3, 4)):
        raise ValueError(
            f"{name} observes {space}: it must be images, Box uint8 of shape (H, W), (H, W, C), (stack, H, W) or "
            f"(stack, H, W, C); wrap it so that it gives images (gymnasium.wrappers.AddRenderObservation, say)"
        )
    shape = space.shape
    image = shape[-3:]
    first = len(shape) > 2 and (channels == "first" or (channels == "auto" and image[0] < image[-1]))
    y = len(shape) - (2 if first or len(shape) == 2 else 3)
    axes = (y, y + 1, *(axis for axis in range(len(shape)) if axis not in (y, y + 1)))
    return ImageLayout(shape, axes, (shape[y], shape[y + 1], int(np.prod([shape[a] for a in axes[2:]], dtype=int))))


class Guard(gym.Wrapper[Any, Any, Any, Any]):
    """Names the environment and its index in every error, and hands out observations that stay as they are."""

    def __init__(self, env: gym.Env[Any, Any], name: str, index: int) -> None:
        super().__init__(env)
        self.label = f"world {index} of {name}"

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        try:
            obs, info = self.env.reset(seed=seed, options=options)
        except Exception as error:
            raise self._raised("reset", error) from error
        return self._checked(obs), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        try:
            obs, reward, terminated, truncated, info = self.env.step(action)
            reward = float(reward)
        except Exception as error:
            raise self._raised("step", error) from error
        # A copy, since the environment may draw the next episode's first frame into the same array.
        obs = self._checked(obs).copy() if terminated or truncated else self._checked(obs)
        return obs, reward, terminated, truncated, info

    def _raised(self, method: str, error: Exception) -> HostError:
        *_, (frame, line) = traceback.walk_tb(error.__traceback__)
        where = f"{Path(frame.f_code.co_filename).name}:{line}"
        return HostError(f"{self.label} raised in {method}: {type(error).__name__}: {error} ({where})")

    def _checked(self, obs: Any) -> np.ndarray:
        image: np.ndarray = np.asarray(obs)
        have, declared = (image.dtype, image.shape), (self.observation_space.dtype, self.observation_space.shape)
        if have != declared:
            raise HostError(f"{self.label} observed {have[0]} {have[1]}: it declares {declared[0]} {declared[1]}")
        return image


def make_one(spec: EnvSpec, keywords: dict[str, Any], name: str, index: int, home: int) -> gym.Env[Any, Any]:
    """One copy of the environment; in a process of its own if this is not the process `home`."""
    if os.getpid() != home:
        torch.set_num_threads(1)  # OpenMP does not survive a fork
        os.setpgrp()  # Ctrl-C and signals to the run's group are for the run, which closes its worlds after saving
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    return Guard(gym.make(spec, **({"disable_env_checker": True} | keywords)), name, index)


def make_vector(name: str, keywords: dict[str, Any], mode: Vectorization, num_worlds: int) -> Vector:
    """B copies that reset in the same step: the environment's own vector form, one process, or one each."""
    spec = find_spec(name)
    try:
        if mode == "own" or (mode == "auto" and spec.vector_entry_point is not None and not spec.additional_wrappers):
            vector = _make_own(spec, keywords, num_worlds)
            declared = vector.metadata.get("autoreset_mode")
            if declared in (AutoresetMode.SAME_STEP, AutoresetMode.SAME_STEP.value):
                return vector
            vector.close()
            if mode == "own" or spec.entry_point is None:
                raise ValueError(f"its own vector form resets in mode {declared}, not SAME_STEP; use sync or async")
        one = [partial(make_one, spec, keywords, name, i, os.getpid()) for i in range(num_worlds)]
        if mode == "async":
            return AsyncVectorEnv(one, autoreset_mode=AutoresetMode.SAME_STEP, copy=False)
        return SyncVectorEnv(one, autoreset_mode=AutoresetMode.SAME_STEP, copy=False)
    except Exception as error:
        what = str(error) if type(error) is ValueError else f"{type(error).__name__}: {error}"
        if mode == "async" and isinstance(error, EOFError | ConnectionError):
            what += ": a process ended before it had made its environment"
        raise ValueError(f"{name} cannot be made with vectorization={mode}: {what}") from error


def _make_own(spec: EnvSpec, keywords: dict[str, Any], num_worlds: int) -> Vector:
    """Gymnasium has no way of its own to ask for a reset mode: it is an argument that some entry points take."""
    creator = spec.vector_entry_point
    if creator is None:
        raise ValueError("it has no vector form of its own; use auto, sync or async")
    parameters = inspect.signature(load_env_creator(creator) if isinstance(creator, str) else creator).parameters
    if "autoreset_mode" in parameters:
        keywords = {"autoreset_mode": AutoresetMode.SAME_STEP} | keywords
    return gym.make_vec(spec, num_envs=num_worlds, vectorization_mode="vector_entry_point", **keywords)


def ask(vector: Vector, *attributes: str) -> tuple[Any, ...]:
    """Attributes of the environment, None for what it does not have."""
    if isinstance(vector, SyncVectorEnv):
        return tuple(_attribute(vector.envs[0], name) for name in attributes)
    if not isinstance(vector, AsyncVectorEnv):
        return tuple(getattr(vector.unwrapped, name, None) for name in attributes)
    probe = vector.env_fns[0]()  # a process that is asked for what it does not have would die
    try:
        return tuple(_attribute(probe, name) for name in attributes)
    finally:
        probe.close()


def _attribute(env: gym.Env[Any, Any], name: str) -> Any:
    try:
        return env.get_wrapper_attr(name)
    except AttributeError:
        return None


def told(info: Mapping[str, Any], key: str, num_worlds: int) -> tuple[Any, np.ndarray]:
    """What a vector environment's info says under a key, and of which worlds it says it."""
    if key not in info:
        return None, np.zeros(num_worlds, bool)
    return info[key], np.asarray(info.get(f"_{key}", np.ones(num_worlds, bool)), bool)


def call(vector: Vector, method: str, name: str, patience: float, *args: Any, **kwargs: Any) -> Any:
    """Call `reset` or `step`. Processes that take longer than `patience` seconds are named; 0 waits for ever."""
    if not isinstance(vector, AsyncVectorEnv) or not patience:
        return getattr(vector, method)(*args, **kwargs)
    getattr(vector, f"{method}_async")(*args, **kwargs)
    left = _countdown(patience)
    silent = [i for i, pipe in enumerate(vector.parent_pipes) if not pipe.poll(left())]
    if silent:
        raise HostError(
            f"world {listed(silent)} of {name} did not answer to {method} within {patience:g} seconds: "
            f"it hangs, or --world.patience is too short"
        )
    return getattr(vector, f"{method}_wait")()


def _countdown(seconds: float) -> Callable[[], float]:
    """Tells how many of these seconds are left."""
    end = time.monotonic() + seconds
    return lambda: max(end - time.monotonic(), 0.0)


def dead_processes(vector: Vector) -> list[int]:
    """Which worlds' processes have ended."""
    processes = vector.processes if isinstance(vector, AsyncVectorEnv) else []
    # A sentinel tells at once; is_alive lags behind the closing of the pipe that made somebody ask.
    ended = connection.wait([process.sentinel for process in processes], timeout=1) if processes else []
    return [i for i, process in enumerate(processes) if process.sentinel in ended]


def shut(vector: Vector, answers: bool, patience: float) -> None:
    """Close. Processes that were left in the middle of a call are ended, since their answers may never come."""
    processes: list[Any] = vector.processes if isinstance(vector, AsyncVectorEnv) else []
    try:
        failure = _close(vector, processes, patience) if answers or not processes else None
    finally:
        _end(processes)
        vector.closed = True
    if failure:  # what was learned is saved by now, and an error that led here matters more
        warnings.warn(failure, RuntimeWarning, stacklevel=3)


def _close(vector: Vector, processes: list[Any], patience: float) -> str | None:
    """Close, and say what went wrong. Processes that hang are ended after `patience` seconds."""
    timer = threading.Timer(patience, lambda: [process.kill() for process in processes])
    try:
        if patience and processes:
            timer.start()
        vector.close()
    except Exception as error:
        return f"an environment failed in close: {type(error).__name__}: {error}"
    finally:
        timer.cancel()
    late = [i for i, process in enumerate(processes) if process.exitcode == -signal.SIGKILL]
    return f"world {listed(late)} did not close within {patience:g} seconds: its process was ended" if late else None


def _end(processes: list[Any]) -> None:
    for process in processes:
        process.terminate()
    left = _countdown(GRACE)
    for process in processes:
        process.join(left())
        process.kill()  # a handler of the environment's own may never come to its end
        process.join()


def listed(worlds: list[int]) -> str:
    return ", ".join(map(str, worlds))
