from __future__ import annotations

from pathlib import Path

from trivet.config import Paths
from trivet_supervisor import engine_logs


def test_the_first_log_and_the_newest_are_kept(tmp_path: Path) -> None:
    paths = Paths(tmp_path)
    for attempt in range(1, 41):
        engine_logs.prune(paths, "chat", "i", attempt)
        file = engine_logs.log_file(paths, "chat", "i", attempt)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(str(attempt))
    kept = sorted(int(file.read_text()) for file in (paths.logs / "chat").iterdir())
    assert kept == [1, *range(32, 41)]


def test_the_tail_has_the_last_lines_of_a_large_log(tmp_path: Path) -> None:
    file = tmp_path / "x.log"
    file.write_text("".join(f"line {n}\n" for n in range(10_000)))
    assert engine_logs.tail(file, 2) == "line 9998\nline 9999"


def test_a_missing_log_has_no_lines(tmp_path: Path) -> None:
    assert engine_logs.tail(tmp_path / "none.log") == ""


def test_bytes_that_are_no_text_do_not_hide_the_rest(tmp_path: Path) -> None:
    file = tmp_path / "x.log"
    file.write_bytes(b"\xff\xfe cuda error\n")
    assert engine_logs.tail(file).endswith("cuda error")


def test_a_progress_bar_is_one_line_of_the_tail(tmp_path: Path) -> None:
    file = tmp_path / "a.log"
    file.write_text("start\n" + "".join(f"load {n}%\r" for n in range(50)) + "\nout of memory\n", newline="")
    assert engine_logs.tail(file, 3) == "start\nload 49%\nout of memory"


def test_the_log_of_the_first_crash_is_kept_whatever_follows(tmp_path: Path) -> None:
    paths = Paths(tmp_path)
    for attempt in range(1, 31):
        engine_logs.prune(paths, "chat", "i", attempt)
        file = engine_logs.log_file(paths, "chat", "i", attempt)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"attempt {attempt}")
        if attempt >= 3:  # those before were stopped
            engine_logs.pin_first_crash(file)
    assert not engine_logs.log_file(paths, "chat", "i", 3).exists()
    assert engine_logs.first_crash_file(file).read_text() == "attempt 3"


def test_the_logs_of_a_deployment_are_bounded_over_all_its_instances(tmp_path: Path) -> None:
    paths = Paths(tmp_path)
    for number in range(200):
        engine_logs.prune(paths, "chat", f"i{number}", 1)
        file = engine_logs.log_file(paths, "chat", f"i{number}", 1)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("x")
    assert len(list(file.parent.iterdir())) <= engine_logs.KEPT_FILES
    assert file.exists()


def test_the_log_of_a_quiet_engine_that_lives_is_none_of_the_oldest(tmp_path: Path) -> None:
    paths = Paths(tmp_path)
    living = [f"i{number}" for number in range(2 * engine_logs.KEPT_FILES)]
    for instance in living:
        engine_logs.prune(paths, "chat", instance, 1, living)
        file = engine_logs.log_file(paths, "chat", instance, 1)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("ready")
    assert {file.name for file in file.parent.iterdir()} == {f"{instance}-1.log" for instance in living}


def test_a_log_that_cannot_be_removed_keeps_no_engine_from_its_start(tmp_path: Path) -> None:
    paths = Paths(tmp_path)
    oldest = engine_logs.log_file(paths, "chat", "i", 2)
    oldest.mkdir(parents=True)  # no file: unlink(2) refuses, as in a folder that cannot be written
    (oldest.parent / "gone-1.log").symlink_to(tmp_path / "nowhere")
    engine_logs.prune(paths, "chat", "i", 2 + engine_logs.KEPT_NEWEST)
    assert oldest.exists()


def test_logs_of_deployments_that_are_forgotten_go_and_no_others(tmp_path: Path) -> None:
    paths = Paths(tmp_path)
    for name in ("gone", "stays"):
        file = engine_logs.log_file(paths, name, "i", 1)
        file.parent.mkdir(parents=True)
        file.write_text("x")
    engine_logs.remove_logs(paths, ["gone", "never-started"])
    assert [folder.name for folder in paths.logs.iterdir()] == ["stays"]
