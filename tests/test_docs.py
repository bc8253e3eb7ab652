"""The docs say what is true: their commands parse, their links lead somewhere, their examples run."""

import re
import runpy
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from longtail import cli

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
RUN_MARK = "<!-- run by the tests -->"


def blocks(page: Path, language: str) -> Iterator[tuple[bool, str]]:
    """Fenced blocks of one language, and whether each is marked to be run."""
    for mark, text in re.findall(rf"(<!--[^>]*-->\n)?```{language}\n(.*?)```", page.read_text(), re.DOTALL):
        yield mark.strip() == RUN_MARK, text


def commands(page: Path) -> list[list[str]]:
    """Every command line of a page's bash blocks, as words."""
    text = "\n".join(text for _, text in blocks(page, "bash")).replace("\\\n", " ")
    return [words for line in text.splitlines() if (words := shlex.split(line, comments=True))]


LINES = [(page.name, words) for page in PAGES for words in commands(page)]
LINES += [("longtail --help", shlex.split(line)) for line in re.findall(r"\[cyan\](.*?)\[/\]", cli.USAGE)]


def of_program(name: str) -> list[Any]:
    return [pytest.param(words, id=f"{page}: {' '.join(words)}") for page, words in LINES if words[0] == name]


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Puts names in the list instead of doing the work of a command."""
    names: list[str] = []
    work = (
        "train.train",
        "evaluate.evaluate",
        "play.play",
        "doctor.print_worlds",
        "doctor.print_report",
        "bench.print_bench",
    )
    for target in work:
        monkeypatch.setattr(f"longtail.{target}", lambda *_, target=target, **__: names.append(target))
    return names


@pytest.mark.parametrize("words", of_program("longtail"))
def test_commands_of_the_docs_parse(words: list[str], called: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(words[1:]) == 0, capsys.readouterr().err
    assert len(called) == 1


def test_a_flag_that_does_not_exist_is_noticed(called: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["train", "gridworld", "--no-such-flag", "1"]) == 2
    assert "--no-such-flag" in capsys.readouterr().err
    assert not called


@pytest.mark.parametrize("words", of_program("make"))
def test_make_targets_of_the_docs_exist(words: list[str]) -> None:
    assert re.search(rf"^{words[1]}:", (ROOT / "Makefile").read_text(), re.MULTILINE)


def anchors(page: Path) -> set[str]:
    """What the headings of a page are called in links, by GitHub's rule."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"<!--.*?-->", "", page.read_text(), flags=re.DOTALL)
    for link in LINK.findall(text):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.replace("\\", "").partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


RUNNABLE = [page for page in PAGES if any(marked for marked, _ in blocks(page, "python"))]


def test_the_readme_has_examples_to_run() -> None:
    assert ROOT / "README.md" in RUNNABLE


@pytest.mark.parametrize("page", RUNNABLE, ids=lambda page: page.name)
def test_examples_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In order and in one folder, on tiny settings: one iteration, one episode of each task, few worlds."""
    monkeypatch.chdir(tmp_path)
    for number, text in enumerate(text for marked, text in blocks(page, "python") if marked):
        for name, value in {"steps": 1, "episodes": 1, "num_envs": 2}.items():
            text = re.sub(rf"\b{name}=[\d_]+", f"{name}={value}", text)
        file = tmp_path / f"example_{number}.py"
        file.write_text(text)
        runpy.run_path(str(file))


def test_readme_names_the_five_files_in_order() -> None:
    named = re.findall(r"^\d\. \[(longtail/.*?)\]", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert [name.removeprefix("longtail/") for name in named] == [
        "worlds/gridworld.py", "agents/agent.py", "impala/act.py", "impala/learn.py", "train.py",
    ]  # fmt: skip


def test_columns_of_eval_csv_are_documented() -> None:
    from longtail.evaluate import COLUMNS

    section = (ROOT / "docs" / "design.md").read_text().split("`eval.csv` has a row")[1].split("`summary.json`")[0]
    rows = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    assert re.findall(r"`(\w+)`", " ".join(rows)) == list(COLUMNS)


def test_keywords_of_the_gridworld_are_documented() -> None:
    from dataclasses import fields

    from longtail.worlds import GridworldConfig

    text = (ROOT / "docs" / "worlds.md").read_text()
    for field in fields(GridworldConfig):
        assert field.name == "name" or f"`{field.name}`" in text, field.name


def figures() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "docs" / "figures.py"))


def test_figures_can_be_drawn(tmp_path: Path) -> None:
    figures()["draw"](tmp_path)
    drawn = {path.name for path in tmp_path.iterdir()}
    assert drawn >= {"gridworld.png", "law.png"}
    assert drawn == {path.name for path in (ROOT / "docs" / "img").iterdir()}


def test_readme_table_matches_its_rows() -> None:
    made, text = figures(), (ROOT / "README.md").read_text()
    assert made["readme_with_table"](text) == text
    # The check can fail: another table is noticed.
    assert made["with_table"](text, "| 1.0 |\n") != text


def test_readme_table_of_given_rows() -> None:
    made = figures()
    scores = {name: {"value": 50.04, "low": 40.0, "high": 60.0} for name in made["SCORES"]}
    known = {"random walk": dict.fromkeys(made["SCORES"], 9.96)}
    hardware = {"cpus": 2, "cpu": "a processor"}
    manifest = {"wall_seconds": 90.0, "sessions": [{"hardware": hardware, "precision": "float32", "to_step": 1024}]}
    lines = made["demo_table"]("impala", scores, known, manifest).splitlines()
    assert lines[2].startswith("| impala | 50.0 (40.0 to 60.0) | ")
    assert lines[3].startswith("| random walk | 10.0 | ")
    assert len({line.count("|") for line in lines[:4]}) == 1
    assert lines[5] == "In brackets 95 % intervals. 1,024 steps, 1.5 minutes on 2 cores (a processor, float32)."


def test_configuration_files_of_tools() -> None:
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
    assert [hook["id"] for hook in hooks] == ["ruff-check", "ruff-format", "mypy", "import-linter"]
    for path in (ROOT / ".github" / "workflows").glob("*.yml"):
        for job in yaml.safe_load(path.read_text())["jobs"].values():
            for command in (step["run"] for step in job["steps"] if "run" in step):
                program, *targets = command.split()
                assert program == "make" or (ROOT / program).is_file()
                assert all(re.search(rf"^{t}:", (ROOT / "Makefile").read_text(), re.MULTILINE) for t in targets)
