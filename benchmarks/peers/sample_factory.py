"""Steps/s of Sample Factory (APPO with an LSTM) on our Gridworld, on a CPU.

    PEER_PYTHON benchmarks/peers/sample_factory.py --seconds 60

PEER_PYTHON is the interpreter of an environment that has Sample Factory; README.md here says how to make one. The last
line printed is a JSON object. A step is one decision that the learner has trained on.
"""

import argparse
import functools
import importlib.metadata
import importlib.util
import json
import platform
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
# This file has the name of the package it drives: its own folder must not be searched for imports.
sys.path[:] = [folder for folder in sys.path if Path(folder).resolve() != HERE]
# Only the Gridworld's modules run, not their packages: those want a newer Gymnasium than Sample Factory allows.
for name in ("longtail", "longtail.worlds"):
    spec = importlib.util.spec_from_file_location(name, HERE.parents[1].joinpath(*name.split("."), "__init__.py"))
    assert spec is not None
    sys.modules[name] = importlib.util.module_from_spec(spec)  # found, never executed

import gymnasium  # noqa: E402
import numpy as np  # noqa: E402

from longtail import zipf  # noqa: E402
from longtail.worlds.gridworld import GridworldConfig, Tables, build_tables  # noqa: E402

WORLD = "longtail-gridworld"
ROLLOUT = 32


