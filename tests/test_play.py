"""Play in the terminal: keys and pictures as pure functions, a game against the environment, and a real terminal."""

import os
import pty
import select
import subprocess
import sys
import termios
from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from rich.text import Text

from longtail.cli import main
from longtail.play import (
    COMPASS,
    MAP,
    QUIT,
    RESTART,
    Game,
    Keyboard,
    action_of,
    as_rgb,
    decode,
    fit,
    half_blocks,
    loop,
    press,
    resize,
    screen,
)
from longtail.worlds.gridworld import ACTION_NAMES, MOVES

NUMBERS = tuple("0123456789")


# Keys.

SENT = {
    b"k": "k", b"K": "k", b"7": "7", b"\x03": "\x03", b"\x1b[A": "up", b"\x1b[B": "down", b"\x1b[C": "right",
    b"\x1b[D": "left", b"\x1bOA": "up", b"\x1b[1;5D": "left", b"\x1b[H": "home", b"\x1bOF": "end", b"\x1b[1~": "home",
    b"\x1b[4~": "end", b"\x1b[5~": "page up", b"\x1b[6;2~": "page down", b"\x1bOx": "8", b"\x1bOp": "0",
    b"\x1b[15~": "", b"\x1b[Z": "", b"\n": "\n",
}  # fmt: skip


@pytest.mark.parametrize("data", SENT)
def test_a_key(data: bytes) -> None:
    assert decode(data) == ([SENT[data]], b"")


@given(st.lists(st.sampled_from(sorted(SENT))), st.lists(st.integers(0, 40)))
def test_keys_do_not_depend_on_how_they_arrive(sent: list[bytes], cuts: list[int]) -> None:
    data, keys, rest = b"".join(sent), [], b""
    edges = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    for start, end in zip(edges, edges[1:], strict=False):
        more, rest = decode(rest + data[start:end])
        keys += more
    assert keys == [SENT[key] for key in sent] and rest == b""


@given(st.binary())
def test_anything_may_arrive(data: bytes) -> None:
    keys, rest = decode(data)
    assert len(keys) <= len(data) and data.endswith(rest) and rest[:1] in (b"", b"\x1b")


def test_an_escape_that_begins_nothing_is_skipped() -> None:
    assert decode(b"\x1b\x1b[Aj\x1bk\x1b") == (["up", "j", "k"], b"\x1b")


# Where the keys are, as (down, right) from the middle of their block.
BLOCKS = ("yku h.l bjn", "789 4.6 123", ".w. a.d .s.", "..e ... z.c")


@pytest.mark.parametrize("block", BLOCKS)
def test_keys_lie_where_they_lead(block: str) -> None:
    for y, row in enumerate(block.split()):
        for x, key in enumerate(row):
            if key != ".":
                assert MOVES[action_of(key, ACTION_NAMES)] == (y - 1, x - 1)


def test_arrows_and_other_keys() -> None:
    named = {"up": "N", "down": "S", "left": "W", "right": "E", "home": "NW", "end": "SW", "page up": "NE"}
    for key, name in named.items():
        assert ACTION_NAMES[action_of(key, ACTION_NAMES)] == name
    for key in (*QUIT, RESTART, MAP, "", "5", "x", "\n"):
        assert action_of(key, ACTION_NAMES) is None
    keys = [key for block in COMPASS.values() for key in block]
    assert len(keys) == len(set(keys))


def test_numbered_actions() -> None:
    assert [action_of(key, NUMBERS) for key in "09a"] == [0, 9, None]
    many = tuple(map(str, range(33)))
    assert [action_of(key, many) for key in "9alz"] == [9, 10, 21, 32]
    for key in (*QUIT, RESTART, MAP, "", "up", "01"):
        assert action_of(key, many) is None


# Pictures.


def naive_resize(image: np.ndarray, height: int, width: int) -> np.ndarray:
    """Every pixel split into height x width parts, which are then averaged."""
    parts = image.repeat(height, 0).repeat(width, 1).astype(float)
    return parts.reshape(height, image.shape[0], width, image.shape[1], 3).mean((1, 3))


