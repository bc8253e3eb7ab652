"""Steps per second: every part is measured, and the JSON is what the help text says."""

import json
import re
from typing import Any

import pytest
import torch

from longtail import bench as bench_module
from longtail.bench import bench, measure, print_bench
from longtail.cli import main

PARTS = ("worlds only", "rollout only", "learn only", "train")
QUICK: dict[str, Any] = {"worlds": 2, "unroll": 2, "seconds": 0.05}


def documented(capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit):
        main(["bench", "--help"])
    shown = " ".join(capsys.readouterr().out.replace("│", " ").split())
    return shown[shown.index("--json") :]


def test_keys_and_rates(capsys: pytest.CaptureFixture[str]) -> None:
    result = bench(**QUICK, device="cpu", precision="fp32")
    assert tuple(result["steps_per_second"]) == PARTS
    assert all(rate > 0 for rate in result["steps_per_second"].values())
    expected = {"world": "gridworld", "worlds": 2, "unroll": 2, "precision": "float32", "gpu_memory_gib": None}
    assert expected.items() <= result.items()
    said = documented(capsys)
    for name in (*result, *PARTS):
        assert re.search(rf"\b{name}\b", said), name


def test_json_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    print_bench(2, 2, "cpu", "fp32", "shallow", 0.05, "boosted", as_json=True)
    said = capsys.readouterr()
    assert said.out.count("\n") == 1 and not said.err
    assert json.loads(said.out)["steps_per_second"].keys() == set(PARTS)


def test_a_table_for_people(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    result = {"steps_per_second": {"train": 12345.6}, "world": "gridworld", "gpu_memory_gib": None}
    monkeypatch.setattr(bench_module, "bench", lambda *_, **__: result)
    assert main(["bench"]) == 0
    shown = capsys.readouterr().out
    assert "12,346" in shown and "world gridworld" in shown and "gpu_memory_gib" not in shown


def test_seconds_are_of_one_call() -> None:
    calls = []
    assert measure(lambda: calls.append(sum(range(20_000))), 0.05, torch.device("cpu")) < 0.05
    assert len(calls) >= 10


@pytest.mark.parametrize(
    ("field", "value"), [("seconds", 0.0), ("seconds", float("nan")), ("seconds", float("inf")), ("worlds", -1)]
)
def test_bad_values_are_refused_before_anything_is_built(
    field: str, value: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench_module, "Trainer", None)
    with pytest.raises(ValueError, match=f"^{field} is {value}: it must be"):
        bench(**QUICK | {field: value})


def test_other_errors_are_not_taken_for_too_little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: Any) -> None:
        raise RuntimeError("no kernel")

    monkeypatch.setattr(bench_module, "Trainer", broken)
    with pytest.raises(RuntimeError, match="no kernel"):
        bench(**QUICK)
