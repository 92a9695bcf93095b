"""Every command over broken forms of the files it reads: cut short, a value replaced, a key removed.

Whatever the file: no traceback, an exit code of docs/exit-codes.md, and where the file is at fault its name. Which
form is tried is drawn by hypothesis: the same few in every run of `make test`, others in `make test-laws`.
"""

from __future__ import annotations

import copy
import gzip
import json
import os
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import strata
from strata.cli.main import run
from strata.cli.slices import slices
from tests.cli.test_frame import LEAVES
from tests.cli.test_host_report import faulty
from tests.cli.test_what_we_write_we_read import FLEET, JOB, SERVICE

ROOT: Final = Path(__file__).parents[2]
SOURCES: Final = Path(strata.__path__[0])
EXAMPLES: Final = int((os.environ.get("STRATA_LAWS") and 200) or 12)

BAD: Final = (None, "x", -1, 0, [], ["x"], {}, {"x": "x"}, True, 10**30, float("inf"), "\u0000", "5 parsecs")
CODES: Final = {0, 2, 3, 4, 5, 6}

POLICY: Final = [
    {"name": "train", "matches": [[{"CommPrefix": "python"}]], "kind": {"Grouped": {"util_range": [0.1, 0.9]}}},
    {"name": "rest", "matches": [[]], "kind": {"Open": {"preempt": False}}},
]
PLAIN: Final = {
    "steps": [
        {"act": "write", "path": "/proc/irq/1/smp_affinity_list", "value": "0", "layer": "rest", "why": "a test"}
    ]
}
KUBECONFIG: Final = {
    "apiVersion": "v1",
    "kind": "Config",
    "current-context": "c",
    "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
    "clusters": [{"name": "k", "cluster": {"server": "https://127.0.0.1:1"}}],
    "users": [{"name": "u", "user": {"token": "t"}}],
}
SERVING_CASES: Final = {
    "cases": [
        {
            "id": "c",
            "num_layers": 4,
            "nodes": [{"id": "a", "capacity": {"first": 4, "middle": 4, "last": 4, "only": 4}}],
        }
    ]
}
ARRIVALS: Final = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.68,374,44\n2023-11-16 18:15:50.1,9,2\n"
)
VARY: Final = "time_s,West>East\n0,1.0\n10,0.5\n"
ONE: Final = "\n".join(line for line in FLEET.splitlines() if "East" not in line and "links" not in line) + "\n"
REQUESTS: Final = "at_s,prompt_tokens,output_tokens,ttft_s,latency_s\n" + "".join(
    f"{number},100,20,0.05,0.45\n" for number in range(24)
)
STEPS: Final = "step,seconds\n" + "".join(f"{step},0.1\n" for step in range(12))
ROLLOUT: Final = "qps 3.25\nqps 3.5\n"
FAST: Final = ("--time-limit", "1s")
TRAIN: Final = (*FAST, "--no-baselines")

