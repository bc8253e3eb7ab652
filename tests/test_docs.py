"""The docs say what is true: their commands parse, their links lead somewhere, their examples run."""

import re
import runpy
import shlex
import shutil
import sys
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
    sys.path.append(str(ROOT / "docs"))
    return runpy.run_path(str(ROOT / "docs" / "figures.py"))


def test_figures_can_be_drawn(tmp_path: Path) -> None:
    figures()["draw"](tmp_path)
    drawn = {path.name for path in tmp_path.iterdir()}
    assert drawn >= {"gridworld.png", "law.png"}
    assert drawn == {path.name for path in (ROOT / "docs" / "img").iterdir()}


def tables() -> dict[str, Any]:
    sys.path.append(str(ROOT / "docs"))  # where its neighbours are, as for a script
    return runpy.run_path(str(ROOT / "docs" / "tables.py"))


def test_tables_match_their_rows() -> None:
    """Every table of the docs has rows under results/, and says what they say."""
    made, found = tables(), 0
    for page in made["PAGES"]:
        text = page.read_text()
        assert made["with_tables"](text, ROOT / "results") == (text, []), f"make figures brings {page.name} up to date"
        found += len(made["MARK"].findall(text))
    assert found == len(made["TABLES"])


def test_other_rows_would_be_noticed(tmp_path: Path) -> None:
    made, page = tables(), ROOT / "docs" / "learning.md"
    shutil.copytree(ROOT / "results", tmp_path, dirs_exist_ok=True)
    rows = tmp_path / "learning" / "judge-impala-4M.csv"
    assert made["with_tables"](page.read_text(), tmp_path) == (page.read_text(), [])
    *lines, last = rows.read_text().splitlines()
    rows.write_text("\n".join([*lines, ",".join([*last.split(",")[:-1], "99.9"])]) + "\n")
    text, missing = made["with_tables"](page.read_text(), tmp_path)
    assert text != page.read_text() and not missing
    rows.unlink()
    assert made["with_tables"](page.read_text(), tmp_path)[1] == ["judge"]


def test_configuration_files_of_tools() -> None:
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
    assert [hook["id"] for hook in hooks] == ["ruff-check", "ruff-format", "mypy", "import-linter"]
    for path in (ROOT / ".github" / "workflows").glob("*.yml"):
        for job in yaml.safe_load(path.read_text())["jobs"].values():
            for command in (step["run"] for step in job["steps"] if "run" in step):
                program, *targets = command.split()
                assert program == "make" or (ROOT / program).is_file()
                assert all(re.search(rf"^{t}:", (ROOT / "Makefile").read_text(), re.MULTILINE) for t in targets)
