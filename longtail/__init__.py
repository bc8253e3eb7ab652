"""Reinforcement learning in long-tailed worlds.

run = longtail.train(longtail.gridworld_small())
longtail.evaluate(run)
agent = longtail.load(run)
action, state = agent.act(obs, state)
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from longtail.config import RunConfig as RunConfig
    from longtail.evaluate import evaluate as evaluate
    from longtail.recipes import gridworld as gridworld
    from longtail.recipes import gridworld_small as gridworld_small
    from longtail.recipes import hosted as hosted
    from longtail.recipes import recipe as recipe
    from longtail.train import train as train
    from longtail.trained import TrainedAgent as TrainedAgent
    from longtail.trained import load as load

__version__ = "0.1.0"

# Imported when first used, so that `import longtail` does not wait for PyTorch.
_HOME = {
    "RunConfig": "config",
    "TrainedAgent": "trained",
    "evaluate": "evaluate",
    "gridworld": "recipes",
    "gridworld_small": "recipes",
    "hosted": "recipes",
    "load": "trained",
    "recipe": "recipes",
    "train": "train",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'longtail' has no attribute {name!r}")
    module = importlib.import_module(f"longtail.{_HOME[name]}")
    return module if _HOME[name] == name else getattr(module, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})


def _register() -> None:
    """Our worlds by their Gymnasium ids. As text, so that PyTorch is imported only when one is made."""
    try:
        import gymnasium
    except ImportError:  # longtail doctor says what to do
        return
    face = "longtail.worlds.gym"
    for name in ("Gridworld",):
        if f"longtail/{name}-v0" not in gymnasium.registry:
            gymnasium.register(f"longtail/{name}-v0", f"{face}:{name}Env", vector_entry_point=f"{face}:{name}VectorEnv")


_register()
