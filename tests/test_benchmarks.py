"""The benchmarks of peers, with peers that only pretend: they collect, name what failed, and go on."""

import io
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

# Where Python looks when one of them is run as a script.
sys.path.append(str(Path(__file__).resolve().parents[1] / "benchmarks"))

import cpu
import gpu
import measure
import table
from measure import Entry, read_json
from table import Row

PEERS = Path(cpu.__file__).parent / "peers"


def fake(name: str, code: str, read: Callable[[str], Row] = read_json, **options: object) -> Entry:
    return Entry(name, (sys.executable, "-c", code), read, **options)  # type: ignore[arg-type]


def run(entry: Entry, timeout: float = 30, env: Mapping[str, str] = cpu.CPU.env) -> Row:
    return measure.measure(entry, timeout, env)


def prints(rate: object) -> str:
    return f"print('a message'); print('{json.dumps({'steps_per_second': rate, 'config': {'worlds': 32}})}')"


OURS = fake("longtail", prints({"rollout only": 9e4, "train": 12000.0}), precision="auto")
OURS_FP32 = fake("longtail fp32", prints({"train": 6000}))
PROTOTYPE = fake("prototype", "print('cpu ok 3000.5')", cpu.read_prototype, repeats=3, goal=2.7)


def test_command_writes_rows_and_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = fake("broken", "import sys; print('one'); sys.exit('cannot read /some/where/else.json | sorry')")
    missing = Entry("missing", (str(tmp_path / "no-such-python"),), read_json, goal=3)
    chosen = [replace(entry, against=cpu.OURS) for entry in (OURS, OURS_FP32, PROTOTYPE, broken, missing)]
    monkeypatch.setattr(cpu, "entries", lambda args: chosen)
    assert cpu.main(["--rounds", "2", "--out", str(tmp_path / "bench")]) == 0
    report = json.loads((tmp_path / "bench" / "cpu.json").read_text())

    one_round = ["longtail", "longtail fp32", "prototype", "prototype", "prototype", "broken", "missing"]
    assert [(row["round"], row["name"]) for row in report["rows"]] == [(n, name) for n in (1, 2) for name in one_round]
    assert report["rows"][0]["detail"] == {"config": {"worlds": 32}, "parts": {"rollout only": 9e4, "train": 12000}}
    assert (
        report["rows"][5]["error"] == "exit status 1: cannot read else.json | sorry"
    )  # the folder is nobody's business
    assert str(tmp_path) not in json.dumps(report)
    assert report["command"] == "python benchmarks/cpu.py --rounds 2 --seconds 20"
    assert len(report["skipped"]) == 3 and report["hardware"]["cores"] >= 1 and report["versions"]["torch"]

    lines = {line["name"]: line for line in report["summary"]}
    assert (lines["prototype"]["median"], lines["prototype"]["runs"]) == (3000.5, 6)
    assert lines["prototype"]["ratio"] == pytest.approx({"longtail": 12000 / 3000.5, "longtail fp32": 6000 / 3000.5})
    assert lines["missing"]["median"] is None and lines["missing"]["ratio"]["longtail"] is None
    assert len(lines["missing"]["failed"]) == 2 and "FileNotFoundError" in lines["missing"]["failed"][0]

    written = (tmp_path / "bench" / "cpu.md").read_text().splitlines()
    assert written[0].endswith("| longtail / this | longtail fp32 / this | goal | CPU others had |")
    assert {line.count("|") for line in written if line.startswith("|")} == {len(cpu.CPU.columns) + 1}
    assert any(line.startswith("| prototype | fp32 | 3,000 | 3,000 to 3,000 | 4.00 | 2.00 | 2.7 |") for line in written)
    assert any(line.startswith("| broken | fp32 | failed: exit status 1") for line in written)


def test_summary_is_the_median_of_what_worked() -> None:
    rows: list[Row] = [
        {"name": "longtail", "steps_per_second": rate, "precision": "bf16"} for rate in (1.0, 100.0, 8.0)
    ]
    rows.append({"name": "longtail", "error": "not done"})
    (line,) = measure.summarise([OURS], rows)
    assert (line["low"], line["median"], line["high"], line["runs"], line["precision"]) == (1, 8, 100, 3, "bf16")
    assert line["failed"] == ["not done"]


@pytest.mark.parametrize(
    ("code", "read", "error"),
    [
        ("pass", read_json, "its last line is no JSON object with steps_per_second"),
        ("print('{}')", read_json, "its last line is no JSON object with steps_per_second"),
        ("print('no JSON')", read_json, "Expecting value"),
        (prints({"rollout only": 1}), read_json, "'train'"),
        ("print('cuda ok 3000')", cpu.read_prototype, "it printed no line 'cpu ok RATE'"),
        ("raise RuntimeError('out of memory')", read_json, "exit status 1: RuntimeError: out of memory"),
        ("import os; os.abort()", read_json, "exit status -6: nothing printed"),
    ],
)
def test_failures_become_rows(code: str, read: Callable[[str], Row], error: str) -> None:
    row = run(fake("peer", code, read))
    assert error in row["error"] and "steps_per_second" not in row


