"""A run as one tree of dataclasses: what to train, on which world, for how long. Nothing else decides a result."""

import dataclasses
import hashlib
import json
import math
from dataclasses import dataclass, field
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import torch

from longtail.agents.agent import AgentConfig
from longtail.impala.learn import ImpalaConfig
from longtail.memory import MemoryConfig
from longtail.methods import METHODS, SECTIONS, MethodConfig, check_method
from longtail.methods.autoencoder import AutoencoderConfig
from longtail.methods.hcam import HCAMConfig
from longtail.worlds import WORLDS, GridworldConfig, WorldConfig, check_name, is_known, world_config, world_label

Device = Literal["auto", "cpu", "cuda"]
Precision = Literal["auto", "fp32", "bf16"]
Preset = Literal["default", "paper"]
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}

# Fields that may change between two sittings of one run. What device and precision come to is compared with what a
# checkpoint was trained with, so that `auto` and what it stands for are the same run.
OPERATIONAL = ("log_every", "checkpoint_every", "keep_checkpoints", "device", "precision", "world.patience")


@dataclass(frozen=True)
class RunConfig:
    """One training run."""

    world: WorldConfig = field(default_factory=GridworldConfig)
    method: str = "impala"
    """What is trained: impala, reconstruction, vae, hcam, mem, mem-contrastive, boosted, boosted-single-loss."""
    preset: Preset = "default"
    """Hyperparameters: ours, chosen on generated levels, or the paper's table as printed."""
    seed: int = 1
    """Seed of worlds, weights and actions."""
    steps: int = 40_000_000
    """Decisions to train for, over all worlds; may grow later if the learning rate is constant."""
    agent: AgentConfig = field(default_factory=AgentConfig)
    impala: ImpalaConfig = field(default_factory=ImpalaConfig)
    memory: MemoryConfig | None = None
    """Of the methods with an episodic memory; None takes what the method has by default, here and below."""
    hcam: HCAMConfig | None = None
    """Of hcam."""
    autoencoder: AutoencoderConfig | None = None
    """Of reconstruction and vae."""
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
        check_method(self.method)
        self._take_section()
        for name, least in {
            "seed": 0,
            "steps": 0,
            "log_every": 1,
            "checkpoint_every": 1,
            "keep_checkpoints": 1,
        }.items():
            if getattr(self, name) < least:
                raise ValueError(f"{name} is {getattr(self, name)}: it must be at least {least}")
        if self.seed >= 2**63:
            raise ValueError(f"seed is {self.seed}: it must be below 2**63")
        for name, kind in {"preset": Preset, "device": Device, "precision": Precision}.items():
            if getattr(self, name) not in get_args(kind):
                raise ValueError(f"{name} is {getattr(self, name)!r}: it must be one of {', '.join(get_args(kind))}")
        check_name(self.world)
        if self.hcam and self.impala.bootstrap_time_limits:
            raise ValueError(
                "impala.bootstrap_time_limits is True: it must be False with hcam, which has no read for it"
            )
        for name, value in _flatten(dataclasses.asdict(self)).items():
            if isinstance(value, float) and not math.isfinite(value):
                raise ValueError(f"{name} is {value}: it must be a finite number")

    def _take_section(self) -> None:
        """A method has one section of its own, or none."""
        entry = METHODS[self.method]
        for name in SECTIONS:
            if name != entry.section and getattr(self, name) is not None:
                has = f"has {entry.section}" if entry.section else "has no section of its own"
                raise ValueError(
                    f"{name} is given, but method is {self.method!r}: it must be None, {self.method} {has}"
                )
        if entry.section and getattr(self, entry.section) is None:
            object.__setattr__(self, entry.section, entry.config)  # as a default that depends on another field

    @property
    def method_config(self) -> MethodConfig | None:
        """The method's section."""
        section = METHODS[self.method].section
        return getattr(self, section) if section else None

    @property
    def world_label(self) -> str:
        """The world's name, and the fields that differ from the world of this name."""
        return world_label(self.world)

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
    return DTYPES[precision]


def cpu_has_bf16() -> bool:
    return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())


def to_json(config: RunConfig) -> str:
    return json.dumps(dataclasses.asdict(config), indent=2) + "\n"


def from_json(text: str) -> RunConfig:
    """The configuration of a run folder. A field that is missing, unknown or of another type is an error that names it:

    a default taken from this version would be another run.
    """
    tree = json.loads(text)
    name = str(_entry(_entry(tree, "world"), "name", "world."))
    if not is_known(name):
        raise ValueError(f"world.name is {name!r}: it must be one of {', '.join(WORLDS)} or gym:<environment id>")
    method = METHODS.get(_entry(tree, "method"))
    # A section that the method does not have may be missing, too.
    tree = {section: None for section in SECTIONS if not method or section != method.section} | tree
    parts = {"world": type(world_config(name)), "agent": AgentConfig, "impala": ImpalaConfig}
    parts |= {section: kind for section, kind in SECTIONS.items() if _entry(tree, section) is not None}
    return _build(
        RunConfig, tree | {part: _build(kind, _entry(tree, part), f"{part}.") for part, kind in parts.items()}
    )


def _entry(tree: Any, name: str, prefix: str = "") -> Any:
    if not isinstance(tree, dict) or name not in tree:
        raise ValueError(f"{prefix}{name} is missing")
    return tree[name]


def _build(kind: Any, tree: Any, prefix: str = "") -> Any:
    hints, values = get_type_hints(kind), {}
    for f in dataclasses.fields(kind):
        value = _entry(tree, f.name, prefix)
        values[f.name] = tuple(value) if isinstance(value, list) else value
        # Parts come here as built and checked; a world of somebody's own is not in the annotation.
        if not dataclasses.is_dataclass(value) and not _fits(values[f.name], hints[f.name]):
            raise ValueError(f"{prefix}{f.name} is {value!r}: it must be {_in_words(hints[f.name])}")
    for name in tree:
        if name not in values:
            raise ValueError(f"{prefix}{name} is a field that this version of longtail does not know")
    return kind(**values)


def _fits(value: Any, kind: Any) -> bool:
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Literal:
        return value in inner
    if origin in (Union, UnionType):
        return any(_fits(value, one) for one in inner)
    if origin is tuple:
        return isinstance(value, tuple) and all(_fits(one, inner[0]) for one in value)
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    return isinstance(value, kind) and (kind is bool or not isinstance(value, bool))


def _in_words(kind: Any) -> str:
    words = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}
    return f"one of {', '.join(get_args(kind))}" if get_origin(kind) is Literal else words.get(kind, f"a {kind}")


def fingerprint(config: RunConfig) -> str:
    """Tells runs apart: a digest of everything but `steps`, which may grow, and what is operational."""
    free = ("steps", *OPERATIONAL)
    fixed = {name: value for name, value in _flatten(dataclasses.asdict(config)).items() if name not in free}
    return hashlib.sha256(json.dumps(fixed).encode()).hexdigest()[:16]


def differences(old: RunConfig, new: RunConfig) -> list[tuple[str, Any, Any]]:
    """Fields, by dotted name, in which two configurations differ, and both values."""
    flat_old, flat_new = _flatten(dataclasses.asdict(old)), _flatten(dataclasses.asdict(new))
    pairs = ((name, flat_old.get(name), flat_new.get(name)) for name in flat_old | flat_new)
    return [(name, before, now) for name, before, now in pairs if before != now]


def _flatten(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in tree.items():
        flat |= _flatten(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value}
    return flat
