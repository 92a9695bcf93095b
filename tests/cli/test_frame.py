"""What ends any command: a full disk, a place that may not be entered, an absurd name, Ctrl-C, too little memory.

The commands are those of the click tree, so a new one is held by itself.
"""

from __future__ import annotations

import ctypes
import errno
import io
import json
import os
import resource
import signal
import struct
import subprocess
import sys
from pathlib import Path

import click
import pytest

import strata
from strata.cli.main import cli, run

STRATA = [sys.executable, "-m", "strata"]

FLEET = Path(strata.__path__[0]) / "fleet" / "presets" / "seed.yaml"
FILL = {"fleet": "seed", "job": "opt-350m", "model": "llama-3.1-8b", "kind": "Fleet"}
"""What required arguments get where another argument or option is what is tried; by the argument's name."""
OPTIONS = {
    ("strata", "serve", "worker"): ["--gateway", "http://127.0.0.1:1", "--id", "a"],
    ("strata", "run"): ["--memory", "1Gi"],
    ("strata", "whatif"): ["--set", "job.minimize=cost"],
    ("strata", "export"): ["--to", "megatron"],
    ("strata", "kube", "agent"): ["--once"],
}
"""What commands need beside their arguments before they look at a file."""


def leaves(command=cli, path=("strata",)):
    if not isinstance(command, click.Group):
        yield path, command
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        yield from leaves(command.get_command(context, name), (*path, name))


LEAVES = dict(leaves())
IDS = [" ".join(path[1:]) for path in LEAVES]


def is_file(parameter) -> bool:
    words = f"{parameter.name} {parameter.type.name} {parameter.metavar or ''}".lower()
    return any(
        word in words for word in ("path", "file", "fleet", "job", "plan", "policy", "config", "checkpoint")
    )


def lines_with(path, hostile):
    """Yield a command line for each argument and option of a command that may name a file."""
    command = LEAVES[path]
    required = [p for p in command.params if isinstance(p, click.Argument) and p.required]
    for parameter in command.params:
        if not is_file(parameter):
            continue
        arguments = [hostile if p is parameter else FILL.get(p.name, hostile) for p in required]
        options = list(OPTIONS.get(path, []))
        if isinstance(parameter, click.Option):
            if isinstance(parameter.type, click.Choice) or parameter.is_flag:
                continue
            options += [parameter.opts[-1], hostile]
        elif not parameter.required:
            arguments.append(hostile)
        yield [*path[1:], *options, *arguments]


