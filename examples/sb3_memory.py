"""RecurrentPPO of sb3-contrib with the episodic memory, on a small Zipf's Gridworld.

    pip install "longtail[sb3]"
    python examples/sb3_memory.py --steps 200_000

Frames are 42x42, since most of the time goes into the convolutions: RecurrentPPO pads all episodes of a minibatch to
the longest one.
"""

from pathlib import Path

import tyro
from sb3_contrib import RecurrentPPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy

import longtail  # noqa: F401  registers the worlds
from longtail.integrations.sb3 import MemoryCallback, MemoryLstmPolicy
from longtail.memory import MemoryConfig

SMALL = {"levels": "generated", "level_seed": 73, "maps": 4, "objects": 4, "rooms": 2, "resolution": 42}


def main(steps: int = 200_000, num_envs: int = 16, save: Path = Path("sb3-memory.zip")) -> None:
    """Train for so many steps, save, and play with what was saved."""
    env = make_vec_env("longtail/Gridworld-v0", num_envs, seed=1, env_kwargs=SMALL)
    model = RecurrentPPO(
        MemoryLstmPolicy, env, n_steps=64, batch_size=256, n_epochs=4, ent_coef=0.01, seed=1, verbose=1,
        policy_kwargs={"memory": MemoryConfig(familiarity=512, transfer=128)},
    )  # fmt: skip
    model.learn(steps, callback=MemoryCallback())
    model.save(save)  # with all that the memory holds
    mean_return, _ = evaluate_policy(RecurrentPPO.load(save), env, n_eval_episodes=100, deterministic=False)
    print(f"mean return of 100 episodes: {mean_return}")


if __name__ == "__main__":
    tyro.cli(main)
