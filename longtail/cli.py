"""The command line: `longtail COMMAND ...`. Every field of a run is a flag; the same can be done from Python."""

import difflib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, TypeVar

import tyro
from rich.console import Console
from tyro.conf import AvoidSubcommands, Positional, arg

from longtail.config import RunConfig

USAGE = """\
[bold]longtail[/]: reinforcement learning where a few tasks come up all the time and the rare ones matter

  longtail train WORLD          train, or go on with, a run     (--method --seed --steps --out ..., --help for all)
  longtail eval RUN             success of every task, with 95 % intervals, and a heatmap
  longtail play WORLD           play it yourself, in the terminal
  longtail worlds               the worlds and their tasks
  longtail bench                steps per second on this machine
  longtail doctor               what works here, and what to do where something does not

Try: [cyan]longtail train gridworld-small[/], then [cyan]longtail eval runs/gridworld-small-impala-s1[/]"""


@dataclass(frozen=True)
class TrainArgs:
    """Train, or go on with, a run. The same command twice resumes; a finished run is left as it is."""

    config: Annotated[RunConfig, arg(name="")]
    out: Path | None = None
    """Folder of the run; the default is runs/WORLD-METHOD-sSEED."""
    stop_at: int | None = None
    """Save and end at this step, as an interruption would."""


@dataclass(frozen=True)
class EvalArgs:
    """Play every task of a run with its parameters frozen; writes eval.csv, summary.json and heatmap.png."""

    run: Positional[Path]
    """Folder of the run."""
    episodes: int = 50
    """Episodes of each task."""
    greedy: bool = False
    """Take the likeliest action instead of sampling the policy."""
    seed: int = 0
    """Seed of the evaluation's draws."""
    device: str = "auto"
    """auto, cpu or cuda."""


@dataclass(frozen=True)
class PlayArgs:
    """Play a world in the terminal."""

    world: Positional[str]
    """Name of the world."""
    seed: int = 0
    """Which sequence of tasks."""
    map: int | None = None
    """Play this map only."""
    object: int | None = None
    """Play this object only."""


@dataclass(frozen=True)
class BenchArgs:
    """Measure steps per second on this machine: rollout only, learn only, train."""

    worlds: int = 32
    """Worlds that step together."""
    unroll: int = 32
    """Steps of each world per iteration."""
    device: str = "auto"
    """auto, cpu or cuda."""
    precision: str = "auto"
    """auto, fp32 or bf16."""
    encoder: str = "shallow"
    """shallow or deep."""
    seconds: float = 5.0
    """How long to measure each part."""
    json: bool = False
    """Print one JSON object instead of a table."""


T = TypeVar("T")


def _parse(kind: type[T], argv: list[str], command: str, default: T | None = None) -> T:
    return tyro.cli(kind, args=argv, default=default, prog=f"longtail {command}", config=(AvoidSubcommands,))


def train_command(argv: list[str]) -> None:
    from longtail.recipes import recipe
    from longtail.train import train

    if not argv or argv[0].startswith("-"):
        if {"-h", "--help"} & set(argv):
            argv = ["gridworld", "--help"]
        else:
            raise ValueError("world is missing: longtail train WORLD, for example gridworld-small (see longtail worlds)")
    world, rest = argv[0], argv[1:]
    default = recipe(world, _early(rest, "--method", "impala"), _early(rest, "--preset", "default"))  # type: ignore[arg-type]
    args = _parse(TrainArgs, rest, f"train {world}", TrainArgs(default))
    train(args.config, args.out, args.stop_at)


def _early(argv: list[str], flag: str, otherwise: str) -> str:
    """A flag that chooses the defaults of all others, so it is read before they are parsed."""
    for i, word in enumerate(argv):
        if word == flag and i + 1 < len(argv):
            return argv[i + 1]
        if word.startswith(flag + "="):
            return word.split("=", 1)[1]
    return otherwise


def eval_command(argv: list[str]) -> None:
    from longtail.evaluate import evaluate

    args = _parse(EvalArgs, argv, "eval")
    evaluate(args.run, args.episodes, args.greedy, args.device, args.seed)


def play_command(argv: list[str]) -> None:
    from longtail.play import play

    args = _parse(PlayArgs, argv, "play")
    play(args.world, seed=args.seed, map=args.map, object=args.object)


def worlds_command(argv: list[str]) -> None:
    from longtail.doctor import print_worlds

    _parse(NoArgs, argv, "worlds")
    print_worlds()


def doctor_command(argv: list[str]) -> None:
    from longtail.doctor import print_report

    _parse(NoArgs, argv, "doctor")
    print_report()


def bench_command(argv: list[str]) -> None:
    from longtail.bench import print_bench

    a = _parse(BenchArgs, argv, "bench")
    print_bench(a.worlds, a.unroll, a.device, a.precision, a.encoder, a.seconds, a.json)


@dataclass(frozen=True)
class NoArgs:
    """Takes no arguments."""


COMMANDS: dict[str, Callable[[list[str]], None]] = {
    "train": train_command,
    "eval": eval_command,
    "play": play_command,
    "worlds": worlds_command,
    "bench": bench_command,
    "doctor": doctor_command,
}


def main(argv: list[str] | None = None) -> int:
    """Run one command. 0 done, 2 bad input, 3 not finite, 130 and 143 interrupted after saving."""
    from longtail.train import Interrupted, NotFiniteError

    argv = sys.argv[1:] if argv is None else argv
    console, errors = Console(highlight=False), Console(stderr=True, highlight=False, soft_wrap=True)
    if not argv or argv[0] in ("-h", "--help"):
        console.print(USAGE)
        return 0
    if argv[0] == "--version":
        from longtail import __version__

        console.print(f"longtail {__version__}")
        return 0
    try:
        if argv[0] not in COMMANDS:
            near = difflib.get_close_matches(argv[0], COMMANDS, n=1)
            hint = f"did you mean {near[0]}? " if near else ""
            raise ValueError(f"command is {argv[0]!r}: {hint}It must be one of {', '.join(COMMANDS)}")
        COMMANDS[argv[0]](argv[1:])
        return 0
    except Interrupted as interruption:
        errors.print(str(interruption))
        return interruption.code
    except KeyboardInterrupt:
        return 130
    except (NotFiniteError, ValueError, OSError) as error:
        errors.print(f"longtail: {error}", markup=False)
        return 3 if isinstance(error, NotFiniteError) else 2


if __name__ == "__main__":
    sys.exit(main())
