"""A run as one tree of dataclasses: what to train, on which world, for how long. Nothing else decides a result."""

import dataclasses
import json
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import torch

from longtail.agents.agent import AgentConfig
from longtail.impala.learn import ImpalaConfig
from longtail.worlds import GridworldConfig, HostConfig, WorldConfig

Device = Literal["auto", "cpu", "cuda"]
Precision = Literal["auto", "fp32", "bf16"]


@dataclass(frozen=True)
class RunConfig:
    """One training run."""

    world: WorldConfig = field(default_factory=GridworldConfig)
    method: str = "impala"
    """What is trained: impala."""
    preset: Literal["default", "paper"] = "default"
    """Hyperparameters: ours, chosen on generated levels, or the paper's table as printed."""
    seed: int = 1
    """Seed of worlds, weights and actions."""
    steps: int = 40_000_000
    """Decisions to train for, over all worlds; may grow later if the learning rate is constant."""
    agent: AgentConfig = field(default_factory=AgentConfig)
    impala: ImpalaConfig = field(default_factory=ImpalaConfig)
    device: Device = "auto"
    """Where to train; auto takes a GPU if there is one."""
    precision: Precision = "auto"
    """Precision of the image encoder; auto takes bf16 where the hardware has it. Weights and losses are fp32."""
    log_every: int = 50_000
    """Steps between two rows of metrics.jsonl."""
    checkpoint_every: int = 1_000_000
    """Steps between two checkpoints."""
    keep_checkpoints: int = 3
    """How many of the newest checkpoints are kept."""

    def __post_init__(self) -> None:
        for name, least in {"seed": 0, "steps": 0, "log_every": 1, "checkpoint_every": 1, "keep_checkpoints": 1}.items():
            if getattr(self, name) < least:
                raise ValueError(f"{name} is {getattr(self, name)}: it must be at least {least}")
        for name, choices in {"device": get_args(Device), "precision": get_args(Precision)}.items():
            if getattr(self, name) not in choices:
                raise ValueError(f"{name} is {getattr(self, name)!r}: it must be one of {', '.join(choices)}")

    @property
    def iteration_steps(self) -> int:
        return self.impala.worlds * self.impala.unroll

    @property
    def iterations(self) -> int:
        """Whole iterations that make up `steps`, rounded up."""
        return -(-self.steps // self.iteration_steps)


def resolve_device(device: str) -> torch.device:
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError(
            "device is cuda, but PyTorch sees no CUDA GPU: use cpu or auto (longtail doctor says what is missing)"
        )
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(device)


def resolve_precision(precision: str, device: torch.device) -> torch.dtype:
    """bf16 only where the hardware multiplies it: elsewhere it is emulated and slower than fp32."""
    if precision == "auto":
        has_bf16 = torch.cuda.is_bf16_supported(including_emulation=False) if device.type == "cuda" else cpu_has_bf16()
        precision = "bf16" if has_bf16 else "fp32"
    return torch.bfloat16 if precision == "bf16" else torch.float32


def cpu_has_bf16() -> bool:
    return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())


def to_json(config: RunConfig) -> str:
    return json.dumps(dataclasses.asdict(config), indent=2) + "\n"


def from_json(text: str) -> RunConfig:
    """The configuration of a run folder; a field this version does not know is an error that names it."""
    tree = json.loads(text)
    world = HostConfig if str(tree["world"].get("name", "")).startswith("gym:") else GridworldConfig
    parts = {"world": world, "agent": AgentConfig, "impala": ImpalaConfig}
    return _build(RunConfig, tree | {name: _build(kind, tree[name], name) for name, kind in parts.items()})


def _build(kind: Any, values: dict[str, Any], where: str = "config") -> Any:
    known = {f.name for f in dataclasses.fields(kind)}
    for name in values:
        if name not in known:
            raise ValueError(f"{where} has a field {name!r} that this version of longtail does not know")
    return kind(**{name: tuple(v) if isinstance(v, list) else v for name, v in values.items()})


def first_difference(old: RunConfig, new: RunConfig) -> tuple[str, Any, Any] | None:
    """The first field, by dotted name, in which two configurations differ."""
    flat_old, flat_new = _flatten(dataclasses.asdict(old)), _flatten(dataclasses.asdict(new))
    for name in flat_old | flat_new:
        if flat_old.get(name) != flat_new.get(name):
            return name, flat_old.get(name), flat_new.get(name)
    return None


def _flatten(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in tree.items():
        flat |= _flatten(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value}
    return flat