def test_hanging_peer_is_ended_with_its_children(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    child = "import os, time; open(os.environ['NOTE'], 'w').write(str(os.getpid())); time.sleep(60)"
    code = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {child!r}]).wait()"
    began = time.perf_counter()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NOTE", str(note))
        row = run(fake("peer", code), timeout=2)
    assert row["error"] == "not done after 2 s" and time.perf_counter() - began < 30
    assert not alive(int(note.read_text()))


def alive(pid: int) -> bool:
    """Does it still run? A process that has ended may stay for a moment as a zombie."""
    for _ in range(50):
        try:
            os.kill(pid, 0)
            if Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z":
                return False
        except (ProcessLookupError, FileNotFoundError):
            return False
        time.sleep(0.1)
    return True


def test_processes_see_all_cores_and_a_gpu_only_where_it_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    code = "import json, os; e = os.environ; print(json.dumps({'steps_per_second': 1, 'threads': e.get("
    code += "'OMP_NUM_THREADS'), 'gpus': e['CUDA_VISIBLE_DEVICES']}))"
    assert run(fake("peer", code))["detail"] == {"threads": None, "gpus": ""}
    assert run(fake("peer", code), env=gpu.GPU.env)["detail"] == {"threads": None, "gpus": "0"}


def test_only_the_peers_given_are_measured(tmp_path: Path) -> None:
    (tmp_path / "iteration.py").touch()
    given = ["--prototype", str(tmp_path), "--sample-factory", "sf-python", "--torchbeast", "beast", "--seconds", "8"]
    alone, everything = (cpu.entries(cpu.parse(argv)) for argv in ([], given))
    assert [entry.name for entry in alone] == list(cpu.OURS)
    assert [entry.name for entry in everything[2:]] == [
        "prototype",
        "Sample Factory",
        "MonoBeast",
        "MonoBeast, our network",
    ]
    assert everything[2].cwd == tmp_path and everything[2].command[-1] == str((tmp_path / ".." / "data").resolve())
    assert everything[3].command[0] == "sf-python" and everything[4].command[0] == sys.executable
    for entry in everything[3:]:
        assert Path(entry.command[1]).is_file()
    assert all(entry.against == cpu.OURS for entry in everything)
    assert measure.command_line(cpu.CPU, cpu.parse(given)) == (
        "python benchmarks/cpu.py --rounds 3 --seconds 8 --prototype DIR --sample-factory PYTHON --torchbeast CHECKOUT"
    )


