"""`spyre-smi` shows what processes do on their cards, and is never brought down by one of them."""

from __future__ import annotations

import contextlib
import importlib.metadata
import itertools
import json
import os
import re
import signal
import struct
import subprocess
import sys
import time
from dataclasses import dataclass, fields, replace
from pathlib import Path

import pytest

from spyre_smi import cli, display, pages
from spyre_smi.figures import figures
from spyre_smi.pages import Reading
from spyre_smi.samples import Sample, samples

ROOT = Path(__file__).parents[2]

# ---- Real processes -----------------------------------------------------------------------------

# PyTorch and the planner are imported once; each user of cards is a fork, before any is open.
USERS = """
import json, os, signal, sys, time
import torch._inductor.compile_fx
import torch_spyre._inductor.registration

def work(device):
    x = torch.arange(4096.0).reshape(64, 64).half().to(device)
    return torch.softmax(x @ x, -1)

def say(**what):
    os.write(1, (json.dumps(what) + "\\n").encode())

def use(name, devices, repeats):
    kept = [work(device) for device in devices]
    if name == "ending":
        if os.fork() == 0:
            sys.exit()  # the child of a process with an open card
        os.wait()
    values = [y.cpu().sum().item() for y in kept]
    index = torch.device(devices[-1]).index
    counters = torch.spyre.counters(index)
    memory = torch.spyre.memory_allocated(index)
    say(name=name, pid=os.getpid(), counters=counters, memory=memory, values=values)
    while repeats:
        for device in devices:
            work(device)
        time.sleep(0.002)
    signal.pause()

signal.signal(signal.SIGTERM, lambda *_: sys.exit())
for user in json.loads(sys.argv[1]):
    if os.fork() == 0:
        os.environ.update(user.pop("environment"))
        try:
            use(**user)
        except Exception as error:
            say(name=user["name"], failed=repr(error))
            raise
signal.pause()
"""
TWO = ["spyre:0", "spyre:1"]
TWO_OF_FOUR = {"AIU_WORLD_SIZE": "4", "SPYRE_DEVICES": "1,3"}
CARDS = {
    "busy": {"devices": TWO, "repeats": True, "environment": {"AIU_WORLD_SIZE": "2"}},
    "still": {"devices": TWO, "repeats": False, "environment": TWO_OF_FOUR},
    "silent": {
        "devices": TWO,
        "repeats": False,
        "environment": {**TWO_OF_FOUR, "SPYRE_MONITOR": "0"},
    },
    "victim": {"devices": ["spyre:0"], "repeats": True, "environment": {}},
    "ending": {"devices": ["spyre:0"], "repeats": True, "environment": {}},
}


