"""A command under a slice, up to where this process would turn into it."""

from __future__ import annotations

import errno
import fcntl
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from strata.errors import StrataError, UsageError
from strata.fleet import nvml
from strata.fleet.nvml import device_bytes
from strata.fleet.slices import QuotaLimits
from strata.slicing.run import Launch, prepare, start
from tests.slicing.ledger_builders import MIB

ASKED = QuotaLimits(64 * MIB, None, None)
LIBRARY = Path("/opt/libstrata_quota.so")
SEARCH = os.environ["PATH"]


@pytest.fixture
def make(tmp_path):
    """Prepare a command, and leave its slice at the end."""
    made = []

    def prepared(
        *command,
        asked=ASKED,
        library=LIBRARY,
        name=None,
        is_open=False,
        device_bytes=(),
        device_uuids=(),
        **environment,
    ) -> Launch:
        launch = prepare(
            command or (sys.executable,),
            asked,
            folder=tmp_path / "slices",
            name=name,
            is_open=is_open,
            library=library,
            environment={"PATH": SEARCH, **environment},
            device_bytes=device_bytes,
            device_uuids=device_uuids,
        )
        made.append(launch.file)
        return launch

    yield prepared
    for file in made:
        os.close(file)


def test_a_command_gets_its_limits_the_library_and_the_ledger(make, tmp_path):
    launch = make("sh", "-c", "true", asked=QuotaLimits(64 * MIB, 0.3, 2), HOME="/home/x")
    ledger = str(tmp_path / "slices" / f"run-{os.getpid()}.ledger")
    assert launch.environment == {
        "PATH": SEARCH,
        "HOME": "/home/x",
        "STRATA_MEMORY_LIMIT_2": str(64 * MIB),
        "STRATA_CORES_LIMIT_2": "30",
        "STRATA_LEDGER": ledger,
        "STRATA_LEDGER_INODE": str(Path(ledger).stat().st_ino),
        "LD_PRELOAD": str(LIBRARY),
    }
    assert launch.arguments == ("sh", "-c", "true")
    assert Path(launch.program).name == "sh"
    assert launch.warnings == ()


def test_without_a_device_every_device_is_limited(make):
    assert make().environment["STRATA_MEMORY_LIMIT"] == str(64 * MIB)


def test_another_preloaded_library_stays_behind_ours(make):
    assert make(LD_PRELOAD="/a.so:/b.so").environment["LD_PRELOAD"] == f"{LIBRARY}:/a.so:/b.so"


def test_limits_that_were_there_before_go_and_hamis_stay_behind_ours(make):
    env = make(STRATA_MEMORY_LIMIT_0="1", STRATA_CORES_LIMIT="5", CUDA_DEVICE_MEMORY_LIMIT_1="1g").environment
    assert {key for key in env if "LIMIT" in key} == {"STRATA_MEMORY_LIMIT", "CUDA_DEVICE_MEMORY_LIMIT_1"}


@pytest.mark.parametrize(
    ("visible", "named"),
    [
        (None, "GPU-cc"),
        ("2,1,0", "GPU-aa"),
        ("GPU-bb,GPU-aa,GPU-c", "GPU-cc"),
        ("0", None),
        ("0,1,9", None),
        ("0,1,GPU-", None),
    ],
)
def test_one_device_is_named_so_that_children_may_number_it_anew(make, visible, named):
    more = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    launch = make(asked=QuotaLimits(64 * MIB, device=2), device_uuids=["GPU-aa", "GPU-bb", "GPU-cc"], **more)
    assert launch.environment.get("STRATA_DEVICE_UUID") == named


def test_two_runs_have_slices_of_their_own_unless_they_say_a_name(make):
    assert make().slice != make().slice
    assert make(name="both").environment["STRATA_LEDGER"] == make(name="both").environment["STRATA_LEDGER"]


def test_what_cannot_be_kept_is_refused_unless_it_is_let_open(make):
    assert "STRATA_QUOTA_FAIL" not in make(STRATA_QUOTA_FAIL="open").environment
    assert make(is_open=True).environment["STRATA_QUOTA_FAIL"] == "open"


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (QuotaLimits(0, None, None), "must be positive"),
        (QuotaLimits(-1, None, None), "must be positive"),
        (QuotaLimits(2**52, None, None), "too large to count"),
        (QuotaLimits(MIB, 0.0, None), "not a share"),
        (QuotaLimits(MIB, None, 64), "device 64"),
    ],
)
def test_a_limit_that_is_none_is_refused_and_begins_no_slice(make, tmp_path, asked, said):
    with pytest.raises(UsageError, match=said):
        make(asked=asked)
    assert not list(tmp_path.rglob("*.ledger"))