@pytest.mark.skipif(measure.cpu_seconds() is None, reason="needs /proc/stat")
def test_what_others_use_meanwhile_is_noted() -> None:
    code = "import time; end = time.time() + 1\nwhile time.time() < end: pass\n" + prints(1)
    alone = run(fake("peer", code))["others"]
    burner = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        beside = run(fake("peer", code))["others"]
    finally:
        burner.kill()
        burner.wait()
    own, cores = 1.0, os.cpu_count() or 1
    assert 0 <= alone <= 1 and beside > 0.2 * own / cores  # `alone` is not 0 on a machine that others use


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--rounds", "0"], "rounds is 0: it must be above 0"),
        (["--seconds", "-1"], "seconds is -1.0: it must be above 0"),
        (["--prototype", "no-such-folder"], "prototype is 'no-such-folder': it must be a folder with iteration.py"),
    ],
)
def test_bad_arguments(argv: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        cpu.parse(argv)
    assert stopped.value.code == 2 and message in capsys.readouterr().err


def prints_gpu(rate: int, memory: float) -> str:
    """As `longtail.bench` does on a GPU."""
    row = {"steps_per_second": {"train": rate}, "precision": "bfloat16", "gpu_memory_gib": memory}
    return f"print('{json.dumps(row)}')"


def prints_prototype(rate: str) -> str:
    """As the prototype does after more than 5 million steps: then it is evaluated."""
    lines = ["capture 2.1s, mem 1.3 GiB", "it 9/9 t 13s agg 1 steps/s | impala/0: 0.200"]
    lines += [f"TOTAL {rate} steps/s aggregate over 1 runs, 13.6 s", "EVAL impala/0 {'rare': 1.0}", "[[1, 2]]"]
    return f"print({chr(10).join(lines)!r})"


def test_gpu_command_compares_pairs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = []
    for worlds, rate, memory, peer in ((32, 300_000, 0.31, "100,000"), (128, 900_000, 1.52, "450,000")):
        us = fake(f"longtail, {worlds} worlds", prints_gpu(rate, memory), precision="auto")
        chosen += [us, fake(f"prototype, {worlds} worlds", prints_prototype(peer), gpu.read_prototype, goal=1.5)]
        chosen[-1] = replace(chosen[-1], against=(us.name,))
    monkeypatch.setattr(gpu, "entries", lambda args: chosen)
    monkeypatch.setattr(gpu.torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(gpu.torch.cuda, "get_device_name", lambda: "Pretended GPU")
    assert gpu.main(["--out", str(tmp_path)]) == 0
    report = json.loads((tmp_path / "gpu.json").read_text())

    assert [row["name"] for row in report["rows"]] == [entry.name for entry in chosen] * 2
    assert report["rows"][1]["detail"] == {"gpu_memory_gib": 1.3}
    assert report["hardware"]["gpu"] == "Pretended GPU" and {"driver", "cuda", "cores"} <= report["hardware"].keys()
    assert report["command"] == "python benchmarks/gpu.py --rounds 2 --seconds 10"
    assert report["skipped"] == ["prototype"]
    ratios = {line["name"]: line["ratio"] for line in report["summary"]}
    assert ratios["prototype, 32 worlds"] == {"longtail, 32 worlds": 3}
    assert ratios["prototype, 128 worlds"] == {"longtail, 128 worlds": 2}
    assert ratios["longtail, 32 worlds"] == {}

    written = (tmp_path / "gpu.md").read_text()
    assert "| longtail / this | goal | GPU memory in GiB (ours: under 4) | CPU others had |\n" in written
    assert "| longtail, 128 worlds | bf16 | 900,000 | 900,000 to 900,000 |  |  | 1.52 |" in written
    assert "| prototype, 128 worlds | fp32 | 450,000 | 450,000 to 450,000 | 2.00 | 1.5 | 1.3 |" in written
    assert "gpu Pretended GPU" in written


@pytest.mark.parametrize("missing", ["TOTAL", "capture"])
def test_gpu_prototype_that_prints_something_else_is_an_error(missing: str) -> None:
    output = run(fake("peer", prints_prototype("110,382"), lambda output: {"output": output}))["output"]
    assert gpu.read_prototype(output) == {"steps_per_second": 110382, "detail": {"gpu_memory_gib": 1.3}}
    with pytest.raises(ValueError, match=f"it printed no line '{missing} "):
        gpu.read_prototype(output.replace(missing, "cpu"))


def test_gpu_pairs(tmp_path: Path) -> None:
    (tmp_path / "iteration.py").touch()
    alone, everything = (gpu.entries(gpu.parse(argv)) for argv in ([], ["--prototype", str(tmp_path)]))
    us = ["longtail, 32 worlds", "longtail, 128 worlds"]
    assert [entry.name for entry in alone] == us
    assert [entry.name for entry in everything] == [us[0], "prototype, 32 worlds", us[1], "prototype, 128 worlds"]
    assert [entry.against for entry in everything] == [(), (us[0],), (), (us[1],)]
    assert "'worlds': 128" in alone[1].command[-1] and "'device': 'cuda'" in alone[1].command[-1]
    assert "'seconds': 2.5" in alone[1].command[-1]  # for each of four parts
    assert everything[3].cwd == tmp_path and everything[3].goal == 1.5
    data = str((tmp_path / ".." / "data").resolve())
    words = f"iteration.py --method impala --data {data} --B 128 --steps 6e6 --every 1"
    assert everything[3].command == (sys.executable, *words.split(" "))


def test_without_a_gpu_nothing_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gpu.torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(gpu, "run", lambda *_: pytest.fail("something was run"))
    assert gpu.main(["--out", str(tmp_path / "bench")]) == 2
    printed = capsys.readouterr()
    assert printed.err.count("\n") == 1 and "PyTorch sees no CUDA GPU here" in printed.err
    assert not printed.out and not (tmp_path / "bench").exists()


@pytest.mark.parametrize(
    ("benchmark", "longest", "rate"),
    [(cpu.CPU, "MonoBeast, our network", 99_999), (gpu.GPU, "prototype, 128 worlds", 1_999_999)],
    ids=["cpu", "gpu"],
)
def test_a_line_of_the_table_is_one_line_of_a_terminal(benchmark: measure.Benchmark, longest: str, rate: int) -> None:
    line: Row = {"name": longest, "precision": "bf16 encoder", "median": rate, "low": rate, "high": rate}
    line |= {
        "goal": 2.7,
        "others": 0.01,
        "ratio": {"longtail": 123.45, "longtail fp32": 12.34},
        "gpu_memory_gib": 0.412,
    }
    failed: Row = {"name": "broken", "precision": "fp32", "median": None, "failed": ["exit status 1: " + "so " * 50]}
    out = io.StringIO()
    table.show({"summary": [line, failed, line]}, benchmark.columns, Console(file=out, width=100))
    _title, _rule, first, second, message, *_ = out.getvalue().splitlines()
    assert first == second and first.startswith(f"{longest}  bf16 encoder  ")
    assert f"  {rate:,.0f}  {rate:,.0f} to {rate:,.0f}  " in first and "123.45" in first and first.endswith(" 1%")
    assert message.startswith("broken failed: exit status 1: so so")


def test_monobeast_wants_a_checkout(tmp_path: Path) -> None:
    command = [sys.executable, str(PEERS / "monobeast.py"), "--checkout", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1 and "it must be a checkout of TorchBeast" in done.stderr


@pytest.mark.slow
def test_our_own_rate_is_measured() -> None:
    row = run(measure.ours("longtail fp32", 32, "cpu", "fp32", seconds=0.8), timeout=300)
    assert row["steps_per_second"] > 0 and row["precision"] == "fp32" and row["detail"]["worlds"] == 32