class Worlds(gymnasium.Env):
    """B Gridworlds stepped together in NumPy through the lookup tables of our own world; one Sample Factory 'env'.

    Channels come first, as Sample Factory wants them. The tables are exactly ours, the draws of tasks are not.
    """

    is_multiagent = True

    def __init__(self, num_worlds: int, seed: int) -> None:
        self.num_agents = num_worlds
        self.tables, self.frame_S, self.cue_n, self.law = shared_tables()
        self.config = GridworldConfig()
        self.observation_space = gymnasium.spaces.Box(0, 255, self.frame_S.shape[1:], np.uint8)
        self.action_space = gymnasium.spaces.Discrete(self.tables.next_SA.shape[1])
        self.rng = np.random.default_rng(seed)

    def reset(self, **kwargs: Any) -> tuple[np.ndarray, dict[str, Any]]:
        self.task, self.state, self.time = (np.zeros(self.num_agents, np.int64) for _ in range(3))
        self._start(np.ones(self.num_agents, bool))
        self.time[:] = self.rng.integers(self.config.max_steps, size=self.num_agents)  # staggered, as ours start
        return self._observe(), {}

    def step(self, action_B: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        self.state = self.tables.next_SA[self.state, np.asarray(action_B).reshape(-1)]
        self.time += 1
        object_B = self.tables.object_S[self.state]
        reward_B = (object_B == self.task % self.config.objects).astype(np.float32)
        terminated_B = object_B >= 0
        truncated_B = (self.time >= self.config.max_steps) & ~terminated_B
        self._start(terminated_B | truncated_B)
        return self._observe(), reward_B, terminated_B, truncated_B, {}

    def _start(self, first_B: np.ndarray) -> None:
        """Begin a new episode, and its task, where `first_B`."""
        if first_B.any():
            task = np.searchsorted(self.law, self.rng.random(first_B.sum()), side="right")
            # Rounding could make the last sum less than 1, and so a draw fall beyond the last task.
            task = np.minimum(task, len(self.law) - 1)
            self.task[first_B], self.time[first_B] = task, 0
            self.state[first_B] = self.tables.start_m[task // self.config.objects]

    def _observe(self) -> np.ndarray:
        obs_BCHW = self.frame_S[self.state]
        pixels = self.cue_n.shape[-1]
        obs_BCHW[:, :, :pixels, :pixels] = self.cue_n[self.task]
        return obs_BCHW


class OneWorld(gymnasium.Env):
    """A single Gridworld with Gymnasium's usual interface, for sampling that is not batched."""

    def __init__(self, seed: int) -> None:
        self.worlds = Worlds(1, seed)
        self.observation_space, self.action_space = self.worlds.observation_space, self.worlds.action_space

    def reset(self, **kwargs: Any) -> tuple[np.ndarray, dict[str, Any]]:
        # Called at each episode's end too: the world has already started the next one by then.
        obs_BCHW = self.worlds._observe() if hasattr(self.worlds, "task") else self.worlds.reset()[0]
        return obs_BCHW[0], {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = self.worlds.step(action)
        return obs[0], float(reward[0]), bool(terminated[0]), bool(truncated[0]), info


@functools.cache
def shared_tables() -> tuple[Tables, np.ndarray, np.ndarray, np.ndarray]:
    """The level set's tables, frames and cues with channels first, and the cumulative law; once per process."""
    config = GridworldConfig()
    tables = build_tables(config.build_levels(), config.resolution)
    law = np.cumsum(zipf.law((config.maps, config.objects), config.exponent, config.reverse, config.law))
    frame_S, cue_n = (np.ascontiguousarray(images.transpose(0, 3, 1, 2)) for images in (tables.frame_S, tables.cue_n))
    return tables, frame_S, cue_n, law


def make_world(name: str, cfg: Any = None, env_config: Any = None, render_mode: str | None = None) -> gymnasium.Env:
    """What Sample Factory calls, in each of its processes, to make one of its environments."""
    seed = 0 if env_config is None else env_config.env_id
    return Worlds(cfg.longtail_worlds_per_env, seed) if cfg.batched_sampling else OneWorld(seed)


class Clock:
    """Observes Sample Factory's learner: notes when each training iteration ended, and ends the run in time."""

    def __init__(self, warmup: float, seconds: float) -> None:
        self.warmup, self.seconds = warmup, seconds
        self.begin: float | None = None
        self.ends: list[tuple[float, int]] = []

    def on_training_step(self, runner: Any, iteration: int) -> None:
        now = time.perf_counter()
        self.begin = now if self.begin is None else self.begin
        if now - self.begin >= self.warmup:
            self.ends.append((now, iteration))
            if now - self.ends[0][0] >= self.seconds:
                runner.cfg.train_for_env_steps = 0  # the runner looks at it after every iteration

    def on_init(self, runner: Any) -> None: ...

    on_connect_components = on_start = on_stop = on_init

    def extra_summaries(self, *args: Any) -> None: ...


def settings(args: argparse.Namespace, folder: str) -> dict[str, Any]:
    """Sample Factory's options: our network's sizes and rollout, its own algorithm and defaults otherwise."""
    batched = args.mode != "async"
    per_worker = args.worlds // args.workers
    return {
        "env": WORLD,
        "experiment": "peer",
        "train_dir": folder,
        "device": "cpu",
        "seed": args.seed,
        "serial_mode": args.mode == "serial",
        "async_rl": args.mode != "serial",
        "batched_sampling": batched,
        "num_workers": args.workers,
        "worker_num_splits": args.splits,
        "num_envs_per_worker": args.splits if batched else per_worker,
        "rollout": ROLLOUT,
        "batch_size": args.batch,
        "num_batches_per_epoch": args.worlds * ROLLOUT // args.batch,
        "num_epochs": 1,
        "normalize_input": False,
        "obs_scale": 255.0,
        "encoder_conv_architecture": "convnet_impala",
        "encoder_conv_mlp_layers": 256,
        "nonlinearity": "relu",
        "use_rnn": True,
        "rnn_type": "lstm",
        "rnn_size": 256,
        "set_workers_cpu_affinity": False,
        "save_every_sec": 10**6,
        "save_best_every_sec": 10**6,
    }


def run(args: argparse.Namespace, folder: str) -> tuple[Clock, dict[str, Any]]:
    from sample_factory.algo.utils.misc import ExperimentStatus
    from sample_factory.cfg.arguments import parse_full_cfg, parse_sf_args
    from sample_factory.envs.env_utils import register_env
    from sample_factory.train import make_runner

    options = settings(args, folder)
    register_env(WORLD, make_world)
    argv = [f"--{name}={value}" for name, value in options.items()]
    parser, _ = parse_sf_args(argv)
    cfg = parse_full_cfg(parser, argv)
    cfg.longtail_worlds_per_env = args.worlds // args.workers // args.splits
    cfg, runner = make_runner(cfg)
    clock = Clock(args.warmup, args.seconds)
    runner.register_observer(clock)
    status = runner.init()
    if status == ExperimentStatus.SUCCESS:
        status = runner.run()
    if status != ExperimentStatus.SUCCESS or len(clock.ends) < 2:
        sys.exit("Sample Factory did not train: see its messages above")
    return clock, options


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60, help="seconds to measure (default 60)")
    parser.add_argument("--warmup", type=float, default=10, help="seconds of training before that (default 10)")
    parser.add_argument("--worlds", type=int, default=32, help="worlds in all (default 32)")
    parser.add_argument("--mode", choices=("serial", "batched", "async"), default="serial")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--splits", type=int, default=1)
    parser.add_argument("--batch", type=int, default=1024, help="steps per update; a rollout of all worlds is 1,024")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        clock, options = run(args, folder)
    (begin, first), (end, last) = clock.ends[0], clock.ends[-1]
    steps = (last - first) * args.worlds * ROLLOUT
    names = ("sample-factory", "gymnasium", "torch", "numpy")
    result = {
        "name": "sample_factory",
        "steps_per_second": steps / (end - begin),
        "steps": steps,
        "seconds": end - begin,
        "config": {"worlds": args.worlds, "warmup": args.warmup} | options | {"train_dir": None},
        "versions": {"python": platform.python_version()} | {n: importlib.metadata.version(n) for n in names},
    }
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