@pytest.fixture(autouse=True)
def _away_from_home(monkeypatch, tmp_path):
    """No command finds a cluster, a history, slices or a journal of this machine, or writes beside the tests."""
    monkeypatch.chdir(tmp_path)
    for name in ("HOME", "XDG_STATE_HOME", "XDG_RUNTIME_DIR"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    # Seconds to import, and no part of what is tried here; transformers would remember that there is no torch.
    for name in ("torch", "transformers"):
        monkeypatch.setitem(sys.modules, name, None)


def held(capsys, code, what):
    """Assert that a command ended as docs/exit-codes.md says, with at most one line of advice."""
    captured = capsys.readouterr()
    lines = captured.err.splitlines()
    assert code in (0, 2, 3, 4, 5, 6, 126, 127), what
    if code:
        assert any(line.lower().startswith("error: ") for line in lines), (what, captured.err)
    assert sum(line.startswith("try: ") for line in lines) <= 1, (what, captured.err)
    assert "Traceback" not in captured.err, what
    return captured


@pytest.mark.parametrize("path", LEAVES, ids=IDS)
def test_help_on_a_full_disk_is_one_error(path, monkeypatch, capsys):
    with open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        num_open = len(os.listdir("/proc/self/fd"))
        assert run([*path[1:], "--help"]) == 5
        assert len(os.listdir("/proc/self/fd")) == num_open  # a library's user goes on after it
        monkeypatch.undo()
    error, advice = capsys.readouterr().err.splitlines()
    assert error == "error: cannot write: No space left on device"
    assert advice.startswith("try: ")


@pytest.mark.parametrize("path", LEAVES, ids=IDS)
def test_a_name_of_5000_letters_is_one_error(path, capsys):
    for line in lines_with(path, "n" * 5000):
        held(capsys, run(line), line[:4])


def unread(folder) -> str:
    """Return a file that may not be read, but for root, who has to give that up first."""
    place = folder / "closed"
    place.mkdir()
    file = place / "file.json"
    file.write_text("{}")
    place.chmod(0)
    return str(file)


def give_up_capabilities() -> None:
    """Leave root what any user has: its own files. Another user could not import what no test imported before."""
    version_3, this_process = 0x20080522, 0
    header = struct.pack("=Ii", version_3, this_process)
    nothing = bytes(24)
    assert ctypes.CDLL(None).capset(header, nothing) == 0


def test_a_folder_that_may_not_be_entered_is_one_error_of_every_command(tmp_path, capfd):
    hostile = unread(tmp_path)
    tmp_path.chmod(0o777)
    lines = [line for path in LEAVES for line in lines_with(path, hostile)]
    assert len(lines) > 60
    report, writing = os.pipe()
    child = os.fork()
    if child == 0:
        # In the child only os._exit ends: pytest's own clean-up belongs to the parent.
        try:
            give_up_capabilities()
            faults = [text for line in lines if (text := fault_of(line))]
            os.write(writing, "\n".join(faults).encode()[:60000] or b"well")
        finally:
            os._exit(0)
    os.close(writing)
    with open(report, "rb") as stream:
        assert stream.read() == b"well"
    os.waitpid(child, 0)


def fault_of(line) -> str:
    """Return what is wrong with how a command ended, "" if nothing is."""
    sys.stderr = told = io.StringIO()
    sys.stdout = io.StringIO()
    try:
        code = run(line)
    except BaseException as error:
        return f"{line}: {error!r}"
    errors = [text for text in told.getvalue().splitlines() if text.lower().startswith("error: ")]
    return (
        ""
        if (errors and code in (2, 5, 126, 127)) or code == 0
        else f"{line}: exit {code}: {told.getvalue()[:300]}"
    )


def interrupted_at(nth):
    """Return a profile function that has Ctrl-C come with the nth call into strata."""
    count = [0]

    def profile(frame, event, _argument):
        if event == "call" and f"{os.sep}strata{os.sep}" in frame.f_code.co_filename:
            count[0] += 1
            if count[0] == nth:
                sys.setprofile(None)
                signal.raise_signal(signal.SIGINT)

    return profile


COMMANDS_AND_CALLS = [
    *((path, nth) for path in LEAVES for nth in (2, 40)),
    # Whatever the event loop does at that moment: a client begins, a socket is made, a generator is read.
    *((("strata", "bench", "gateway"), nth) for nth in range(23, 143, 6)),
]


@pytest.mark.parametrize(
    ("path", "nth"), COMMANDS_AND_CALLS, ids=[f"{' '.join(path[1:])}-{nth}" for path, nth in COMMANDS_AND_CALLS]
)
def test_ctrl_c_ends_every_command_with_130(path, nth, monkeypatch, capsys):
    command = LEAVES[path]
    arguments = [FILL.get(p.name, "x") for p in command.params if isinstance(p, click.Argument) and p.required]
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        sys.setprofile(interrupted_at(nth))
        code = run([*path[1:], *OPTIONS.get(path, []), *arguments])
        is_interrupted = sys.getprofile() is None
    finally:
        sys.setprofile(None)
        signal.signal(signal.SIGINT, before)
    captured = capsys.readouterr()
    if is_interrupted:
        assert code == 130, captured.err
        assert "interrupted" in captured.err
    else:
        assert code != 130
    assert "Traceback" not in captured.err


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (MemoryError(), 5, "more memory than there is"),
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), 5, "cannot write: No space left on device"),
        (OSError(errno.EDQUOT, os.strerror(errno.EDQUOT), "plan.json"), 5, "cannot write plan.json: Disk quota"),
        (PermissionError(errno.EACCES, os.strerror(errno.EACCES), "a/b"), 2, "a/b: Permission denied"),
        (IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), b"folder"), 2, "folder: Is a directory"),
        (OSError(errno.EMFILE, os.strerror(errno.EMFILE)), 5, "the system refused: Too many open files"),
        (KeyboardInterrupt(), 130, "interrupted"),
    ],
)
def test_what_the_system_refuses_anywhere_is_one_error(monkeypatch, capsys, error, code, text):
    def raising(*_arguments, **_named):
        raise error

    monkeypatch.setattr("strata.cli.gpus.gpus.callback", raising)
    monkeypatch.setattr("strata.cli.main._abandon_stdout", lambda: None)
    assert run(["gpus"]) == code
    assert text in capsys.readouterr().err


@pytest.mark.parametrize("environment", [{}, {"PYTHONUNBUFFERED": "1"}])
@pytest.mark.parametrize("arguments", [["gpus", "-o", "json"], ["schema", "Fleet"], ["gpus"]])
def test_half_an_answer_is_never_a_success(tmp_path, environment, arguments):
    with (tmp_path / "answer").open("w") as answer:
        ended = subprocess.run(
            [*STRATA, *arguments],
            stdout=answer,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | environment,
            # A file that may not grow past 1000 bytes takes half of a text, as a disk does that is nearly full.
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000)),
        )
    assert ended.returncode == 5
    if "json" in arguments:
        assert json.loads(ended.stderr)["error"]["message"] == "cannot write: File too large"
    else:
        assert ended.stderr.splitlines()[0] == "error: cannot write: File too large"
        assert len(ended.stderr.splitlines()) == 2


@pytest.mark.parametrize("save", [["--save", "fleet.yaml"], ["--save=./fleet.yaml"]])
def test_an_input_is_never_overwritten(tmp_path, capsys, save):
    text = FLEET.read_text()
    (tmp_path / "fleet.yaml").write_text(text)
    assert run(["plan", "train", "fleet.yaml", "opt-350m", *save]) == 2
    assert "is an input of this command and would be overwritten" in capsys.readouterr().err
    assert (tmp_path / "fleet.yaml").read_text() == text


def test_a_place_that_cannot_be_written_is_refused_before_the_work(tmp_path, capsys):
    (tmp_path / "file").touch()
    assert run(["plan", "train", "seed", "no-such-job", "--save", "file/plan.json"]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert f"Invalid value for '--save': file/plan.json cannot be written: {tmp_path / 'file'} is a file" in said
