"""The command line: `longtail COMMAND ...`. Every field of a run is a flag; the same can be done from Python.

What a command needs is imported when it runs, so that usage and mistakes are answered at once.
"""

import difflib
import io
import re
import sys
from collections.abc import Callable
from contextlib import redirect_stderr
from dataclasses import dataclass
from itertools import dropwhile, takewhile
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, cast

import tyro
from rich.console import Console
from tyro.conf import AvoidSubcommands, Positional, arg

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
    """Print one JSON object instead of a table."""


@dataclass(frozen=True)
class WorldsArgs:
    """List the worlds: tasks, actions, observations, and what a random walk scores."""


@dataclass(frozen=True)
class DoctorArgs:
    """Say what works on this machine, and what to do where something does not."""


T = TypeVar("T")


def parse(kind: type[T], argv: list[str], command: str, default: T | None = None) -> T:
    """Arguments as a dataclass; a mistake is a ValueError of one line instead of tyro's box."""
    box = io.StringIO()
    try:
        with redirect_stderr(box):
            parsed = tyro.cli(kind, args=argv, default=default, prog=f"longtail {command}", config=(AvoidSubcommands,))
            return cast(T, parsed)
    except SystemExit as end:
        if not end.code:
            raise
        raise ValueError(f"{one_line(box.getvalue())} (longtail {command} --help lists all flags)") from None


# What tyro says, in the words of all our errors: field, value, what would be right.
REWORDED = (
    (r"^Error parsing (?!-)\S+: ", ""),  # the error names the field itself
    (r"^Error parsing (\S+): invalid literal for int\(\).*: (.*)$", r"\1 is \2: it must be a whole number"),
    (r"^Error parsing (\S+): could not convert string to float: (.*)$", r"\1 is \2: it must be a number"),
    (r"^Missing value for argument '(\S+)'.*$", r"\1 has no value: one must follow it"),
    (r"^Missing from longtail \w+: (\w+) .*$", r"\1 is missing"),
    (r"^[Ii]nvalid choice (.*) for argument '(\S+)'\. Expected one of \((.*)\)\.$", r"\2 is \1: it must be one of \3"),
    (r"^Unrecognized options: ", "not understood: "),
)


def one_line(box: str) -> str:
    """What a box of tyro's says: its first part, and the nearest flag if it suggests one."""
    lines = [line.strip("│╭╮╰╯ \n") for line in box.splitlines()]
    # Under its title, a rule of hyphens where stdout is not UTF-8; a rule again below the first part.
    body = list(dropwhile(_is_rule, lines[1:]))
    text = " ".join(takewhile(lambda line: not _is_rule(line), body))
    for pattern, words in REWORDED:
        text = re.sub(pattern, words, text)
    near = re.search(r"Perhaps you meant:\s*(--[^\s,]+)", box.replace("│", " "))
    return f"{text}; did you mean {near[1]}?" if near else text


def _is_rule(line: str) -> bool:
    return not line.strip("─-")


def train_command(argv: list[str]) -> None:
    if argv and set(argv[:1]) & {"-h", "--help"}:
        world, rest = "gridworld", argv
    elif not argv or argv[0].startswith("-"):
        raise ValueError("world is missing: longtail train WORLD, gridworld-small for example (see longtail worlds)")
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
    args = parse(TrainArgs, rest, f"train {'WORLD' if rest is argv else world}", default)
    train(args.config, args.out, args.stop_at)


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

    evaluate(args.run, args.episodes, args.greedy, args.device, args.seed)


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

    print_bench(a.worlds, a.unroll, a.device, a.precision, a.encoder, a.seconds, a.json)


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
    console, errors = Console(highlight=False), Console(stderr=True, highlight=False, soft_wrap=True, markup=False)
    if not argv or argv[0] in ("-h", "--help", "help"):
        console.print(USAGE)
        return 0
    if argv[0] == "--version":
        from longtail import __version__

        console.print(f"longtail {__version__}")
        return 0
    if "" not in sys.path:
        sys.path.append("")  # gym:<module>:<id> finds modules of the current folder, as `python -m` does
    try:
        if argv[0] not in COMMANDS:
            near = difflib.get_close_matches(argv[0], COMMANDS, n=1)
            hint = f"did you mean {near[0]}? " if near else ""
            raise ValueError(f"command is {argv[0]!r}: {hint}It must be one of {', '.join(COMMANDS)}")
        COMMANDS[argv[0]](argv[1:])
        return 0
    except KeyboardInterrupt as interruption:
        if interruption.args:
            errors.print(str(interruption))
        return getattr(interruption, "code", 130)
    except Exception as error:
        code = exit_code(error)
        if code is None:
            raise
        errors.print(f"longtail: {in_words(error)}")
        return code


def exit_code(error: Exception) -> int | None:
    """3 for a value that is not finite, 2 for input that cannot be used, None for a mistake of ours."""
    if isinstance(error, FloatingPointError):
        return 3
    world_error: Any = getattr(sys.modules.get("longtail.worlds.vectors"), "HostError", ValueError)
    return 2 if isinstance(error, (ValueError, OSError, world_error)) else None


def in_words(error: Exception) -> str:
    """One line."""
    if isinstance(error, OSError) and error.strerror:
        where = f" ({error.filename})" if error.filename else ""
        return f"{error.strerror}{where}"
    return " ".join(str(error).split())


if __name__ == "__main__":
    sys.exit(main())