def test_a_slice_in_a_slice_is_refused(make):
    with pytest.raises(UsageError, match="already inside a slice") as refused:
        make(STRATA_LEDGER="/some/ledger")
    assert refused.value.hint


@pytest.mark.parametrize("path", ["/my folder/lib.so", "/a:b/lib.so"])
def test_a_path_the_loader_would_split_is_refused(make, path, monkeypatch):
    """Who had it compiled into a cache was told to install strata elsewhere."""
    with pytest.raises(UsageError, match="cannot hold a path") as compiled:
        make(library=Path(path))
    assert compiled.value.hint == "XDG_CACHE_HOME=FOLDER, one without them"
    monkeypatch.setattr("strata.slicing.run.brought", lambda: Path(path))
    with pytest.raises(UsageError, match="cannot hold a path") as of_a_wheel:
        make(library=Path(path))
    assert of_a_wheel.value.hint == "install strata in a folder without them"


def test_the_switch_stays_as_it_is_with_a_word_on_it(make):
    launch = make(STRATA_QUOTA="off")
    assert launch.environment["STRATA_QUOTA"] == "off"
    assert launch.warnings == ("STRATA_QUOTA=off: nothing is limited",)


def test_a_limit_beyond_the_largest_device_is_warned_of(make):
    assert make(device_bytes=[32 * MIB, 64 * MIB]).warnings == ()
    (said,) = make(device_bytes=[32 * MIB]).warnings
    assert "64MiB" in said
    assert "32MiB" in said


@pytest.mark.parametrize(
    ("device", "visible", "said"),
    [
        (1, None, None),
        (2, None, "nothing is limited: device 2 is beyond the program's 2, from 0"),
        (0, "1", None),
        (1, "1", "nothing is limited: device 1 is beyond the program's 1, from 0"),
        (1, "1,0", None),
    ],
)
def test_a_limit_of_a_device_that_is_not_there_is_warned_of(make, device, visible, said):
    given = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    launch = make(asked=QuotaLimits(64 * MIB, device=device), device_uuids=["GPU-a", "GPU-b"], **given)
    assert launch.warnings == ((said,) if said else ())


OLD = b"\x7fELF\x01\x01\x01" + bytes(60)


def test_a_program_that_cannot_be_held_is_refused_and_begins_no_slice(make, tmp_path):
    program = executable(tmp_path, OLD)
    with pytest.raises(UsageError, match="32-bit") as told:
        make(program)
    assert "--fail open" in told.value.hint
    assert not list(tmp_path.rglob("*.ledger"))


def test_or_runs_without_a_limit_where_that_is_the_policy(make, tmp_path):
    launch = make(executable(tmp_path, OLD), is_open=True, LD_PRELOAD="/a.so")
    (said,) = launch.warnings
    assert "32-bit" in said
    assert launch.environment["LD_PRELOAD"] == "/a.so"
    assert "LD_PRELOAD" not in make(executable(tmp_path, OLD), is_open=True).environment


def test_what_a_static_program_starts_may_still_be_held(make, tmp_path):
    static = b"\x7fELF\x02\x01\x01" + bytes(57)
    launch = make(executable(tmp_path, static), is_open=True)
    assert launch.environment["LD_PRELOAD"] == str(LIBRARY)
    assert "statically" in launch.warnings[0]


def test_where_nothing_is_limited_nothing_is_refused(make, tmp_path):
    launch = make(executable(tmp_path, OLD), STRATA_QUOTA="off")
    assert launch.warnings == ("STRATA_QUOTA=off: nothing is limited",)
    assert "LD_PRELOAD" not in launch.environment


def executable(folder, content) -> str:
    program = folder / "program"
    program.write_bytes(content)
    program.chmod(0o755)
    return str(program)


@pytest.mark.parametrize(
    ("name", "code"), [("no-such-command", 127), ("/no/such/file", 127), (__file__, 126), ("/etc", 126)]
)
def test_a_command_that_is_none_has_the_code_shells_give_it(make, tmp_path, name, code):
    with pytest.raises(StrataError) as refused:
        make(name)
    assert refused.value.exit_code == code
    assert not list(tmp_path.rglob("*.ledger"))