Call = tuple[str, ...]
TABLE: Final[dict[str, list[Call]]] = {
    "fleet.yaml": [
        ("lint", "FILE"),
        ("fleet", "show", "FILE"),
        ("report", "FILE"),
        ("plan", "train", "FILE", "job.yaml", *TRAIN),
        ("plan", "serve", "FILE", "service.yaml", *FAST),
        ("whatif", "FILE", "job.yaml", "--set", "job.global_batch=32", *FAST),
        ("serve", "simulate", "FILE", "service.yaml", "--seconds", "5s", "--rate", "1"),
        ("serve", "calibrate", "FILE", "service.yaml", "--log", "requests.csv"),
    ],
    "matrix.json": [("lint", "FILE"), ("fleet", "show", "FILE"), ("plan", "train", "FILE", "job.yaml", *TRAIN)],
    "job.yaml": [
        ("lint", "FILE"),
        ("plan", "train", "fleet.yaml", "FILE", *TRAIN),
        ("submit", "FILE", "--server", "http://127.0.0.1:1"),
    ],
    "service.yaml": [
        ("lint", "FILE"),
        ("plan", "serve", "fleet.yaml", "FILE", *FAST),
        ("serve", "simulate", "fleet.yaml", "FILE", "--seconds", "5s", "--rate", "1"),
        ("serve", "calibrate", "one.yaml", "FILE", "--log", "requests.csv"),
    ],
    "config.json": [("model", "FILE")],
    "profile.yaml": [("lint", "FILE")],
    "learning.yaml": [("lint", "FILE")],
    "plan.json": [
        ("lint", "FILE"),
        ("explain", "FILE"),
        ("explain", "FILE", "--why-not", "East"),
        ("report", "FILE"),
        ("simulate", "FILE"),
        ("simulate", "FILE", "--backend", "analytic", "--compat", "astra"),
        *(("export", "FILE", "--to", target) for target in ("torchrun", "megatron", "kueue", "chakra", "vllm")),
        ("plan", "train", "fleet.yaml", "job.yaml", "--planner", "hi-ppo", "--in-use", "FILE", *TRAIN),
    ],
    "serving-plan.json": [
        ("lint", "FILE"),
        ("explain", "FILE"),
        ("explain", "FILE", "--why-not", "West/0"),
        ("report", "FILE"),
        ("export", "FILE", "--to", "vllm"),
        ("export", "FILE", "--to", "sglang"),
    ],
    "layers.json": [("host", "lint", "FILE")],
    "plain.json": [("host", "apply", "FILE", "--dry-run")],
    "trace.txt": [("host", "report", "FILE")],
    "trace.txt.gz": [("host", "report", "FILE")],
    "snapshot.json": [
        ("kube", "acu", "--snapshot", "FILE"),
        ("kube", "why", "job/train", "--snapshot", "FILE"),
    ],
    "kubeconfig": [("kube", "acu", "--kubeconfig", "FILE"), ("kube", "why", "x", "--kubeconfig", "FILE")],
    "arrivals.csv": [("serve", "simulate", "fleet.yaml", "service.yaml", "--trace", "FILE")],
    "requests.csv": [("serve", "calibrate", "one.yaml", "service.yaml", "--log", "FILE")],
    "steps.csv": [("calibrate", "fleet.yaml", "job.yaml", "--run", "plan.json:FILE")],
    "vary.csv": [
        ("simulate", "plan.json", "--vary", "FILE"),
        ("replay", "fleet.yaml", "job.yaml", "--links", "FILE"),
    ],
    "rollouts.db": [("host", "rollout", "status", "r", "--state", "FILE")],
    "train.log": [
        ("host", "rollout", "add", "r", "--state", "rollouts.db", "--job", "j", "--attempt", "0",
         "--policy", "baseline", "--from", "FILE"),
    ],
    "policy.onnx": [
        ("plan", "train", "fleet.yaml", "job.yaml", "--planner", "hi-ppo", "--policy", "FILE", *TRAIN),
    ],
    "cases.json": [("bench", "serving", "FILE"), ("bench", "training", "FILE"), ("bench", "accuracy", "FILE")],
    "scenarios.json": [("bench", "replan", "FILE", "--no-seeds")],
    "runs.csv": [("bench", "astra", "FILE")],
    "checkpoint.pt": [("learn", "export", "FILE")],
}  # fmt: skip
"""By a good file, what reads it."""

