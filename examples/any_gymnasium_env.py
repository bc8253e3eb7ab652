"""A Gymnasium environment of your own, as a world: a ball falls, and the paddle below has to be where it lands.

    longtail train gym:examples.any_gymnasium_env:Catch-v0 --steps 100_000
    longtail eval runs/gym-examples.any_gymnasium_env-Catch-v0-impala-s1

`gym:<module>:<id>` imports the module, which registers the environment, and makes several copies of it. Images and
numbered actions are all that is needed. The rest is up to the environment, each with what it is good for:

- `num_tasks`, and `info["task"]` at every reset: success and visits are counted for each task.
- `reset(options={"task": 3})` begins that task: evaluation can play the rare ones as often as the others.
- `info["success"]` at the end of an episode: otherwise a return above `--world.success-return` is a success.
- `tasks`, a TaskTable, in place of `num_tasks`: the law that tasks are drawn by is known as well, so that head, tail
  and Zipfian score are what they say. Its tasks are begun by `reset(options={"map": 0, "object": 3})`.

This environment does all of it; its arguments are given as `--world.options columns=6 exponent=1`.
"""

from typing import Any

import gymnasium as gym
import numpy as np

from longtail.worlds import TaskTable

CELL = 4  # pixels


class Catch(gym.Env[np.ndarray, np.int64]):
    """Tasks are the columns that the ball falls in: column k is k^exponent times as rare as the first."""

    def __init__(self, columns: int = 8, exponent: float = 2.0) -> None:
        self.columns = columns
        self.tasks = TaskTable.product(1, columns, exponent)
        self.observation_space = gym.spaces.Box(0, 255, (CELL * columns, CELL * columns), np.uint8)
        self.action_space = gym.spaces.Discrete(3)  # left, stay, right

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        drawn = int(self.np_random.choice(self.columns, p=self.tasks.probability))
        self.ball = (options or {}).get("object", drawn)
        self.paddle, self.row = self.columns // 2, 0
        return self._image(), {"task": self.ball}

    def step(self, action: int | np.int64) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.paddle = int(np.clip(self.paddle + action - 1, 0, self.columns - 1))
        self.row += 1
        landed = self.row == self.columns - 1
        caught = landed and self.paddle == self.ball
        return self._image(), float(caught), landed, False, {"success": caught} if landed else {}

    def _image(self) -> np.ndarray:
        cells = np.zeros((self.columns, self.columns), np.uint8)
        cells[-1, self.paddle] = 120
        cells[self.row, self.ball] = 255
        return cells.repeat(CELL, 0).repeat(CELL, 1)


gym.register("Catch-v0", f"{__name__}:Catch")