@pytest.fixture(scope="module")
def users():
    """What each user says of itself, by name, while all of them live."""
    roles = [{"name": name, **role} for name, role in CARDS.items()]
    forker = subprocess.Popen(
        [sys.executable, "-P", "-c", USERS, json.dumps(roles)], stdout=subprocess.PIPE, text=True
    )
    said = [json.loads(forker.stdout.readline()) for _ in roles]
    assert not any("failed" in user for user in said), said
    yield {user["name"]: user for user in said}
    for pid in (*(user["pid"] for user in said), forker.pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    forker.wait()
    forker.stdout.close()
    wait_until(lambda: not any(pages.start_time(user["pid"]) for user in said))
    pages.processes()  # tidies up
    assert not any(page_of(user) for user in said)


def smi(*arguments: str, code: int = 0) -> str:
    """What the command prints; nothing on stderr unless it fails."""
    command = [sys.executable, "-m", "spyre_smi", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == code, done.stderr
    assert (done.stderr == "") == (code == 0)
    return done.stdout if code == 0 else done.stderr


def of_user(document: dict, user: dict) -> dict[int, dict]:
    return {row["card"]: row for row in document["cards"] if row["pid"] == user["pid"]}


def page_of(user: dict) -> list[Path]:
    return list(pages.DIRECTORY.glob(f"torch-spyre.*.{user['pid']}.*"))


def wait_until(condition) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_every_card_of_every_process_is_there(users):
    document = json.loads(smi("--json"))
    assert set(of_user(document, users["busy"])) == {0, 1}
    assert set(of_user(document, users["still"])) == {1, 3}  # by the card, not by the device
    assert set(of_user(document, users["victim"])) == {0}
    assert not of_user(document, users["silent"])
    order = [(row["card"], row["pid"]) for row in document["cards"]]
    assert order == sorted(order)


def test_totals_are_the_counters_of_the_process(users):
    user = users["still"]
    row = of_user(json.loads(smi("--json", "--pid", str(user["pid"]))), user)[3]
    counters, modelled = user["counters"], row["total"]["modelled"]
    nanoseconds = modelled["seconds"] * 1e9
    assert row["total"]["kernels"] == counters["launches"] > 0
    assert row["total"]["transfers"] == counters["transfers"] > 0
    assert row["memory"]["used_bytes"] == user["memory"] > 0
    assert row["memory"]["total_bytes"] == 112 << 30
    assert modelled["pt"] * nanoseconds == pytest.approx(counters["pt_busy_ns"])
    moved = counters["bytes_read"] + counters["bytes_written"]
    assert modelled["lpddr5_gb_per_s"] * nanoseconds == pytest.approx(moved)
    assert "python" in row["command"] and row["fault"] is None
    # It has done nothing since: there is no time to have a share of.
    assert row["window"]["kernels"] == 0 and row["window"]["modelled"]["pt"] is None
    assert row["window"]["modelled"]["watts"] == 15


def test_publishing_changes_nothing(users):
    told = [{**users[name], "name": "", "pid": 0} for name in ("still", "silent")]
    assert told[0] == told[1]


def test_a_card_at_work_has_figures_of_the_moment(users):
    user = users["busy"]
    document = json.loads(smi("--json", "--card", "1", "--pid", str(user["pid"])))
    (row,) = document["cards"]
    modelled = row["window"]["modelled"]
    assert 0 < row["window"]["kernels"] < row["total"]["kernels"]
    assert 0 < modelled["seconds"] < row["total"]["modelled"]["seconds"]
    assert 0 < modelled["pt"] < 1 and 0 < modelled["lpddr5_gb_per_s"] <= 150
    assert 15 < modelled["watts"] <= 75


def test_the_table_needs_no_terminal(users):
    lines = smi().splitlines()
    assert "LPDDR5" in lines[1] and "process" in lines[2]
    (row,) = [line for line in lines if str(users["victim"]["pid"]) in line]
    assert row.split()[:2] == ["0", str(users["victim"]["pid"])] and " now " in row
    assert "modelled" in lines[-1]


def test_dmon_prints_a_line_per_card_and_sample(users):
    chosen = ("--pid", str(users["busy"]["pid"]))
    lines = smi("dmon", "-c", "2", "-d", "0.1", *chosen).splitlines()
    assert all(line.startswith("#") for line in lines[:3])
    rows = [line.split() for line in lines[3:]]
    assert [row[1] for row in rows] == ["0", "1", "0", "1"]
    assert all(len(row) == 13 and int(row[11]) > 0 for row in rows)
    documents = smi("dmon", "-c", "2", "-d", "0.1", "--json", *chosen).splitlines()
    assert [len(json.loads(line)["cards"]) for line in documents] == [2, 2]


# Background jobs of a shell ignore interrupts, and what they start does, too: `make test &` would
# wait forever.
INTERRUPTIBLE = """
import runpy, signal
signal.signal(signal.SIGINT, signal.default_int_handler)
runpy.run_module("spyre_smi", run_name="__main__")
"""


def test_a_process_that_is_killed_disappears_while_dmon_looks(users):
    victim = users["victim"]
    command = [sys.executable, "-c", INTERRUPTIBLE, "dmon", "-d", "0.05", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as dmon:
        assert of_user(json.loads(dmon.stdout.readline()), victim)
        os.kill(victim["pid"], signal.SIGKILL)  # and nobody waits for it: a zombie stays
        wait_until(lambda: not of_user(json.loads(dmon.stdout.readline()), victim))
        assert of_user(json.loads(dmon.stdout.readline()), users["busy"])
        dmon.send_signal(signal.SIGINT)
        dmon.stdout.read()
    assert dmon.returncode == 0
    assert not page_of(victim)


def test_nothing_is_left_of_a_process_that_ends(users):
    ending = users["ending"]
    assert page_of(ending)  # although a child of it has ended
    os.kill(ending["pid"], signal.SIGTERM)
    wait_until(lambda: not page_of(ending))


def test_a_reader_that_has_seen_enough_ends_it():
    command = f"{sys.executable} -m spyre_smi dmon -d 0.01 | head -n 1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=60)
    assert done.stdout.startswith("#") and done.stderr == ""


@pytest.mark.parametrize("mode", [(), ("dmon", "-c", "1"), ("--json",)], ids=" ".join)
@pytest.mark.parametrize(
    ("target", "problem"),
    [("/dev/full", "No space left on device"), ("&-", "standard output is closed")],
)
def test_output_that_can_t_be_written_is_one_line(mode, target, problem):
    command = " ".join([sys.executable, "-m", "spyre_smi", "-d", "0.01", *mode])
    done = subprocess.run(f"{command} >{target}", shell=True, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (2, f"spyre-smi: can't print: {problem}\n")


def test_dmon_says_its_columns_again_before_they_leave_a_terminal(capsys, monkeypatch):
    monkeypatch.setenv("LINES", "12")
    monkeypatch.setenv("COLUMNS", "120")
    for is_terminal in (True, False):
        monkeypatch.setattr(sys.stdout, "isatty", lambda found=is_terminal: found)
        lines = display.Lines()
        for _ in range(20):
            lines.show(Sample(0.0, 1.0, []))
        printed = capsys.readouterr().out.splitlines()
        headings = [i for i, line in enumerate(printed) if "lpddr5" in line]
        gaps = [after - before for before, after in itertools.pairwise(headings)]
        assert len(headings) == (3 if is_terminal else 1)
        assert all(gap <= 12 for gap in gaps)


# ---- The command --------------------------------------------------------------------------------


def test_the_command_does_not_need_pytorch():
    script = "import sys, spyre_smi.cli; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-P", "-c", script], check=True)


@pytest.mark.parametrize("name", ["spyre-smi", "aiu-smi"])
def test_the_version_is_that_of_the_package(name, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", [name])
    with pytest.raises(SystemExit) as end:
        cli.main(["--version"])
    assert end.value.code == 0
    version = importlib.metadata.version("torch-spyre")
    assert capsys.readouterr().out == f"{name} (torch-spyre) {version}\n"


def test_both_commands_are_installed():
    from importlib.metadata import entry_points

    for name in ("spyre-smi", "aiu-smi"):
        (command,) = entry_points(group="console_scripts", name=name)
        assert command.load() is cli.main


@pytest.mark.parametrize("name", ["dmon", "--delay", "--count", "--card", "--pid", "--json"])
def test_help_names_every_option(name, capsys):
    with pytest.raises(SystemExit) as end:
        cli.main(["--help"])
    assert end.value.code == 0 and name in capsys.readouterr().out


@pytest.mark.parametrize(
    "wrong",
    [["top"], ["-d", "0"], ["-d", "nan"], ["dmon", "-c", "0"], ["-c", "2"], ["--pid", "x"]],
    ids=" ".join,
)
def test_what_makes_no_sense_is_refused(wrong, capsys):
    with pytest.raises(SystemExit) as end:
        cli.main(wrong)
    assert end.value.code == 2 and "error: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (["-d", "abc"], "argument -d/--delay: abc is not from 0.01 to 3600 seconds"),
        (["-d", "inf"], "argument -d/--delay: inf is not from 0.01 to 3600 seconds"),
        (["dmon", "-c", "1.5"], "argument -c/--count: 1.5 is not a number of samples: at least 1"),
    ],
)
def test_a_value_that_is_none_is_said_with_what_it_should_be(wrong, message, capsys):
    with pytest.raises(SystemExit):
        cli.main(wrong)
    assert capsys.readouterr().err.endswith(f"error: {message}\n")


def test_a_process_without_a_card_is_said_to_be_none(capsys):
    assert cli.main(["-d", "0.01", "--pid", "1"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize(
    ("called", "name"),
    [
        ("/usr/bin/aiu-smi", "aiu-smi"),
        ("/usr/bin/spyre-smi", "spyre-smi"),
        ("spyre_smi/__main__.py", "spyre-smi"),
    ],
)
def test_each_command_knows_its_own_name(called, name, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [called])
    with pytest.raises(SystemExit):
        cli.main(["--help"])
    assert capsys.readouterr().out.startswith(f"usage: {name} ")
    assert cli.main(["-d", "0.01", "--pid", "1"]) == 2
    assert capsys.readouterr().err.startswith(f"{name}: ")


# ---- Pages --------------------------------------------------------------------------------------


@pytest.fixture
def directory(tmp_path, monkeypatch):
    """A directory of pages that nobody else writes to."""
    monkeypatch.setattr(pages, "DIRECTORY", tmp_path)
    return tmp_path


@dataclass(frozen=True)
class Page:
    """A page as a process would write it; this process, if nothing else is said."""

    magic: bytes = b"SPYRESMI"
    version: int = 1
    command: bytes = b"/usr/bin/python\0train.py\0"
    card: tuple[int, ...] = (1, 0, 1 << 30, 512, 4096, 1000, 3)
    namespace: int = os.stat("/proc/self/ns/pid").st_ino
    pid: int = os.getpid()
    start: int = 0

    def content(self) -> bytes:
        header = struct.pack("=8sIIq168s", self.magic, self.version, 8, 10**18, self.command)
        return (header + struct.pack(f"={len(self.card)}q", *self.card)).ljust(9 * 192, b"\0")

    def path(self, directory: Path) -> Path:
        start = self.start or pages.start_time(self.pid)
        return directory / f"torch-spyre.{self.namespace}.{self.pid}.{start}"

    def write(self, directory: Path) -> Path:
        path = self.path(directory)
        path.write_bytes(self.content())
        return path


def printed(capsys) -> list[dict]:
    assert cli.main(["--json", "-d", "0.01"]) == 0
    return json.loads(capsys.readouterr().out)["cards"]


def test_the_words_of_a_page_stand_in_the_order_of_the_header():
    header = (ROOT / "torch_spyre/csrc/card/telemetry.h").read_text()
    words = re.findall(r"(\w+)\{0\}", header)
    assert words == [field.name for field in fields(Reading)]


def test_the_faults_are_those_of_the_driver():
    header = (ROOT / "torch_spyre/csrc/card/driver.h").read_text()
    kinds = re.search(r"enum class Kind \{ (.*) \};", header)[1].replace("Error", "").split(", ")
    assert [name.replace(" ", "") for name in pages.FAULTS] == [kind.lower() for kind in kinds]


def test_a_page_is_read(directory, capsys):
    Page(card=(1, 2, 1 << 30, 512, 4096, 1000, 3)).write(directory)
    (row,) = printed(capsys)
    assert row["pid"] == os.getpid() and row["command"] == "python train.py"
    assert row["memory"] == {"total_bytes": 1 << 30, "used_bytes": 512, "host_bytes": 4096}
    assert row["total"]["kernels"] == 3 and row["fault"] == "ecc"


def test_a_fault_is_shown_by_table_and_dmon(directory, capsys):
    Page(card=(1, 4, 1 << 30)).write(directory)
    assert cli.main(["-d", "0.01"]) == cli.main(["dmon", "-d", "0.01", "-c", "1"]) == 0
    assert capsys.readouterr().out.count("fault: card lost") == 2


def test_a_command_can_not_steer_the_terminal(directory, capsys):
    Page(command=b"evil\x1b[2J\0[red]a\nb\xff" + b"x" * 200).write(directory)
    (row,) = printed(capsys)
    assert row["command"].startswith("evil?[2J [red]a b\ufffdx") and row["command"].endswith("x…")
    assert cli.main(["-d", "0.01"]) == 0
    assert "\x1b[2J" not in capsys.readouterr().out


FOREIGN = {
    "empty": lambda _, path: path.write_bytes(b""),
    "cut short": lambda page, path: path.write_bytes(page.content()[:-1]),
    "text": lambda _, path: path.write_text("hello\n" * 1000),
    "other magic": lambda page, path: replace(page, magic=b"something").write(path.parent),
    "other version": lambda page, path: replace(page, version=2).write(path.parent),
    "not complete yet": lambda page, path: replace(page, magic=b"\0" * 8).write(path.parent),
    "a directory": lambda _, path: path.mkdir(),
    "a pipe": lambda _, path: os.mkfifo(path),
    "a link": lambda _, path: path.symlink_to(__file__),
    "other namespace": lambda page, path: replace(page, namespace=1).write(path.parent),
}


@pytest.mark.parametrize("kind", FOREIGN)
def test_what_is_not_a_page_is_left_out_and_left_alone(kind, directory, capsys):
    page = Page()
    FOREIGN[kind](page, page.path(directory))
    before = os.listdir(directory)
    assert printed(capsys) == [] and os.listdir(directory) == before != []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_page_in_the_name_of_another_user_s_process_is_left_out(directory, capsys):
    os.chown(Page().write(directory), 12345, -1)
    assert printed(capsys) == []


@pytest.mark.parametrize(
    "page", [Page(start=1), Page(pid=4_194_305, start=12)], ids=["old", "gone"]
)
def test_the_page_of_a_process_that_is_gone_is_removed(page, directory, capsys):
    page.write(directory)
    assert printed(capsys) == [] and not os.listdir(directory)


def test_a_machine_without_shared_memory_is_said_to_be_one(directory, capsys):
    directory.rmdir()
    assert cli.main(["-d", "0.01"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_processes_come_and_go_between_samples(directory):
    looks = samples(0.01)
    assert next(looks).rows == []
    path = Page().write(directory)
    (row,) = next(looks).rows
    assert row.window == row.total and row.window.kernels == 3  # all since it opened
    assert next(looks).rows[0].window.kernels == 0
    path.unlink()
    assert next(looks).rows == []


# ---- Figures ------------------------------------------------------------------------------------


def test_shares_and_rates_are_of_the_card_s_clock():
    before = Reading(clock=1_000, launches=5, pt_busy=500, bytes_read=7_000)
    after = replace(before, clock=3_000, launches=7, pt_busy=1_300, bytes_read=207_000)
    after = replace(after, bytes_written=40_000, to_host_busy=2_000, bytes_to_host=100_000)
    over = figures(before, after)
    assert (over.kernels, over.seconds, over.pt) == (2, 2e-6, 0.4)
    assert (over.lpddr5_rate, over.pcie_rate) == (120.0, 50.0)  # GB/s
    assert over.watts == pytest.approx(15 + 0.4 * 30 + 0.5 * 4)


def test_power_is_between_a_fifth_and_all_of_what_the_card_may_take():
    busy = ("pt_busy", "sfp_busy", "memory_busy", "lx_busy", "to_card_busy", "to_host_busy")
    all_busy = Reading(clock=1_000, **dict.fromkeys(busy, 1_000))
    assert figures(Reading(), all_busy).watts == 75
    assert figures(all_busy, all_busy).watts == 15


def test_a_launch_caught_half_counted_gives_no_share_above_one():
    assert figures(Reading(), Reading(clock=1_000, pt_busy=1_500)).pt == 1
    assert figures(Reading(clock=1_000), Reading()).kernels == 0