def test_a_directory_is_not_to_be_made_executable(make):
    with pytest.raises(StrataError) as refused:
        make("/etc")
    assert refused.value.lines() == ["/etc: a directory", "try: the path of a program"]


def test_a_script_whose_interpreter_is_missing_is_not_said_to_be_missing_itself(make, tmp_path):
    script = executable(tmp_path, b"#!/no/such/interpreter\n")
    with pytest.raises(StrataError) as refused:
        start(make(script))
    assert refused.value.exit_code == 126
    assert refused.value.lines() == [
        f"{script}: what its first line names, or its loader, is not here",
        f"try: head -1 {script}",
    ]


def test_a_folder_that_cannot_be_written_is_told(make, tmp_path):
    (tmp_path / "slices").write_text("in the way")
    with pytest.raises(UsageError, match="slices"):
        make()


class Replaced(BaseException):
    """What execve would not come back from."""


def replace(calls, refused=()):
    def execute(path, arguments, environment):
        calls.append((path, arguments, environment))
        if path in refused:
            raise OSError(errno.ENOEXEC, os.strerror(errno.ENOEXEC))
        raise Replaced

    return execute


def test_the_slice_stays_locked_in_what_is_started(make):
    launch, calls = make("sh"), []
    with pytest.raises(Replaced):
        start(launch, execute=replace(calls))
    (passed_on,) = files_of(launch) - {launch.file}
    assert passed_on >= 64
    assert os.get_inheritable(passed_on)
    os.close(passed_on)
    assert [(path, arguments) for path, arguments, _ in calls] == [(str(launch.program), ["sh"])]


def test_a_script_without_a_first_line_is_the_shells(make, tmp_path):
    script = tmp_path / "script"
    script.write_text("true\n")
    script.chmod(0o755)
    launch, calls = make(str(script), "x"), []
    with pytest.raises(Replaced):
        start(launch, execute=replace(calls, refused=[str(script)]))
    assert calls[-1][:2] == ("/bin/sh", ["/bin/sh", str(script), "x"])
    (passed_on,) = files_of(launch) - {launch.file}
    os.close(passed_on)


def files_of(launch: Launch) -> set[int]:
    """Return the descriptors of this process that are open on the slice's ledger."""
    ledger = launch.environment["STRATA_LEDGER"]
    files = {int(entry.name): entry for entry in Path("/proc/self/fd").iterdir()}
    # The descriptor that listed them is closed by now, and is none of these.
    return {number for number, entry in files.items() if entry.is_symlink() and os.readlink(entry) == ledger}


def test_where_few_files_are_allowed_the_slice_is_held_all_the_same(make, monkeypatch):
    def refuse(file, command, argument):
        raise OSError(errno.EINVAL, "too large")

    launch, calls = make("sh"), []
    monkeypatch.setattr(fcntl, "fcntl", refuse)
    with pytest.raises(Replaced):
        start(launch, execute=replace(calls))
    assert os.get_inheritable(launch.file)


@pytest.mark.parametrize(
    ("missing", "sizes"),
    [("", [5, 7]), ("nvmlInit_v2", []), ("nvmlDeviceGetMemoryInfo", [])],
    ids=["two devices", "another library", "an old one"],
)
def test_sizes_of_devices_are_known_where_nvml_tells_them(monkeypatch, missing, sizes):
    def get_count(count):
        count._obj.value = 2
        return 0

    def get_handle(number, device):
        device._obj.value = number
        return 0

    def get_memory(device, memory):
        memory[0] = [5, 7][device.value or 0]
        return 0

    functions = {
        "nvmlInit_v2": lambda: 0,
        "nvmlDeviceGetCount_v2": get_count,
        "nvmlDeviceGetHandleByIndex_v2": get_handle,
        "nvmlDeviceGetMemoryInfo": get_memory,
    }
    functions.pop(missing, None)
    monkeypatch.setattr(nvml.ctypes, "CDLL", lambda name: SimpleNamespace(**functions))
    assert device_bytes() == sizes


def test_where_there_is_no_nvml_no_size_is_known(monkeypatch):
    def refuse(name):
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(nvml.ctypes, "CDLL", refuse)
    assert device_bytes() == []
