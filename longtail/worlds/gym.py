"""Our worlds by their Gymnasium ids, their arguments and their documentation. `import longtail` registers them."""

import difflib
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from gymnasium.vector import AutoresetMode

from longtail.worlds.faces import WorldEnv, WorldVectorEnv
from longtail.worlds.gridworld import GridworldConfig


def gridworld_config(keywords: Mapping[str, Any]) -> GridworldConfig:
    """The keywords of `gym.make`: any field of the configuration; public levels know their own size."""
    known = [field.name for field in fields(GridworldConfig) if field.name != "name"]
    for name in keywords:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]}? It" if near else "it"
            raise ValueError(f"{name} is not an argument of Gridworld: {hint} must be one of {', '.join(known)}")
    size = 20 if keywords.get("levels") == "20x20" else 10
    return GridworldConfig(**{"maps": size, "objects": size} | dict(keywords))


class GridworldEnv(WorldEnv):
    """Find the object shown in the corner of the view: Zipf's Gridworld (Chan et al., 2022).

    ## Description
    A map is 3x3 rooms of 3x3 squares, joined by doors one square wide. Each map has its own walls, its own start and
    its own ten objects. The agent sees a part of the map and the picture of one object; it has to walk to that
    object without touching another one. Some maps and some objects are asked for all the time and others hardly
    ever: the k-th map, and on it the k-th object, has a probability proportional to 1 / k^2.

    ## Action Space
    `Discrete(8)`: one square in a direction of the compass.

    | 0 | 1 | 2 | 3 | 4 | 5 | 6 | 7 |
    |---|---|---|---|---|---|---|---|
    | N | NE | E | SE | S | SW | W | NW |

    A move into a wall, or diagonally between two wall squares, stays where it is.

    ## Observation Space
    `Box(0, 255, (84, 84, 3), uint8)`: the 7x7 squares around the agent, which is white in the middle. Walls are dark
    grey, the floor and everything outside the map are black. The square in the top left corner is not part of the
    map: it shows the object to find. In the last frame of an episode the object touched is drawn over the agent.

    ## Rewards
    1 for touching the object shown, else 0.

    ## Starting State
    The start of the map that the law draws. Episode n after `reset(seed=s)` is always the same task, whatever was
    done before it, and the one that world 0 of `longtail train --seed s` plays. Without a seed the first `reset` takes
    a random one, and later ones go on from there.

    ## Episode End
    - Terminated: an object was touched, the right one or a wrong one.
    - Truncated: 100 steps were made and nothing was touched. The limit is the world's own; no wrapper is needed.

    ## Arguments
    ```python
    import gymnasium as gym
    import longtail

    env = gym.make("longtail/Gridworld-v0", levels="20x20", exponent=1.5, render_mode="rgb_array")
    envs = gym.make_vec("longtail/Gridworld-v0", num_envs=32)  # its own vector form, which resets in the same step
    ```

    | argument | default | |
    |---|---|---|
    | `law` | `"zipfian"` | what tasks are drawn by: `"zipfian"`, `"uniform"` or `"rare"` (last fifth of both axes) |
    | `exponent` | `2.0` | of the Zipf law of maps and of objects; 0 is uniform |
    | `reverse` | `False` | make the last map and the last object the most frequent |
    | `levels` | `"10x10"` | public levels, `"10x10"` or `"20x20"` (maps x objects), or `"generated"` ones |
    | `maps`, `objects` | 10 or 20 | how many; public levels have as many as their name says |
    | `level_seed`, `rooms` | `0`, `3` | generated levels: which ones, and rooms along a side |
    | `max_steps` | `100` | steps after which an episode is truncated |
    | `resolution` | `84` | pixels along the view's side, a multiple of 7; `63` is the original |
    | `render_mode` | `None` | `"rgb_array"`: the agent's view beside the whole map |

    `reset(options={"map": m, "object": o})` pins the task of the episode that it begins, and of no later one. With one
    of the two, the law chooses among the tasks that fit.

    ## Info
    At every `reset` and `step`: `task`, `map` and `object` (from 0), `map_rank` and `object_rank` (1 is the most
    frequent) and `probability`: how often the Zipf law asks for this task, whatever `law` is. At the end of an
    episode also `success`.
    """

    def __init__(self, render_mode: str | None = None, **keywords: Any) -> None:
        super().__init__(gridworld_config(keywords), render_mode)


class GridworldVectorEnv(WorldVectorEnv):
    """Gridworlds in one batch; see `GridworldEnv`. Made by `gym.make_vec("longtail/Gridworld-v0", num_envs=32)`.

    It resets in the same step: when an episode ends, the observation and `info` are those of the next one, and those
    of the end are in `info["final_obs"]` and `info["final_info"]`, as Gymnasium's own vector environments put them.

    A seed is one number for all worlds; each draws tasks of its own from it, and world i the same ones whatever the
    number of worlds. `reset(options=...)` takes `map` and `object`, one for all worlds or one each, and `reset_mask`:
    only these worlds begin anew. A pin holds for the episode that begins, not for those after it.
    """

    def __init__(
        self,
        num_envs: int,
        render_mode: str | None = None,
        autoreset_mode: AutoresetMode | str = AutoresetMode.SAME_STEP,
        **keywords: Any,
    ) -> None:
        super().__init__(gridworld_config(keywords), num_envs, render_mode, autoreset_mode)