def some_image(height: int, width: int) -> np.ndarray:
    return np.random.default_rng(height * 100 + width).integers(256, size=(height, width, 3), dtype=np.uint8)


@pytest.mark.parametrize("size", [(7, 5), (3, 5), (1, 1), (14, 10), (10, 9), (8, 2)])
def test_resize_averages_areas(size: tuple[int, int]) -> None:
    image = some_image(7, 5)
    resized = resize(image, *size)
    assert resized.shape == (*size, 3) and resized.dtype == np.uint8
    assert np.abs(resized - naive_resize(image, *size)).max() <= 0.5 + 1e-9


def test_fit_fills_the_space_with_whole_squares() -> None:
    assert fit(some_image(63, 63), 40, 100, squares=7).shape == (35, 35, 3)
    assert fit(some_image(63, 63), 400, 130, squares=7).shape == (126, 126, 3)
    assert fit(some_image(210, 160), 105, 100).shape == (105, 80, 3)
    assert fit(some_image(63, 63), -4, 0, squares=7).shape == (7, 7, 3)
    image = some_image(9, 9)
    assert (fit(image, 27, 30, squares=3) == image.repeat(3, 0).repeat(3, 1)).all()


def pixels(text: Text) -> np.ndarray:
    """The picture that a terminal would show."""
    console, rows = Console(), [[], []]
    at, image = 0, []
    for line in text.plain.split("\n"):
        rows = [[], []]
        for character in line:
            style = text.get_style_at_offset(console, at)
            assert character == "▀"
            rows[0].append(tuple(style.color.triplet))
            rows[1].append(tuple(style.bgcolor.triplet))
            at += 1
        at += 1
        image += rows
    return np.array(image)


@pytest.mark.parametrize("flat", [False, True])
def test_half_blocks_show_every_pixel(flat: bool) -> None:
    image = some_image(6, 5)
    if flat:  # equal neighbours share a run
        image[:, 1:4] = image[:2, :1].repeat(3, 0)
    text = half_blocks(image)
    assert (pixels(text) == image).all()
    assert len(text.spans) == (9 if flat else 15)


def test_half_blocks_of_an_odd_height_end_in_black() -> None:
    image = some_image(3, 2)
    shown = pixels(half_blocks(image))
    assert (shown[:3] == image).all() and not shown[3].any()


@pytest.mark.parametrize(("channels", "newest"), [(1, [0, 0, 0]), (3, [0, 1, 2]), (4, [3, 3, 3]), (12, [9, 10, 11])])
def test_the_newest_frame_is_shown(channels: int, newest: list[int]) -> None:
    obs = some_image(4, 4)[..., :1] + np.arange(channels, dtype=np.uint8)
    assert (as_rgb(obs) == obs[..., newest]).all()


# A game.


@pytest.fixture
def game() -> Iterator[Game]:
    made = Game("gridworld-small", seed=3)
    yield made
    made.close()


def test_plays_what_the_environment_plays(game: Game) -> None:
    config = game.world.config
    keywords = {name: getattr(config, name) for name in ("levels", "level_seed", "maps", "objects", "rooms")}
    env: Any = gym.make("longtail/Gridworld-v0", resolution=63, **keywords).unwrapped
    obs, info = env.reset(seed=3)
    successes = episodes = steps = 0
    for action in np.random.default_rng(0).integers(8, size=300):
        assert (game.view() == obs).all() and game.task == info["task"]
        press(game, COMPASS[ACTION_NAMES[action]][0])
        obs, _, terminated, truncated, info = env.step(action)
        steps += 1
        assert game.over == (terminated or truncated)
        if game.over:
            assert (game.view() == obs).all() and game.task == info["task"]
            successes, episodes = successes + info["success"], episodes + 1
            assert ("Found" in game.message) == info["success"] and ("time" in game.message) == truncated
            press(game, "5")  # any key
            obs, info = env.reset()
            assert not game.over and game.steps == 0
    assert (game.successes, game.episodes, game.total_steps, game.score) == (successes, episodes, steps, successes)
    assert successes > 0 and episodes - successes > 0


