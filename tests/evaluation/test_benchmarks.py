"""The programs in `benchmarks/` are run by hand, far apart: what they import must still be there."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

import strata

PROGRAMS = sorted((Path(strata.__file__).parents[2] / "benchmarks").glob("*.py"))


pytestmark = pytest.mark.skipif(not PROGRAMS, reason="strata is not run from a clone")


def _loaded(program: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.setattr(sys, "path", list(sys.path))  # some put the clone there, to import its tests
    spec = importlib.util.spec_from_file_location(f"benchmark_{program.stem}", program)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    return module


def _needing_torch(program: Path) -> list[pytest.MarkDecorator]:
    return [pytest.mark.real("torch")] if "\nimport torch\n" in program.read_text() else []


@pytest.mark.parametrize(
    "program", [pytest.param(program, id=program.stem, marks=_needing_torch(program)) for program in PROGRAMS]
)
def test_a_program_of_the_benchmarks_finds_all_that_it_imports(
    program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert callable(_loaded(program, monkeypatch).main)


@pytest.mark.parametrize(
    ("name", "options", "key"),
    [
        pytest.param("rollout_errors", ["--runs", "1"], "effects", id="rollout_errors"),
        pytest.param("controller_step", ["--nodes", "4", "--jobs", "2"], "unchanged", id="controller_step"),
    ],
)
def test_the_smallest_form_of_a_program_prints_json(
    name: str, options: list[str], key: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (program,) = (program for program in PROGRAMS if program.stem == name)
    monkeypatch.setattr(sys, "argv", [name, *options])
    _loaded(program, monkeypatch).main()
    assert key in json.loads(capsys.readouterr().out)


def test_the_memory_of_megatron_is_taken_from_the_users_own_checkout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (program,) = (program for program in PROGRAMS if program.stem == "megatron_memory")
    main = _loaded(program, monkeypatch).main
    with pytest.raises(SystemExit, match=r"usage\.py: no such file"):
        main(str(tmp_path))
    folder = tmp_path / "megatron" / "training"
    folder.mkdir(parents=True)
    (folder / "theoretical_memory_usage.py").write_text(
        "from .utils import is_hybrid_model, print_rank_0\n"
        "def compute_weight_and_optimizer_memory(args): return 18e9 * args.pipeline_model_parallel_size\n"
        "def compute_activation_memory(args, num_microbatches): return 1e9 * num_microbatches\n"
    )
    main(str(tmp_path))
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1 + 5 * 4
    # GPT-NeoX on two stages without ZeRO, 18 bytes a parameter; 8 microbatches.
    assert [line.split()[-2] for line in lines[2:5]] == ["2.000", "36.000", "8.000"]
