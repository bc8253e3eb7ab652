"""What doctor and worlds say: on this machine, and where something is missing."""

import importlib
from typing import Any

import pytest
import torch

from longtail import config, doctor
from longtail.cli import main
from longtail.doctor import BAD, GOOD, NOTE, OPTIONAL, print_worlds, report
from longtail.worlds import WORLDS


def remarks(mark: str) -> dict[str, str]:
    return {what: remark for what, is_, remark in report() if is_ == mark}


def test_this_machine_can_train() -> None:
    assert not remarks(BAD)
    good = remarks(GOOD)
    assert {"longtail", "python", "torch", "cpu", "training"} <= good.keys()
    assert good["torch"] == torch.__version__ and good["training"].startswith("two small iterations")


def without(monkeypatch: pytest.MonkeyPatch, name: str, error: Exception) -> None:
    real = importlib.import_module

    def load(asked: str, *args: Any) -> Any:
        if asked == name:
            raise error
        return real(asked, *args)

    monkeypatch.setattr(importlib, "import_module", load)


@pytest.mark.parametrize(
    ("name", "error", "to_do"),
    [
        ("torch", ModuleNotFoundError("x", name="torch"), "missing: install it from pytorch.org"),
        ("numba", ModuleNotFoundError("x", name="numba"), "missing: pip install numba"),
        ("numba", ModuleNotFoundError("x", name="llvmlite"), "cannot be imported without llvmlite: pip install"),
        ("scipy", ImportError("libfoo.so:\n gone"), "libfoo.so: gone; try pip install --force-reinstall scipy"),
    ],
)
def test_what_is_missing(name: str, error: Exception, to_do: str, monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch, name, error)
    bad = remarks(BAD)
    assert bad.keys() == {name, "training"}
    assert to_do in bad[name] and bad["training"] == "not tried: first see to the lines marked no"


@pytest.mark.parametrize("error", [ModuleNotFoundError("x", name="stable_baselines3"), ImportError("broken")])
def test_what_is_optional_does_not_count(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch, "stable_baselines3", error)
    assert "pip install" in remarks(NOTE)["stable_baselines3"] and not remarks(BAD)
    assert all("nothing to do" in remark or "pip install" in remark for remark in OPTIONAL.values())


@pytest.mark.skipif(torch.cuda.is_available(), reason="the GPU has its own precision")
def test_without_bf16(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "cpu_has_bf16", lambda: False)
    said = remarks(NOTE)["bf16"]
    assert "nothing to do, fp32 is used" in said and "AVX512-BF16 or AMX, or a GPU, would be faster" in said


def test_training_that_fails_says_where_to_look(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: Any) -> None:
        raise RuntimeError("no kernel\nfor this")

    monkeypatch.setattr("longtail.train.Trainer.iterate", broken)
    said = remarks(BAD)
    assert said.keys() == {"training"}
    assert "RuntimeError: no kernel for this; longtail train gridworld-small --steps 1" in said["training"]


def test_every_line_is_printed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(doctor, "report", lambda: [("some_package", BAD, "missing: pip install 'a[b]'")])
    assert main(["doctor"]) == 0
    assert capsys.readouterr().out.split() == ["some-package", "no", "missing:", "pip", "install", "'a[b]'"]


def test_every_world_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    print_worlds()
    rows = {line.split()[0]: line for line in capsys.readouterr().out.splitlines() if line.strip()}
    assert rows.keys() >= WORLDS.keys()
    assert rows["gridworld"].split()[1:4] == ["100", "8", "84x84x3"] and rows["gridworld-20"].split()[1] == "400"
    assert "methods: impala" in rows["methods:"]