def play_to_the_end(game: Game) -> None:
    for action in np.random.default_rng(1).integers(8, size=500):
        if game.over:
            return
        game.act(int(action))
    raise AssertionError("unreachable")


def test_restart_plays_the_same_task_again(game: Game) -> None:
    for _ in range(12):
        task, view = game.task, game.view()
        press(game, "j")
        press(game, RESTART)
        assert game.task == task and game.steps == 0 and (game.view() == view).all()
        play_to_the_end(game)
        press(game, RESTART)
        assert game.task == task and not game.over and (game.view() == view).all()
        play_to_the_end(game)
        press(game, "j")
    assert game.episodes == 24


def test_after_a_restart_the_law_goes_on(game: Game) -> None:
    seen = set()
    for _ in range(40):
        press(game, RESTART)
        play_to_the_end(game)
        press(game, "j")
        seen.add(game.task)
    assert len(seen) > 3


def test_a_map_or_an_object_alone() -> None:
    game = Game("gridworld-small", map=2)
    tasks = []
    for _ in range(20):
        tasks.append(game.task)
        play_to_the_end(game)
        press(game, RESTART)
        play_to_the_end(game)
        press(game, "j")
    assert {task // 4 for task in tasks} == {2} and len(set(tasks)) > 1
    assert Game("gridworld-small", map=1, object=3).task == 7


def test_any_environment_by_numbers() -> None:
    game = Game("gym:toy_envs:toy/Tasks-v0", seed=1)
    assert game.actions == ("0", "1", "2")
    for _ in range(4):
        press(game, "up")
        press(game, "7")
        assert game.steps == 0
        press(game, str(game.task))
        assert game.over and game.message == "[bold green]Found it![/]"
        press(game, " ")
    assert game.score == 4 and game.view().shape == (24, 24, 3)
    press(game, RESTART)
    text = shown(game, 80, 24, show_map=True)
    assert "actions 0 1 2" in text and "gym:toy_envs:toy/Tasks-v0" in text and "whole map" not in text
    game.close()


def shown(game: Game, columns: int, rows: int, show_map: bool) -> str:
    console = Console(width=columns, height=rows, color_system=None)
    with console.capture() as capture:
        console.print(screen(game, columns, rows, show_map), end="")
    return capture.get()


@pytest.mark.parametrize("size", [(80, 24), (200, 60), (40, 40), (132, 20), (80, 12)])
@pytest.mark.parametrize("show_map", [False, True])
@pytest.mark.parametrize("name", ["gridworld", "gridworld-small"])
def test_screen_fits_the_terminal(name: str, size: tuple[int, int], show_map: bool) -> None:
    game = Game(name, seed=3)
    lines = shown(game, *size, show_map).splitlines()
    assert max(map(len, lines)) <= size[0]
    if size[1] >= 20:
        assert len(lines) <= size[1]
    if size[0] >= 80 and size[1] >= 20:
        assert "…" not in "".join(lines)
        assert ("the whole map" in "".join(lines)) == show_map
    game.close()


def test_screen_tells_what_there_is_to_know(game: Game) -> None:
    text = shown(game, 100, 40, show_map=True)
    thing = game.grid.levels[int(game.grid.tasks.map[game.task])].objects[int(game.grid.tasks.object[game.task])]
    facts = ("gridworld-small", f"task {game.task}: map ", "ranks ", " % of episodes", "step 0 of 100", "found 0 of 0")
    for fact in (*facts, "score 0", f"find the {thing.color} {thing.shape}".replace("_", " "), "r restart", "q quit"):
        assert fact in text
    play_to_the_end(game)
    assert "any key goes on" in shown(game, 100, 40, show_map=False)


class Typed:
    """A keyboard with its keys pressed in advance."""

    def __init__(self, *batches: str) -> None:
        self.batches = [*batches, "q"]

    def read(self, seconds: float) -> list[str]:
        return list(self.batches.pop(0))


def test_loop_draws_when_something_has_changed(game: Game) -> None:
    frames: list[Any] = []
    loop(game, Typed("", "m", "", "5", "m", "jl"), Console(width=80, height=24), frames.append)
    assert len(frames) == 4 and game.total_steps == 2


def test_keys_held_down_do_not_skip_the_end(game: Game) -> None:
    for action in "jjjjllllhhhhkkkk" * 40:
        loop(game, Typed(action * 3), Console(width=80, height=24), lambda _: None)
        if game.over:
            break
    assert game.over
    loop(game, Typed("jq"), Console(width=80, height=24), lambda _: None)
    assert not game.over


ERRORS = [
    (["gridwrld"], "did you mean gridworld"),
    (["gridworld-small", "--map", "4"], "map is 4: it must be a whole number of 0..3"),
    (["gridworld-small", "--object", "-1"], "object is -1: it must be a whole number of 0..3"),
    (["gridworld-small", "--seed", "-1"], "seed is -1: it must be at least 0"),
    (["gridworld-small"], "play needs a terminal"),
    (["gym:toy/Nothing-v0"], "gym:<id>"),
]


@pytest.mark.parametrize(("arguments", "message"), ERRORS)
def test_bad_input_is_one_line(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["play", *arguments]) == 2
    said = capsys.readouterr()
    assert message in said.err and said.err.count("\n") == 1 and said.out == ""


# A terminal.


def test_keyboard_puts_the_terminal_back() -> None:
    master, slave = pty.openpty()
    before = termios.tcgetattr(slave)
    with pytest.raises(KeyError), Keyboard(slave) as keyboard:  # noqa: PT012
        during = termios.tcgetattr(slave)
        assert not during[3] & (termios.ICANON | termios.ECHO) and during[3] & termios.ISIG
        os.write(master, b"j\x1b[")
        assert keyboard.read(5) == ["j"]
        os.write(master, b"Ak")
        assert keyboard.read(5) == ["up", "k"]
        os.write(master, b"\x1b")
        assert keyboard.read(5) == [] and keyboard.read(0.01) == []
        os.write(master, b"[A")  # too late: the Escape was a key of its own
        assert keyboard.read(5) == ["[", "a"]
        assert not select.select([master], [], [], 0)[0]  # nothing was echoed
        raise KeyError
    assert termios.tcgetattr(slave) == before
    os.close(master)
    os.close(slave)


@pytest.mark.parametrize(("end", "code"), [("q", 0), ("\x03", 130), ("", 143)], ids=["q", "ctrl-c", "terminated"])
def test_a_real_terminal(end: str, code: int) -> None:
    master, slave = pty.openpty()
    termios.tcsetwinsize(slave, (24, 80))
    before = termios.tcgetattr(slave)

    def in_front() -> None:
        os.setsid()
        os.close(os.open(os.ttyname(0), os.O_RDWR))  # makes it the terminal that Ctrl-C comes from

    process = subprocess.Popen(
        [sys.executable, "-m", "longtail.cli", "play", "gridworld-small"], stdin=slave, stdout=slave, stderr=slave,
        env=os.environ | {"TERM": "xterm", "COLORTERM": "truecolor"}, preexec_fn=in_front,
    )  # fmt: skip
    said = read_until(process, master, "q quit")
    assert "▀" in said and "\x1b[?1049h" in said and "38;2;40;40;40" in said
    os.write(master, b"m")
    read_until(process, master, "the whole map")
    if end:
        os.write(master, end.encode())
    else:
        process.terminate()
    said = read_until(process, master, "\x1b[?1049l")
    assert process.wait(20) == code
    assert termios.tcgetattr(slave) == before
    said += os.read(master, 2**16).decode() if select.select([master], [], [], 0)[0] else ""
    assert "\x1b[?25h" in said
    assert ("gridworld-small: 0 of 0 episodes found" in said) == (end == "q")
    os.close(master)
    os.close(slave)


def read_until(process: subprocess.Popen[bytes], master: int, end: str) -> str:
    said = b""
    for _ in range(300):
        if select.select([master], [], [], 0.2)[0]:
            said += os.read(master, 2**16)
        elif process.poll() is not None:
            break
        if end in said.decode(errors="ignore"):
            return said.decode(errors="ignore")
    process.kill()
    raise AssertionError(f"{end!r} did not come: {said[-2000:]!r}")
