"""Steps/s of TorchBeast's MonoBeast (IMPALA with an LSTM) on a world that does nothing, on a CPU.

    PEER_PYTHON benchmarks/peers/monobeast.py --checkout FOLDER --seconds 30

FOLDER is a checkout of TorchBeast; PEER_PYTHON needs PyTorch and NumPy only. MonoBeast runs unchanged: replaced from
outside are its Atari world, by one that always returns the same image, and its log writer, by a clock. The last line
printed is a JSON object. A step is one decision that the learner has trained on.
"""

import argparse
import hashlib
import importlib
import importlib.metadata
import json
import platform
import sys
import time
import types
from pathlib import Path
from typing import Any

import numpy as np

# Not torch: MonoBeast sets its number of threads before importing it.
ACTIONS, IMAGE, UNROLL = 8, (3, 84, 84), 32


class NullWorld:
    """What MonoBeast asks of a Gym environment; its time is free, so the rate is that of MonoBeast alone."""

    observation_space = types.SimpleNamespace(shape=IMAGE)
    action_space = types.SimpleNamespace(n=ACTIONS)
    image_CHW = np.full(IMAGE, 128, np.uint8)

    def seed(self, seed: int) -> None: ...

    def reset(self) -> np.ndarray:
        return self.image_CHW

    def step(self, action: int) -> tuple[np.ndarray, float, bool, dict[str, Any]]:
        return self.image_CHW, 0.0, False, {}

    def close(self) -> None: ...


class Clock:
    """In the place of MonoBeast's log writer, called after every update: notes the time and ends the run."""

    def __init__(self, flags: argparse.Namespace, warmup: float, seconds: float) -> None:
        self.flags, self.warmup, self.seconds = flags, warmup, seconds
        self.begin: float | None = None
        self.updates: list[tuple[float, int]] = []

    def log(self, row: dict[str, Any]) -> None:
        now = time.perf_counter()
        self.begin = now if self.begin is None else self.begin
        if now - self.begin >= self.warmup:
            self.updates.append((now, row["step"]))
            if now - self.updates[0][0] >= self.seconds:
                self.flags.total_steps = 1  # not 0, which its learning-rate schedule divides by

    def close(self) -> None: ...


def load(checkout: Path) -> Any:
    """The module of a checkout, without the Atari wrappers and what they import."""
    if not (checkout / "torchbeast" / "monobeast.py").is_file():
        sys.exit(f"checkout is {str(checkout)!r}: it must be a checkout of TorchBeast, with torchbeast/monobeast.py")
    sys.path.insert(0, str(checkout))
    wrappers = types.ModuleType("torchbeast.atari_wrappers")
    importlib.import_module("torchbeast").atari_wrappers = wrappers  # type: ignore[attr-defined]
    sys.modules[wrappers.__name__] = wrappers
    return importlib.import_module("torchbeast.monobeast")


def same_network(base: Any) -> Any:
    """MonoBeast's network with the sizes of ours: two convolutions, an embedding of 256, one LSTM layer of 256."""
    from torch import nn

    class Network(base):
        def __init__(self, shape: tuple[int, ...], num_actions: int, use_lstm: bool) -> None:
            super().__init__(shape, num_actions, use_lstm)
            self.conv1, self.conv2, self.conv3 = nn.Conv2d(3, 16, 8, 4), nn.Conv2d(16, 32, 4, 2), nn.Identity()
            self.fc = nn.Linear(32 * 9 * 9, 256)
            self.core = nn.LSTM(256 + num_actions + 1, 256)
            self.policy, self.baseline = nn.Linear(256, num_actions), nn.Linear(256, 1)

    return Network


def run(args: argparse.Namespace) -> Clock:
    monobeast = load(args.checkout)
    flags = monobeast.parser.parse_args(["--use_lstm", "--disable_cuda", "--disable_checkpoint"])
    flags.xpid, flags.total_steps, flags.unroll_length = "peer", 10**9, UNROLL
    flags.num_actors, flags.batch_size, flags.num_learner_threads = args.actors, args.batch, args.learner_threads
    clock = Clock(flags, args.warmup, args.seconds)
    monobeast.create_env = lambda flags: NullWorld()
    monobeast.file_writer.FileWriter = lambda **kwargs: clock
    if args.network == "same":
        monobeast.Net = same_network(monobeast.Net)
    monobeast.train(flags)
    if len(clock.updates) < 2:
        sys.exit("MonoBeast did not train: see its messages above")
    return clock


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkout", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--seconds", type=float, default=30, help="seconds to measure (default 30)")
    parser.add_argument("--warmup", type=float, default=5, help="seconds of training before that (default 5)")
    parser.add_argument("--network", choices=("own", "same"), default="own", help="MonoBeast's, or the sizes of ours")
    parser.add_argument("--actors", type=int, default=8)
    parser.add_argument("--batch", type=int, default=32, help="rollouts per update (default 32)")
    parser.add_argument("--learner-threads", type=int, default=2, help="default 2, MonoBeast's")
    args = parser.parse_args()
    clock = run(args)
    (begin, first), (end, last) = clock.updates[0], clock.updates[-1]
    source = (args.checkout / "torchbeast" / "monobeast.py").read_bytes()
    result = {
        "name": "monobeast",
        "steps_per_second": (last - first) / (end - begin),
        "steps": last - first,
        "seconds": end - begin,
        "config": {"unroll": UNROLL, "image": IMAGE} | vars(args) | {"checkout": None},
        "versions": {
            "python": platform.python_version(),
            "monobeast.py sha256": hashlib.sha256(source).hexdigest()[:16],
            **{name: importlib.metadata.version(name) for name in ("torch", "numpy")},
        },
    }
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