NAMELESS: Final = {"train.log", "kubeconfig", "policy.onnx", "checkpoint.pt", "plain.json"}
"""Where an answer may be of something else than the file: a server that is not there, a part that is missing."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with all good files, where all commands run, with no home, cluster or torch."""
    folder = tmp_path_factory.mktemp("broken")
    texts = {"fleet.yaml": FLEET, "job.yaml": JOB, "service.yaml": SERVICE, "arrivals.csv": ARRIVALS,
             "vary.csv": VARY, "train.log": ROLLOUT, "steps.csv": STEPS, "one.yaml": ONE,
             "requests.csv": REQUESTS}  # fmt: skip
    for name, text in texts.items():
        (folder / name).write_text(text)
    documents = {"layers.json": POLICY, "plain.json": PLAIN, "kubeconfig": KUBECONFIG, "cases.json": SERVING_CASES,
                 "scenarios.json": {"scenarios": []}}  # fmt: skip
    for name, document in documents.items():
        (folder / name).write_text(json.dumps(document))
    (folder / "config.json").write_bytes((ROOT / "examples/own-model/config.json").read_bytes())
    (folder / "matrix.json").write_bytes((ROOT / "examples/fleet-seed-matrix.json").read_bytes())
    (folder / "snapshot.json").write_bytes((ROOT / "examples/cluster/snapshot.json").read_bytes())
    (folder / "profile.yaml").write_bytes(next((SOURCES / "cluster/api/profiles").glob("*.yaml")).read_bytes())
    (folder / "learning.yaml").write_bytes(next((SOURCES / "learning").glob("*.yaml")).read_bytes())
    policy = next((SOURCES / "training/hi_ppo/policies").glob("*.onnx"))
    (folder / "policy.onnx").write_bytes(policy.read_bytes())
    (folder / "runs.csv").write_text("scenario,topology\na,Ring\n")
    (folder / "checkpoint.pt").write_bytes(b"PK\x03\x04" + bytes(range(256)))
    faulty(folder)
    (folder / "trace.txt.gz").write_bytes(gzip.compress((folder / "trace.txt").read_bytes()))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for name in ("HOME", "XDG_STATE_HOME", "XDG_RUNTIME_DIR"):
            patch.setenv(name, str(folder))
        patch.delenv("KUBECONFIG", raising=False)
        for name in ("torch", "transformers"):  # the latter would remember that there is no torch
            patch.setitem(sys.modules, name, None)
        assert run(["plan", "train", "fleet.yaml", "job.yaml", "--save", "plan.json"]) == 0
        assert run(["plan", "serve", "fleet.yaml", "service.yaml", "--save", "serving-plan.json"]) == 0
        assert run(["host", "rollout", "init", "r", "--state", "rollouts.db", "--pattern", r"qps (\S+)"]) == 0
        yield folder


