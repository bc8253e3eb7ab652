"""What is shipped: versions that agree, packages that hold everything, a Makefile that explains itself."""

import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml

import longtail

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
WITH_GIT = pytest.mark.skipif(not (ROOT / ".git").exists(), reason="not a git checkout")


def run(*command: str | Path, cwd: Path = ROOT, **environment: str) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")} | environment
    return subprocess.run([*map(str, command)], cwd=cwd, env=env, capture_output=True, text=True)


def tracked() -> list[str]:
    return run("git", "ls-files", "-z").stdout.split("\0")[:-1]


def test_versions_agree() -> None:
    newest = re.search(r"^## \[(.*?)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest is not None
    assert newest.group(1) == longtail.__version__
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == longtail.__version__


def test_python_versions_agree() -> None:
    classified = [c.rsplit(" ", 1)[1] for c in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", c)]
    workflow = yaml.safe_load((ROOT / ".github/workflows/test.yml").read_text())
    assert workflow["jobs"]["test"]["strategy"]["matrix"]["python"] == classified
    assert PROJECT["requires-python"] == f">={classified[0]}"


# Absolute paths of somebody's machine, and hosts that packages come from: those are each user's own choice.
PRIVATE = re.compile(r"(?<![\w.~])/(work|root|home|Users|opt)/\w|files[.]pythonhosted|pypi[.]org|download[.]pytorch")


def test_what_private_means() -> None:
    for text in ("see /home" + "/me/x", "--index-url https://pypi" + ".org/simple", "/work" + "/main"):
        assert PRIVATE.search(text)
    for text in ("runs/demo", "https://arxiv.org/abs/2504.05840", "~/work/x", "/tmp/x", "python/work/x"):
        assert not PRIVATE.search(text)


@WITH_GIT
def test_no_file_names_a_machine() -> None:
    for name in tracked():
        path = ROOT / name
        if path.is_file() and path.suffix not in (".png", ".safetensors"):
            found = PRIVATE.search(path.read_text(errors="replace"))
            assert found is None, f"{name}: {found.group()}"


def test_ci_runs_make_test() -> None:
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    assert script.read_text().splitlines()[-1].endswith("exec make test")


def test_make_help_lists_every_target() -> None:
    phony = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert phony is not None
    listed = re.findall(r"^  make (\S+)", run("make", "help").stdout, re.MULTILINE)
    assert sorted(listed) == sorted(phony.group(1).split())


@pytest.mark.parametrize("python", ["false", "no-such-python", ""])
def test_make_without_a_python_says_so_and_makes_nothing(python: str, tmp_path: Path) -> None:
    made = run("make", "setup", f"PYTHON={python}", f"VENV={tmp_path / 'venv'}")
    assert made.returncode != 0
    assert made.stderr.startswith("longtail needs Python 3.11 or newer")
    assert not list(tmp_path.iterdir())


def fake_environment(folder: Path) -> Path:
    """A virtual environment whose Python only notes what it is asked to do."""
    python = folder / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\necho "$*" >> {folder}/log\n')
    python.chmod(0o755)
    return folder


def test_make_sets_up_once_and_again_for_another_pytorch(tmp_path: Path) -> None:
    venv = fake_environment(tmp_path / "venv")

    def installs(*arguments: str) -> list[str]:
        (venv / "log").write_text("")
        assert run("make", "setup", f"VENV={venv}", f"PYTHON={sys.executable}", *arguments).returncode == 0
        return re.findall(r"pip install --quiet (.*)", (venv / "log").read_text())

    assert installs() == ["torch==2.13.0", "--editable .[dev]"]
    assert installs() == []
    assert installs("TORCH=torch==2.12.0") == ["torch==2.12.0", "--editable .[dev]"]
    assert installs("TORCH=torch==2.12.0") == []
    os.utime(venv / ".ready", (0, 0))  # as if pyproject.toml had changed since
    assert installs("TORCH=torch==2.12.0") == ["torch==2.12.0", "--editable .[dev]"]
    (venv / ".ready").unlink()  # as after an interruption
    assert installs()


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A source distribution, and the wheel that is built from it."""
    folder = tmp_path_factory.mktemp("dist")
    result = run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT)
    assert result.returncode == 0, result.stdout + result.stderr
    return folder


def shipped() -> set[str]:
    """Every file of the package, without what Python leaves there."""
    files = (path for path in (ROOT / "longtail").rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {path.relative_to(ROOT).as_posix() for path in files}


@pytest.mark.slow
def test_wheel_holds_the_package_its_data_and_its_licences(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    assert wheel.name == f"longtail-{longtail.__version__}-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as file:
        names = set(file.namelist())
    info = f"longtail-{longtail.__version__}.dist-info/"
    assert {name for name in names if not name.startswith(info)} == shipped()
    assert {"longtail/worlds/data/gridworld_levels.json", "longtail/py.typed"} <= names
    assert {info + "licenses/LICENSE", info + "licenses/NOTICE", info + "entry_points.txt"} <= names


@WITH_GIT
@pytest.mark.slow
def test_source_distribution_is_the_repository(built: Path) -> None:
    (archive,) = built.glob("*.tar.gz")
    with tarfile.open(archive) as file:
        names = {member.name.partition("/")[2] for member in file.getmembers() if member.isfile()}
    assert names - {"PKG-INFO"} == {name for name in tracked() if (ROOT / name).is_file()}


@pytest.mark.slow
def test_installed_wheel_works_away_from_the_sources(built: Path, tmp_path: Path) -> None:
    """Into a folder of its own, so that dependencies need not be installed again."""
    (wheel,) = built.glob("*.whl")
    target = tmp_path / "site"
    installed = run(sys.executable, "-m", "pip", "install", "--no-deps", "--quiet", "--target", target, wheel)
    assert installed.returncode == 0, installed.stderr
    where = run(sys.executable, "-c", "import longtail; print(longtail.__file__)", cwd=tmp_path, PYTHONPATH=str(target))
    assert Path(where.stdout.strip()).is_relative_to(target)
    for command, expected in ((["--help"], "longtail train WORLD"), (["worlds"], "gridworld-small")):
        shown = run(sys.executable, target / "bin" / "longtail", *command, cwd=tmp_path, PYTHONPATH=str(target))
        assert shown.returncode == 0, shown.stderr
        assert expected in shown.stdout
