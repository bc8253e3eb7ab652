"""Methods by name. Adding one is a file with what it does differently from IMPALA, and a line here."""

import difflib
from typing import NamedTuple

from longtail.memory import MemoryConfig
from longtail.methods.autoencoder import Autoencoder, AutoencoderConfig
from longtail.methods.hcam import HCAM, HCAMConfig
from longtail.methods.method import Method, Row, Sizes
from longtail.methods.recall import Recall

__all__ = ["METHODS", "SECTIONS", "Entry", "Method", "MethodConfig", "Row", "Sizes", "check_method"]

MethodConfig = MemoryConfig | HCAMConfig | AutoencoderConfig

# Sections of a run's configuration that belong to methods.
SECTIONS: dict[str, type] = {"memory": MemoryConfig, "hcam": HCAMConfig, "autoencoder": AutoencoderConfig}


class Entry(NamedTuple):
    kind: type[Method]
    section: str | None  # which of SECTIONS it has
    config: MethodConfig | None  # what it says there by default
    summary: str


METHODS: dict[str, Entry] = {
    "impala": Entry(Method, None, None, "IMPALA"),
    "reconstruction": Entry(Autoencoder, "autoencoder", AutoencoderConfig(), "IMPALA + visual reconstruction"),
    "vae": Entry(Autoencoder, "autoencoder", AutoencoderConfig(variational=True), "IMPALA + variational autoencoder"),
    "hcam": Entry(HCAM, "hcam", HCAMConfig(), "IMPALA + hierarchical chunk attention memory"),
    "mem": Entry(Recall, "memory", MemoryConfig(selection="uniform", contrastive=False), "IMPALA + MEM"),
    "mem-contrastive": Entry(
        Recall, "memory", MemoryConfig(selection="uniform"), "IMPALA + MEM + contrastive learning"
    ),
    "boosted": Entry(Recall, "memory", MemoryConfig(), "momentum-boosted episodic memory"),
    "boosted-single-loss": Entry(Recall, "memory", MemoryConfig(beta=0.0), "boosted by the last loss alone"),
}


def check_method(method: str) -> None:
    if method not in METHODS:
        near = difflib.get_close_matches(method, METHODS, n=1)
        hint = f"did you mean {near[0]}? It" if near else "it"
        raise ValueError(f"method is {method!r}: {hint} must be one of {', '.join(METHODS)}")
