"""The command line: `longtail COMMAND ...`. Every field of a run is a flag; the same can be done from Python.

What a command needs is imported when it runs, so that usage and mistakes are answered at once.
"""

import difflib
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Literal

from rich.console import Console
from tyro.conf import Positional, arg

from longtail.flags import parse

USAGE = """\
[bold]longtail[/]: reinforcement learning in worlds where rare tasks matter

  [bold]longtail train WORLD[/]   train a run, or go on with it
  [bold]longtail eval RUN[/]      success of every task, with intervals and a heatmap
  [bold]longtail play WORLD[/]    play it yourself, in the terminal
  [bold]longtail worlds[/]        the worlds and their tasks
  [bold]longtail bench[/]         steps per second on this machine
  [bold]longtail doctor[/]        what works here, and what to do where it does not

Each takes --help. To begin with:

  [cyan]longtail train gridworld-small[/]
  [cyan]longtail eval runs/gridworld-small-impala-s1[/]"""


@dataclass(frozen=True)
class EvalArgs:
    """Play every task of a run with its parameters frozen; writes eval.csv, summary.json and heatmap.png."""

    run: Annotated[Positional[Path], arg(metavar="RUN")]
    """Folder of the run."""
    episodes: int = 50
    """Episodes of each task."""
    greedy: bool = False
    """Take the likeliest action instead of sampling the policy."""
    seed: int = 0
    """Seed of the evaluation's draws."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to play."""


@dataclass(frozen=True)
class PlayArgs:
    """Play a world in the terminal."""

    world: Annotated[Positional[str], arg(metavar="WORLD")]
    """Name of the world; longtail worlds lists them."""
    seed: int = 0
    """Which sequence of tasks."""
    map: int | None = None
    """Play this map only."""
    object: int | None = None
    """Play this object only."""


@dataclass(frozen=True)
class BenchArgs:
    """Measure steps per second on this machine: rollout only, learn only, train."""

    method: str = "impala"
    """What is trained; longtail doctor lists the methods."""
    worlds: int = 32
    """Worlds that step together."""
    unroll: int = 32
    """Steps of each world per iteration."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to run."""
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """Precision of the image encoder."""
    encoder: Literal["shallow", "deep"] = "shallow"
    """Image encoder."""
    seconds: float = 5.0
    """How long to measure each part."""
    json: bool = False
    """Print one line of JSON instead of a table: steps_per_second (of worlds only, rollout only, learn only, train),
    world, method, encoder, worlds, unroll, precision, device, threads, gpu_memory_gib (null without a GPU), torch."""


@dataclass(frozen=True)
class WorldsArgs:
    """List the worlds: tasks, actions, observations, and what a random walk scores."""


@dataclass(frozen=True)
class DoctorArgs:
    """Say what works on this machine, and what to do where something does not."""


def train_command(argv: list[str]) -> None:
    if argv and set(argv[:1]) & {"-h", "--help"}:
        world, rest = "gridworld", argv
    elif not argv:
        raise ValueError("world is missing: longtail train WORLD, gridworld-small for example (see longtail worlds)")
    elif argv[0].startswith("-"):
        raise ValueError(f"not understood: {argv[0]}; the world comes first: longtail train WORLD [flags]")
    else:
        world, rest = argv[0], argv[1:]

    from longtail.config import RunConfig
    from longtail.recipes import recipe
    from longtail.train import train

    @dataclass(frozen=True)
    class TrainArgs:
        """Train a run, or go on with it. The same command twice resumes; a finished run is left as it is."""

        config: Annotated[RunConfig, arg(name="")]
        out: Path | None = None
        """Folder of the run; the default is runs/WORLD-METHOD-sSEED."""
        stop_at: int | None = None
        """Save and end at this step, as an interruption would."""

    method, preset = _early(rest, "--method", "impala"), _early(rest, "--preset", "default")
    default = TrainArgs(recipe(world, method, preset))  # type: ignore[arg-type]
    _check_sections(rest, method)
    try:
        args = parse(TrainArgs, rest, f"train {'WORLD' if rest is argv else world}", default)
        train(args.config, args.out, args.stop_at)
    except ValueError as error:  # a world knows its fields, not that their flags begin with world.
        own = {f.name for f in fields(default.config.world)} - {f.name for f in fields(RunConfig)}
        if str(error).partition(" is ")[0] in own:
            raise ValueError(f"world.{error}") from error
        raise


def _check_sections(argv: list[str], method: str) -> None:
    """A flag of a section that the method does not have would only be called not understood."""
    from longtail.methods import METHODS, SECTIONS

    for flag in argv:
        section = flag.removeprefix("--").partition(".")[0]
        if flag.startswith("--") and "." in flag and section in SECTIONS and section != METHODS[method].section:
            having = ", ".join(name for name, entry in METHODS.items() if entry.section == section)
            raise ValueError(f"{flag.partition('=')[0]} is given, but method is {method!r}: it must be one of {having}")