def places(data: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of every value, of the items of a list only the first two."""
    yield path
    if isinstance(data, dict):
        for key, value in data.items():
            yield from places(value, (*path, key))
    elif isinstance(data, list):
        for index, value in enumerate(data[:2]):
            yield from places(value, (*path, index))


def changed(data: Any, path: tuple[Any, ...], value: Any, *, removed: bool) -> Any:
    """Return a copy with the value at a path replaced or removed."""
    if not path:
        return value
    data = copy.deepcopy(data)
    inner = data
    for part in path[:-1]:
        inner = inner[part]
    if removed:
        del inner[path[-1]]
    else:
        inner[path[-1]] = value
    return data


def broken(content: bytes, draw: Callable[..., Any]) -> bytes:
    """Return a broken form: of a document a value at some place, of any file a part."""
    data = None
    if draw(st.booleans()):
        try:
            data = yaml.safe_load(content)
        except (yaml.YAMLError, UnicodeDecodeError):
            data = None
    if isinstance(data, (dict, list)):
        path = draw(st.sampled_from(list(places(data))))
        text = json.dumps(
            changed(data, path, draw(st.sampled_from(BAD)), removed=draw(st.booleans()) and bool(path))
        )
        return text.replace("Infinity", draw(st.sampled_from(["1e400", "1.0e+400", ".inf"]))).encode()
    start = draw(st.integers(0, len(content)))
    how = draw(st.sampled_from(["cut", "hole", "noise"]))
    if how == "cut":
        return content[:start]
    noise = b"" if how == "hole" else draw(st.binary(min_size=1, max_size=8))
    return content[:start] + noise + content[start + draw(st.integers(1, 40)) :]


CALLS: Final = [
    pytest.param(name, call, id=f"{' '.join(call)[:60]}:{name}") for name, calls in TABLE.items() for call in calls
]


@pytest.mark.parametrize(("name", "call"), CALLS)
def test_a_good_file_is_read(folder, capsys, name, call):
    code = run([word.replace("FILE", name) for word in call])
    assert code in CODES, capsys.readouterr().err


@pytest.mark.parametrize(("name", "call"), CALLS)
@settings(max_examples=EXAMPLES, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(data=st.data())
def test_a_broken_file_is_an_error_and_never_a_traceback(folder, capsys, name, call, data):
    check_answered(folder, capsys, name, call, broken((folder / name).read_bytes(), data.draw))


def check_answered(folder, capsys, name, call, content):
    file = folder / f"broken{Path(name).suffix}"
    for extra in folder.glob("broken*"):
        extra.unlink()
    file.write_bytes(content)
    arguments = [word.replace("FILE", file.name) for word in call]
    try:
        code = run(arguments)
    except BaseException as error:
        raise AssertionError(f"{arguments} on {file.read_bytes()[:3000]!r}: {error!r}") from error
    err = capsys.readouterr().err
    content = file.read_bytes()[:3000]
    assert code in CODES, (arguments, code, err, content)
    assert "Traceback" not in err
    lines = [line for line in err.splitlines() if re.match("error: ", line, re.IGNORECASE)]
    assert lines or code in (0, 3, 4), (arguments, code, err, content)
    # A plan that names other inputs, or has other digests, than it was made from is an error of those.
    named = (file.name, "fleet.yaml", "job.yaml", "service.yaml")
    is_named = any(known in line for line in lines for known in named)
    assert code != 2 or name in NAMELESS or is_named, (arguments, err, content)


ONCE_BROKE: Final = [
    ("plan.json", ("explain", "FILE", "--why-not", "East"), ("reasons", 0, "subject"), None),
    ("snapshot.json", ("kube", "why", "job/train", "--snapshot", "FILE"), (), "[]"),
    ("plan.json", ("explain", "FILE"), ("baselines", "best_single_domain", "found"), "false"),
    ("plan.json", ("report", "FILE"), ("baselines", "best_single_domain", "name"), None),
    ("serving-plan.json", ("report", "FILE"), ("figures",), "null"),
    ("serving-plan.json", ("report", "FILE"), ("figures",), None),
    ("serving-plan.json", ("explain", "FILE"), ("figures",), "null"),
]


@pytest.mark.parametrize(("name", "call", "path", "value"), ONCE_BROKE)
def test_a_form_that_once_broke_a_command_is_answered(folder, capsys, name, call, path, value):
    """value: as JSON; None: the key is removed."""
    data = json.loads((folder / name).read_bytes())
    form = changed(data, path, json.loads(value or "null"), removed=value is None)
    check_answered(folder, capsys, name, call, json.dumps(form).encode())


ANSWERS: Final[dict[Call, Call]] = {
    ("check",): (),
    ("lint",): ("fleet.yaml",),
    ("schema",): ("Fleet",),
    ("gpus",): (),
    ("model",): (),
    ("plan", "train"): ("fleet.yaml", "job.yaml", "--no-baselines"),
    ("plan", "serve"): ("fleet.yaml", "service.yaml"),
    ("calibrate",): ("fleet.yaml", "job.yaml", "--run", "plan.json:steps.csv"),
    ("simulate",): ("plan.json",),
    ("replay",): ("fleet.yaml", "job.yaml", "--links", "vary.csv"),
    ("explain",): ("plan.json",),
    ("whatif",): ("fleet.yaml", "job.yaml", "--set", "job.minimize=cost"),
    ("export",): ("plan.json", "--to", "torchrun"),
    ("fleet", "discover"): ("--local",),
    ("fleet", "show"): ("fleet.yaml",),
    ("learn", "evaluate"): ("--domains", "2", "--tables", "1", "--instances", "1", "--worlds", "none"),
    ("serve", "calibrate"): ("one.yaml", "service.yaml", "--log", "requests.csv"),
    ("serve", "simulate"): ("fleet.yaml", "service.yaml", "--seconds", "5s", "--rate", "1"),
    ("kube", "acu"): ("--snapshot", "snapshot.json"),
    ("kube", "why"): ("job/train", "--snapshot", "snapshot.json"),
    ("kube", "agent"): ("--once",),
    ("kube", "crds"): (),
    ("kube", "flavors"): (),
    ("host", "apply"): ("plain.json", "--dry-run"),
    ("host", "undo"): ("--dry-run",),
    ("host", "layers"): (),
    ("host", "lint"): ("layers.json",),
    ("host", "record"): ("--quick", "--seconds", "0.01"),
    ("host", "report"): ("trace.txt",),
    ("host", "rollout", "next"): ("r", "--state", "rollouts.db", "--job", "full", "--attempt", "0"),
    ("host", "rollout", "status"): ("r", "--state", "rollouts.db"),
    ("host", "rollout", "report"): ("r", "--state", "rollouts.db"),
    ("host", "threads"): (),
    ("slices",): (),
    ("bench", "simulate"): ("--plans", "1"),
}
"""What has a command answer; `-o json` and the table are both tried where it has both."""

WITHOUT: Final = {
    "a scheduler that runs answers: tests/control/test_service.py": ["up", "submit", "jobs", "job", "logs",
        "cancel", "drain"],
    "answers on stderr, or serves": ["run", "kube controller", "kube dispatch", "kube extender", "kube library",
        "kube webhook", "serve gateway", "serve worker", "host run-layered", "host rollout init",
        "host rollout change", "host rollout add", "host agent", "host enforce", "slices export"],
    "reads the history: tests/cli/test_runs.py": ["runs list", "runs show", "runs compare", "runs rm"],
    "writes a page, serves pages, prints a script: tests/web, tests/cli/test_comfort.py": ["report", "ui",
        "completion"],
    "prints objects for kubectl: tests/cluster/dra/test_dra.py": ["kube device-claim"],
    "asks running agents: tests/host/agent/test_ranks.py": ["host ranks"],
    "measures links between running domains: tests/control/test_probing.py": ["fleet probe"],
    "takes long, needs torch, a case file or root; ends by the same `emit`": ["demo", "kpi", "testbed",
        "learn train", "learn export", "bench training", "bench serving", "bench routing", "bench cluster",
        "bench slicing", "bench host", "bench accuracy", "bench planning", "bench replan", "bench learn",
        "bench heads", "bench world", "bench control", "bench astra", "bench published",
        "bench gateway", "bench pipelines", "profile"],
}  # fmt: skip


def test_every_command_that_answers_is_in_the_table():
    named = {" ".join(path) for path in ANSWERS} | {name for names in WITHOUT.values() for name in names}
    assert named == {" ".join(path[1:]) for path in BY_PATH}


BY_PATH: Final = {**LEAVES, ("strata", "slices"): slices}
"""A group that answers by itself, too."""

FORMS: Final = [
    pytest.param((*path, *arguments, *form), id=" ".join((*path, *form)))
    for path, arguments in ANSWERS.items()
    for form in ((), ("-o", "json"))
    if not form or any("--output" in parameter.opts for parameter in BY_PATH["strata", *path].params)
    if (path, form) != (("host", "record"), ("-o", "json"))  # -o is a file there
]


@pytest.mark.long("every command to its end")
@pytest.mark.parametrize("command", FORMS)
def test_an_answer_that_a_full_disk_refuses_is_one_error(folder, monkeypatch, capsys, command):
    with open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        code = run(command)
        monkeypatch.undo()
    said = capsys.readouterr().err.splitlines()
    message = "cannot write: No space left on device"
    if "json" in command:
        errors = [json.loads(line)["error"]["message"] for line in said if line.startswith("{")]
        assert (code, errors) == (5, [message])
    else:
        assert [line for line in said if line.startswith("error: ")] == [f"error: {message}"]
        assert code == 5
    assert not [line for line in said if line.startswith("Traceback")]


def test_a_serving_plan_that_lacks_one_of_its_prices_is_explained(folder):
    plan = json.loads((folder / "serving-plan.json").read_text())
    plan["figures"] |= {"usd_per_hour": None, "cost_usd_per_mtoken": 2.0}
    (folder / "broken.json").write_text(json.dumps(plan))
    assert run(["explain", "broken.json"]) == 0
