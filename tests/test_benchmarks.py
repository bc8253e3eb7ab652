"""The benchmark of peers on the CPU, with peers that only pretend: it collects, names what failed, and goes on."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks import cpu
from benchmarks.cpu import Entry

PEERS = Path(cpu.__file__).parent / "peers"


def fake(name: str, code: str, read: str = "read_json", **options: object) -> Entry:
    return Entry(name, (sys.executable, "-c", code), getattr(cpu, read), **options)  # type: ignore[arg-type]


def prints(rate: object) -> str:
    return f"print('a message'); print('{json.dumps({'steps_per_second': rate, 'config': {'worlds': 32}})}')"


OURS = fake("longtail", prints({"rollout only": 9e4, "train": 12000.0}), precision="auto")
OURS_FP32 = fake("longtail fp32", prints({"train": 6000}))
PROTOTYPE = fake("prototype", "print('cpu ok 3000.5')", "read_prototype", repeats=3, goal=2.7)


def test_command_writes_rows_and_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = fake("broken", "import sys; print('one'); sys.exit('cannot read /some/where/else.json | sorry')")
    missing = Entry("missing", (str(tmp_path / "no-such-python"),), cpu.read_json, goal=3)
    chosen = [OURS, OURS_FP32, PROTOTYPE, broken, missing]
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

    table = (tmp_path / "bench" / "cpu.md").read_text().splitlines()
    assert {line.count("|") for line in table if line.startswith("|")} == {len(cpu.COLUMNS) + 1}
    assert any(line.startswith("| prototype | fp32 | 3,000 | 3,000 to 3,000 | 4.00 | 2.00 | 2.7 |") for line in table)
    assert any(line.startswith("| broken | fp32 | failed: exit status 1") for line in table)


def test_summary_is_the_median_of_what_worked() -> None:
    rows: list[cpu.Row] = [
        {"name": "longtail", "steps_per_second": rate, "precision": "bf16"} for rate in (1.0, 100.0, 8.0)
    ]
    rows.append({"name": "longtail", "error": "not done"})
    (line,) = cpu.summarise([OURS], rows)
    assert (line["low"], line["median"], line["high"], line["runs"], line["precision"]) == (1, 8, 100, 3, "bf16")
    assert line["failed"] == ["not done"]


@pytest.mark.parametrize(
    ("code", "read", "error"),
    [
        ("pass", "read_json", "its last line is no JSON object with steps_per_second"),
        ("print('{}')", "read_json", "its last line is no JSON object with steps_per_second"),
        ("print('no JSON')", "read_json", "Expecting value"),
        (prints({"rollout only": 1}), "read_json", "'train'"),
        ("print('cuda ok 3000')", "read_prototype", "it printed no line 'cpu ok RATE'"),
        ("raise RuntimeError('out of memory')", "read_json", "exit status 1: RuntimeError: out of memory"),
        ("import os; os.abort()", "read_json", "exit status -6: nothing printed"),
    ],
)
def test_failures_become_rows(code: str, read: str, error: str) -> None:
    row = cpu.measure(fake("peer", code, read), timeout=30)
    assert error in row["error"] and "steps_per_second" not in row


def test_hanging_peer_is_ended_with_its_children(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    child = "import os, time; open(os.environ['NOTE'], 'w').write(str(os.getpid())); time.sleep(60)"
    code = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {child!r}]).wait()"
    began = time.perf_counter()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NOTE", str(note))
        row = cpu.measure(fake("peer", code), timeout=2)
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


def test_processes_see_no_gpu_and_all_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    code = "import json, os; e = os.environ; print(json.dumps({'steps_per_second': 1, 'threads': e.get("
    code += "'OMP_NUM_THREADS'), 'gpus': e['CUDA_VISIBLE_DEVICES']}))"
    assert cpu.measure(fake("peer", code), timeout=30)["detail"] == {"threads": None, "gpus": ""}


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
    assert cpu.command_line(cpu.parse(given)) == (
        "python benchmarks/cpu.py --rounds 3 --seconds 8 --prototype DIR --sample-factory PYTHON --torchbeast CHECKOUT"
    )


@pytest.mark.skipif(cpu.cpu_seconds() is None, reason="needs /proc/stat")
def test_what_others_use_meanwhile_is_noted() -> None:
    code = "import time; end = time.time() + 1\nwhile time.time() < end: pass\n" + prints(1)
    alone = cpu.measure(fake("peer", code), timeout=30)["others"]
    burner = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        beside = cpu.measure(fake("peer", code), timeout=30)["others"]
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


def test_monobeast_wants_a_checkout(tmp_path: Path) -> None:
    command = [sys.executable, str(PEERS / "monobeast.py"), "--checkout", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1 and "it must be a checkout of TorchBeast" in done.stderr


@pytest.mark.slow
def test_our_own_rate_is_measured() -> None:
    row = cpu.measure(cpu.ours("longtail fp32", "fp32", 0.2), timeout=300)
    assert row["steps_per_second"] > 0 and row["precision"] == "fp32" and row["detail"]["worlds"] == 32
