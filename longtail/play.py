"""Play a world by hand, in the terminal: pictures of half blocks, and the numbers behind the task."""

import os
import re
import select
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from types import FrameType
from typing import Any

import numpy as np
import torch
from rich.color import Color
from rich.console import Console, Group, RenderableType
from rich.control import Control
from rich.panel import Panel
from rich.style import Style
from rich.table import Table
from rich.text import Text

from longtail.worlds import GridworldConfig, make, world_config
from longtail.worlds.faces import restricted
from longtail.worlds.gridworld import ACTION_NAMES, Gridworld

# Keys of a direction: of roguelikes, of the other half of the keyboard, of the number block and its arrows.
COMPASS = {
    "N": ("k", "w", "8", "up"), "NE": ("u", "e", "9", "page up"), "E": ("l", "d", "6", "right"),
    "SE": ("n", "c", "3", "page down"), "S": ("j", "s", "2", "down"), "SW": ("b", "z", "1", "end"),
    "W": ("h", "a", "4", "left"), "NW": ("y", "7", "home"),
}  # fmt: skip
DIRECTION = {key: direction for direction, keys in COMPASS.items() for key in keys}
NUMBERED = "0123456789abcdefghijklnopstuvwxyz"  # keys of actions without a name; m, q and r have a meaning
QUIT, RESTART, MAP = ("q", "\x03", "\x04"), "r", "m"

SEQUENCE = re.compile(rb"\x1b(?:\[[0-?]*[@-~]|O[ -~])|[^\x1b]")
UNFINISHED = re.compile(rb"\x1b(?:\[[0-?]*|O)?")
SPECIAL = {
    "A": "up", "B": "down", "C": "right", "D": "left", "H": "home", "F": "end",
    "1~": "home", "4~": "end", "5~": "page up", "6~": "page down", "7~": "home", "8~": "end",
}  # fmt: skip


def decode(data: bytes) -> tuple[list[str], bytes]:
    """The keys in what a terminal sent, and the rest: the beginning of a sequence whose end is still to come."""
    keys, at = [], 0
    while at < len(data):
        match = SEQUENCE.match(data, at)
        if match is None and UNFINISHED.fullmatch(data, at):
            break
        at = match.end() if match else at + 1
        if match:
            keys.append(_name(match.group().decode("latin-1")))
    return keys, data[at:]


def _name(sequence: str) -> str:
    if not sequence.startswith("\x1b"):
        return sequence.lower()
    if sequence[1] == "O" and "p" <= sequence[2] <= "y":  # the number block, when an application has asked for it
        return chr(ord(sequence[2]) - ord("p") + ord("0"))
    number = sequence[2:-1].split(";")[0]  # what follows are Shift, Alt and Control
    return SPECIAL.get(number + "~" if sequence[-1] == "~" else sequence[-1], "")


def action_of(key: str, names: tuple[str, ...]) -> int | None:
    """The action that a key stands for: a direction of the compass, or the action's number."""
    if names == ACTION_NAMES:
        return names.index(DIRECTION[key]) if key in DIRECTION else None
    number = NUMBERED.find(key) if len(key) == 1 else -1
    return number if 0 <= number < len(names) else None


def resize(image: np.ndarray, height: int, width: int) -> np.ndarray:
    """Any size by averaging areas, so that small pictures keep something of every pixel; uint8 [height, width, 3]."""
    rows, columns = _shares(image.shape[0], height), _shares(image.shape[1], width)
    return np.rint(np.einsum("yi,ijc,xj->yxc", rows, image, columns, optimize=True)).astype(np.uint8)


def _shares(before: int, after: int) -> np.ndarray:
    """How much of each old pixel a new one covers, [after, before]; rows sum to 1."""
    edges = np.arange(after + 1) * before / after
    old = np.arange(before)
    covered = np.minimum(edges[1:, None], old + 1) - np.maximum(edges[:-1, None], old)
    return np.maximum(covered, 0) * after / before