def _early(argv: list[str], flag: str, otherwise: str) -> str:
    """A flag that chooses the defaults of all others, so it is read before they are parsed; the last one counts."""
    for i in reversed(range(len(argv))):
        if argv[i] == flag and i + 1 < len(argv):
            return argv[i + 1]
        if argv[i].startswith(flag + "="):
            return argv[i].split("=", 1)[1]
    return otherwise


def eval_command(argv: list[str]) -> None:
    args = parse(EvalArgs, argv, "eval")
    from longtail.evaluate import evaluate

    try:
        evaluate(args.run, args.episodes, args.greedy, args.device, args.seed)
    except (MemoryError, OverflowError) as error:
        raise ValueError(f"episodes is {args.episodes}: so many do not fit into memory, so lower it") from error


def play_command(argv: list[str]) -> None:
    args = parse(PlayArgs, argv, "play")
    from longtail.play import play

    play(args.world, seed=args.seed, map=args.map, object=args.object)


def worlds_command(argv: list[str]) -> None:
    parse(WorldsArgs, argv, "worlds")
    from longtail.doctor import print_worlds

    print_worlds()


def doctor_command(argv: list[str]) -> None:
    parse(DoctorArgs, argv, "doctor")
    from longtail.doctor import print_report

    print_report()


def bench_command(argv: list[str]) -> None:
    a = parse(BenchArgs, argv, "bench")
    from longtail.bench import print_bench

    print_bench(a.worlds, a.unroll, a.device, a.precision, a.encoder, a.seconds, a.method, a.json)


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
    argv = sys.argv[1:] if argv is None else argv
    errors = Console(stderr=True, highlight=False, soft_wrap=True, markup=False, emoji=False)
    if "" not in sys.path:
        sys.path.append("")  # gym:<module>:<id> finds modules of the current folder, as `python -m` does
    try:
        run(argv)
        sys.stdout.flush()
        return 0
    except KeyboardInterrupt as interruption:  # one without words came before the first iteration, or was the second
        unsaved = " without saving: the same command begins again, or goes on from the last checkpoint"
        errors.print(str(interruption) or f"interrupted{unsaved if argv[0] == 'train' else ''}")
        return getattr(interruption, "code", 130)
    except BrokenPipeError:  # whoever reads has seen enough, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python would complain when it ends
        return 1
    except Exception as error:
        code = exit_code(error)
        if code is None:
            raise
        errors.print(f"longtail: {in_words(error)}")
        return code


def run(argv: list[str]) -> None:
    if not argv or argv[0] in ("-h", "--help", "help"):
        Console(highlight=False).print(USAGE)
    elif argv[0] == "--version":
        from longtail import __version__

        print(f"longtail {__version__}")
    elif argv[0] in COMMANDS:
        COMMANDS[argv[0]](argv[1:])
    else:
        near = difflib.get_close_matches(argv[0], COMMANDS, n=1)
        hint = f"did you mean {near[0]}? It" if near else "it"
        raise ValueError(f"command is {argv[0]!r}: {hint} must be one of {', '.join(COMMANDS)}")


def exit_code(error: Exception) -> int | None:
    """3 for a value that is not finite, 2 for input that cannot be used, None for a mistake of ours."""
    if isinstance(error, FloatingPointError):
        return 3
    world_error: Any = getattr(sys.modules.get("longtail.worlds.vectors"), "HostError", ())
    if isinstance(error, (MemoryError, world_error)) or (isinstance(error, OSError) and error.filename):
        return 2
    return 2 if isinstance(error, (ValueError, OSError)) and _is_on_purpose(error) else None


def _is_on_purpose(error: Exception) -> bool:
    """Raised in longtail or in the package of a registered world, for which a ValueError means bad input.

    Other packages say ValueError as well: then the mistake is in the code, and a traceback says where.
    """
    at = error.__traceback__
    while at and at.tb_next:
        at = at.tb_next
    if at is None:
        return False
    worlds = getattr(sys.modules.get("longtail.worlds"), "WORLDS", {})
    modules = {"longtail", __name__, *(type(config).__module__ for config in worlds.values())}
    return at.tb_frame.f_globals.get("__name__", "").partition(".")[0] in {name.partition(".")[0] for name in modules}


def in_words(error: Exception) -> str:
    """One line."""
    if isinstance(error, MemoryError):
        return "memory is too small for this: fewer worlds, smaller images or a smaller agent need less"
    if isinstance(error, OSError) and error.strerror:
        where = f" ({error.filename})" if error.filename else ""
        return f"{error.strerror}{where}"
    return " ".join(str(error).split())


if __name__ == "__main__":
    sys.exit(main())