def fit(image: np.ndarray, height: int, width: int, squares: int = 1) -> np.ndarray:
    """As large as it can be in height x width pixels; each of the `squares` along a side as large as the others."""
    scale = min(height / image.shape[0], width / image.shape[1])
    size = [max(1, int(side * scale) // squares) * squares for side in image.shape[:2]]
    return resize(image, *size)


def half_blocks(image: np.ndarray) -> Text:
    """A picture as text, two pixels in each character: the upper one in its colour, the lower one behind it."""
    text = Text(no_wrap=True, overflow="crop", end="")
    if len(image) % 2:
        image = np.concatenate([image, np.zeros_like(image[:1])])
    for y in range(0, len(image), 2):
        pairs = np.concatenate([image[y], image[y + 1]], axis=1)
        starts = np.flatnonzero(np.r_[True, (pairs[1:] != pairs[:-1]).any(1)])
        for start, end in zip(starts, [*starts[1:], len(pairs)], strict=True):
            text.append("▀" * int(end - start), _style(*pairs[start].tolist()))
        text.append("\n" if y + 2 < len(image) else "")
    return text


@lru_cache(maxsize=4096)
def _style(*rgb: int) -> Style:
    return Style(color=Color.from_rgb(*rgb[:3]), bgcolor=Color.from_rgb(*rgb[3:]))


def as_rgb(obs: np.ndarray) -> np.ndarray:
    """The newest frame of an observation [H, W, C], in colour or grey."""
    return obs[..., -3:] if obs.shape[-1] % 3 == 0 else obs[..., -1:].repeat(3, -1)


class Game:
    """One world and what has happened in it. When an episode is over it stands still until `go_on`."""

    def __init__(self, name: str, seed: int = 0, map: int | None = None, object: int | None = None) -> None:
        if seed < 0:
            raise ValueError(f"seed is {seed}: it must be at least 0")
        config = world_config(name)
        if isinstance(config, GridworldConfig):
            config = replace(config, resolution=63)  # the original pixels: they shrink better
        self.name, self.seed, self.world = name, seed, make(config, 1, final_obs=True)
        self.grid = self.world if isinstance(self.world, Gridworld) else None
        self.actions = ACTION_NAMES if self.grid else tuple(str(i) for i in range(self.world.num_actions))
        self.episodes = self.successes = self.total_steps = 0
        self.score = 0.0
        try:
            law = self.grid.law if self.grid else self.world.tasks.probability
            self.weights = restricted(self.world.tasks, law, map, object)
            self.world.set_weights(self.weights)
            self.world.reset(seed)
        except BaseException:
            self.world.close()
            raise
        self._begin()

    def _begin(self) -> None:
        self.task, self.steps, self.over, self.message = int(self.world.task[0]), 0, False, ""

    def act(self, action: int) -> None:
        self.world.prepare(1)
        self.world.step(torch.tensor([action], device=self.world.device))
        self.steps, self.total_steps = self.steps + 1, self.total_steps + 1
        self.score += float(self.world.reward[0])
        self.over = bool(self.world.terminated[0] | self.world.truncated[0])
        if self.over:
            self.episodes, self.successes = self.episodes + 1, self.successes + int(self.world.success[0])
            self.message = self._outcome()

    def _outcome(self) -> str:
        if self.world.success[0]:
            return "[bold green]Found it![/]"
        if self.world.truncated[0]:
            return "[yellow]Out of time.[/]"
        return "[red]That was another one.[/]" if self.grid else "[red]Not this time.[/]"

    def go_on(self) -> None:
        """To the next episode, which the world has begun already."""
        self._begin()

    def restart(self) -> None:
        """The same task once more; a world behind Gymnasium goes back to its first episode instead."""
        if self.grid:
            self.grid.pin(np.array([self.task]))
            self.grid.prepare(1)
            self.grid.restart(torch.ones(1, dtype=torch.bool))
            self.grid.set_weights(self.weights)
        else:
            self.world.reset(self.seed)
        self._begin()

    def view(self) -> np.ndarray:
        obs_BHWC = self.world.observe_final() if self.over else self.world.observe()
        return as_rgb(obs_BHWC[0].cpu().numpy())

    def close(self) -> None:
        self.world.close()


def press(game: Game, key: str) -> None:
    """What a key does to the game."""
    action = action_of(key, game.actions)
    if key == RESTART:
        game.restart()
    elif game.over:
        game.go_on()
    elif action is not None:
        game.act(action)


def screen(game: Game, columns: int, rows: int, show_map: bool) -> RenderableType:
    """Everything that is shown, for a terminal of this size."""
    lines = describe(game)
    pictures = [(game.name, game.view(), 7 if game.grid else 1)]
    if show_map and game.grid:
        level = game.grid.levels[int(game.world.tasks.map[game.task])]
        pictures.append(("the whole map", game.grid.whole_map(0, final=game.over), level.shape[0]))
    height, width = 2 * (rows - len(lines) - 2), columns // len(pictures) - 3
    table = Table.grid(padding=(0, 1))
    table.add_row(*(
        Panel.fit(half_blocks(fit(image, height, width, squares)), title=title, padding=0, border_style="dim")
        for title, image, squares in pictures
    ))  # fmt: skip
    return Group(*lines[:-1], table, lines[-1])


def describe(game: Game) -> list[Text]:
    """The lines above the pictures, and the one below."""
    tasks, task = game.world.tasks, game.task
    where = f"task {task}: {tasks.names[task]}, ranks {tasks.map_rank[task]} and {tasks.object_rank[task]}"
    odds = f"drawn in {100 * tasks.probability[task]:.3g} % of episodes"
    target = f"find the [bold]{target_name(game)}[/]   " if game.grid else ""
    limit = f" of {game.grid.config.max_steps}" if game.grid else ""
    keys = "arrows, digits, hjklyubn or wasd move   m map" if game.grid else f"actions {_range(len(game.actions))}"
    lines = [
        f"{where}, {odds}",
        f"{target}step {game.steps}{limit}   found {game.successes} of {game.episodes}   score {game.score:g}",
        f"{game.message}   any key goes on   r once more   q quit"
        if game.over
        else f"[dim]{keys}   r restart   q quit",
    ]
    texts = [Text.from_markup(line) for line in lines]
    for text in texts:
        text.no_wrap, text.overflow = True, "ellipsis"
    return texts


def target_name(game: Game) -> str:
    """Colour and shape of the object to find, in words."""
    if game.grid is None:
        return ""
    tasks = game.world.tasks
    thing = game.grid.levels[int(tasks.map[game.task])].objects[int(tasks.object[game.task])]
    return f"{thing.color} {thing.shape}".replace("_", " ")


def _range(num_actions: int) -> str:
    usable = NUMBERED[:num_actions]
    return " ".join(usable) if len(usable) < 5 else f"{usable[0]} to {usable[-1]}"


class Keyboard:
    """Keys as they are pressed, without echo; the terminal is put back whatever happens."""

    def __init__(self, fd: int) -> None:
        self.fd, self.rest = fd, b""

    def __enter__(self) -> "Keyboard":
        try:
            import termios
        except ImportError as error:
            raise ValueError("play needs a POSIX terminal: on Windows use WSL") from error
        self.before = termios.tcgetattr(self.fd)
        mode: list[Any] = termios.tcgetattr(self.fd)
        mode[3] &= ~(termios.ICANON | termios.ECHO)
        # Ctrl-C still interrupts, but Ctrl-Z would leave the shell with our screen.
        mode[6][termios.VMIN], mode[6][termios.VTIME], mode[6][termios.VSUSP] = 1, 0, b"\0"
        termios.tcsetattr(self.fd, termios.TCSADRAIN, mode)
        return self

    def __exit__(self, *_: object) -> None:
        import termios

        termios.tcsetattr(self.fd, termios.TCSAFLUSH, self.before)

    def read(self, seconds: float) -> list[str]:
        """Keys pressed by now, waiting for the first at most so long."""
        if not select.select([self.fd], [], [], seconds)[0]:
            self.rest = b""  # Escape alone
            return []
        data = os.read(self.fd, 1024)
        if not data:
            return [QUIT[0]]  # the terminal is gone
        keys, self.rest = decode(self.rest + data)
        return keys


def _terminated(number: int, _: FrameType | None) -> None:
    raise SystemExit(128 + number)


def play(world: str, seed: int = 0, map: int | None = None, object: int | None = None) -> None:
    """Play until q is pressed."""
    game = Game(world, seed, map, object)
    before = signal.signal(signal.SIGTERM, _terminated)  # so that the terminal is put back then as well
    try:
        if not (sys.stdin.isatty() and sys.stdout.isatty()):
            raise ValueError("play needs a terminal: standard input and output must be one, not a pipe or a file")
        console = Console(highlight=False)
        with Keyboard(sys.stdin.fileno()) as keyboard, console.screen() as display:

            def show(drawing: RenderableType) -> None:
                console.control(Control.home())  # not from where the last drawing ended: the size may have changed
                display.update(drawing)

            loop(game, keyboard, console, show)
        console.print(f"{world}: {game.successes} of {game.episodes} episodes found, {game.total_steps} steps")
    finally:
        signal.signal(signal.SIGTERM, before)
        game.close()


def loop(game: Game, keyboard: Keyboard, console: Console, show: Callable[[RenderableType], None]) -> None:
    """Draw, wait for keys, and draw again when something changed, the size of the terminal too."""
    show_map, drawn = False, None
    while True:
        now = (console.size, show_map, game.total_steps, game.task, game.steps, game.over)
        if now != drawn:
            show(screen(game, *console.size, show_map))
            drawn = now
        was_over = game.over
        for key in keyboard.read(seconds=0.25):
            if key in QUIT:
                return
            if key == MAP:
                show_map = not show_map
            elif was_over or not game.over:  # a key that was held down must not skip the end of the episode
                press(game, key)
