"""Checkpoints: every layout whole, half written, torn, rolled back; and folders that lead astray."""

from __future__ import annotations

import json
import os
import struct
import zipfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.cluster.controller.checkpoint import CheckpointSearch, newest_of
from strata.cluster.controller.checkpoint_files import newest_complete, path_of
from strata.cluster.controller.checkpoint_layouts import GRACE_S, FileSeen
from tests.support.laws import examples

NOW = 1_800_000_000.0
HOUR = 3600.0


def write(root: Path, files: dict[str, bytes | str], *, age_s: float = HOUR) -> None:
    """Write files of one age."""
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        os.utime(path, (NOW - age_s, NOW - age_s))


def saved(tmp_path: Path, data: bytes = b"weights") -> bytes:
    """What torch.save writes: a zip."""
    path = tmp_path.parent / f"{tmp_path.name}.zip"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("archive/data.pkl", data)
    return path.read_bytes()


def tensors(size: int = 8) -> bytes:
    """A safetensors file of one tensor."""
    header = json.dumps({"w": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
    return len(header).to_bytes(8, "little") + header + b"\1" * size


def dcp(step: int, ranks: int = 2, *, folder: str = "step-{}") -> dict[str, bytes]:
    base = folder.format(step)
    shards = [f"__{rank}_0.distcp" for rank in range(ranks)]
    index = b"\x80\x02" + b"".join(b"X" + name.encode() for name in shards) + b"."
    return {f"{base}/.metadata": index, **{f"{base}/{name}": b"data" for name in shards}}


def trainer(step: int, *, shards: int = 2) -> dict[str, bytes | str]:
    base = f"checkpoint-{step}"
    names = [f"model-{i + 1:05}-of-{shards:05}.safetensors" for i in range(shards)]
    index = json.dumps({"weight_map": {f"w{i}": name for i, name in enumerate(names)}})
    return {
        f"{base}/model.safetensors.index.json": index,
        **{f"{base}/{name}": tensors() for name in names},
        f"{base}/optimizer.pt": b"o",
        f"{base}/training_args.bin": b"a",
        f"{base}/trainer_state.json": "{}",
    }


def megatron(step: int, tensor: int = 2, pipeline: int = 2) -> dict[str, bytes | str]:
    ranks = [f"mp_rank_{t:02}_{p:03}" for t in range(tensor) for p in range(pipeline)]
    return {f"iter_{step:07}/{rank}/model_optim_rng.pt": b"m" for rank in ranks}


def deepspeed(step: int, data: int = 2, model: int = 2) -> dict[str, bytes | str]:
    base = f"global_step{step}"
    optim = {
        f"{base}/bf16_zero_pp_rank_{d}_mp_rank_{m:02}_optim_states.pt": b"o"
        for d in range(data)
        for m in range(model)
    }
    return {**optim, **{f"{base}/mp_rank_{m:02}_model_states.pt": b"m" for m in range(model)}}


TRACKERS = ("latest", "latest_checkpointed_iteration.txt", "checkpoint-1/latest")
WRITERS: dict[str, Any] = {
    "torch-dcp": dcp,
    "hugging-face": trainer,
    "megatron": megatron,
    "deepspeed": deepspeed,
}


def search(root: Path, folder: str = "") -> CheckpointSearch:
    return newest_complete(root, folder, now_s=NOW)


def newest(root: Path) -> str:
    found = search(root).newest
    return found.path if found else ""


def why(root: Path) -> dict[str, str]:
    return {reason.subject: reason.token for reason in search(root).passed}


@pytest.mark.parametrize("layout", WRITERS)
def test_the_newest_whole_checkpoint_is_found_in_every_layout(tmp_path: Path, layout: str) -> None:
    for step in (90, 100, 1000):
        write(tmp_path, WRITERS[layout](step))
    found = search(tmp_path)
    assert found.newest is not None
    assert (found.newest.layout, found.newest.step, found.passed) == (layout, (1000,), ())


@pytest.mark.parametrize("layout", WRITERS)
def test_any_single_file_that_is_missing_or_empty_makes_the_older_one_the_choice(
    tmp_path: Path, layout: str
) -> None:
    write(tmp_path, WRITERS[layout](100))
    write(tmp_path, WRITERS[layout](200))
    older = newest_path = newest(tmp_path)
    for name in WRITERS[layout](200):
        path = tmp_path / name
        content = path.read_bytes()
        for damage in (path.unlink, lambda path=path: path.write_bytes(b"")):
            damage()
            older = newest(tmp_path)
            assert older != newest_path, name
            assert search(tmp_path).newest is not None
            write(tmp_path, {name: content})
    assert older != newest_path
    assert newest(tmp_path) == newest_path


@pytest.mark.parametrize("layout", ["hugging-face", "megatron", "deepspeed"])
def test_what_changed_a_moment_ago_is_not_finished(tmp_path: Path, layout: str) -> None:
    write(tmp_path, WRITERS[layout](100))
    fresh = WRITERS[layout](200)
    write(tmp_path, fresh, age_s=GRACE_S / 2)
    assert set(why(tmp_path).values()) == {"checkpoint-unfinished"}
    write(tmp_path, fresh, age_s=-HOUR)  # a storage whose clock is ahead
    assert set(why(tmp_path).values()) == {"checkpoint-unfinished"}
    write(tmp_path, fresh, age_s=2 * GRACE_S)
    assert why(tmp_path) == {}


@pytest.mark.parametrize("marker", [".complete", "_SUCCESS"])
def test_a_marker_makes_a_fresh_checkpoint_of_any_form_whole(tmp_path: Path, marker: str) -> None:
    write(tmp_path, {"step_5/weights.npz": b"w"}, age_s=1.0)
    assert why(tmp_path) == {"step_5": "checkpoint-unknown"}
    write(tmp_path, {f"step_5/{marker}": b""}, age_s=0.0)
    assert newest(tmp_path) == "step_5"


def test_a_marker_does_not_hide_a_missing_shard_and_not_what_was_written_after_it(tmp_path: Path) -> None:
    write(tmp_path, trainer(7) | {"checkpoint-7/.complete": b""})
    (tmp_path / "checkpoint-7/model-00002-of-00002.safetensors").unlink()
    assert why(tmp_path) == {"checkpoint-7": "checkpoint-incomplete"}
    write(tmp_path, trainer(7), age_s=0.0)
    assert why(tmp_path) == {"checkpoint-7": "checkpoint-unfinished"}


def test_a_marker_alone_is_no_checkpoint(tmp_path: Path) -> None:
    write(tmp_path, {"step_5/.complete": b"", "_SUCCESS": b""})
    assert newest(tmp_path) == ""


@pytest.mark.parametrize("name", ["tmp-checkpoint-9", "checkpoint-9.tmp-3", "checkpoint-9"])
def test_temporary_names_are_not_finished(tmp_path: Path, name: str) -> None:
    beside = "optimizer.tmp.pt" if name == "checkpoint-9" else "optimizer.pt"
    write(tmp_path, {f"{name}/model.safetensors": tensors(), f"{name}/{beside}": b"o"})
    assert newest(tmp_path) == ""


def test_a_dcp_written_over_an_older_one_is_not_taken_for_it(tmp_path: Path) -> None:
    write(tmp_path, dcp(10))
    write(tmp_path, {"step-10/__1_0.distcp": b"half"}, age_s=HOUR - 2 * GRACE_S)
    assert why(tmp_path) == {"step-10": "checkpoint-unfinished"}


@pytest.mark.parametrize(
    ("writer", "tracker", "is_after_barrier"),
    [
        pytest.param(megatron, {"latest_checkpointed_iteration.txt": "100\n"}, True, id="megatron"),
        pytest.param(deepspeed, {"latest": "global_step100"}, False, id="deepspeed"),
    ],
)
def test_what_is_beyond_the_tracker_is_passed_over_and_one_written_after_a_barrier_ends_the_wait(
    tmp_path: Path, writer: Any, tracker: dict[str, str], is_after_barrier: bool
) -> None:
    write(tmp_path, writer(200))
    write(tmp_path, writer(50))
    write(tmp_path, {**writer(100), **tracker}, age_s=0.0)
    found = search(tmp_path)
    assert found.newest is not None
    assert found.newest.step == (100 if is_after_barrier else 50,)
    assert found.passed[0].token == "checkpoint-unannounced"


def test_zero_states_of_the_last_ranks_must_not_be_missing(tmp_path: Path) -> None:
    write(tmp_path, deepspeed(1, data=4) | deepspeed(2, data=3) | {"latest": "global_step2"})
    assert (newest(tmp_path), why(tmp_path)) == ("global_step1", {"global_step2": "checkpoint-incomplete"})


def test_what_a_name_counts_must_be_there(tmp_path: Path) -> None:
    shards = {f"checkpoint-1/pytorch_model-{i:05}-of-00003.bin": b"w" for i in (1, 3)}
    write(tmp_path, shards)
    assert why(tmp_path) == {"checkpoint-1": "checkpoint-incomplete"}
    write(tmp_path, {"checkpoint-1/pytorch_model-00002-of-00003.bin": b"w"})
    assert newest(tmp_path) == "checkpoint-1"


def test_a_trainers_first_checkpoint_ends_with_its_state(tmp_path: Path) -> None:
    write(tmp_path, trainer(1))
    (tmp_path / "checkpoint-1/trainer_state.json").unlink()
    assert why(tmp_path) == {"checkpoint-1": "checkpoint-incomplete"}


@pytest.mark.parametrize("tracker", ["release", "", "\xff\xfe garbage", "9" * 500])
def test_a_tracker_that_names_no_step_hides_nothing(tmp_path: Path, tracker: str) -> None:
    write(tmp_path, {**megatron(5), "latest_checkpointed_iteration.txt": tracker})
    assert newest(tmp_path) == "iter_0000005"


def test_a_trainer_on_deepspeed_is_one_checkpoint_of_two_layouts(tmp_path: Path) -> None:
    inner = {f"checkpoint-8/{name}": data for name, data in deepspeed(8).items()}
    write(tmp_path, {**trainer(8), **inner, "checkpoint-8/latest": "global_step8"})
    found = search(tmp_path).newest
    assert found is not None
    assert (found.path, found.layout) == ("checkpoint-8", "deepspeed+hugging-face")
    (tmp_path / "checkpoint-8/latest").write_text("global_step9")
    assert why(tmp_path) == {"checkpoint-8": "checkpoint-incomplete"}


def test_what_all_older_ones_have_must_not_be_missing(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        parts = {"model.safetensors": tensors(), "optimizer.bin": b"o", f"random_states_{step}.pth": b"r"}
        write(tmp_path, {f"checkpoint-{step}/{name}": data for name, data in parts.items()})
    (tmp_path / "checkpoint-3/optimizer.bin").unlink()
    assert (newest(tmp_path), why(tmp_path)) == ("checkpoint-2", {"checkpoint-3": "checkpoint-incomplete"})


@pytest.mark.parametrize(
    ("names", "best"),
    [
        pytest.param(
            ["epoch=0-step=900.ckpt", "epoch=1-step=1000.ckpt"], "epoch=1-step=1000.ckpt", id="lightning"
        ),
        pytest.param(["net-2_5.ckpt", "net-1_1875.ckpt", "net-2_40.ckpt"], "net-2_40.ckpt", id="mindspore"),
        pytest.param(["ckpt.pt"], "ckpt.pt", id="one"),
    ],
)
def test_checkpoints_of_one_file_are_ordered_by_their_steps(tmp_path: Path, names: list[str], best: str) -> None:
    write(tmp_path, dict.fromkeys(names, saved(tmp_path)))
    assert newest(tmp_path) == best


def test_a_zip_without_its_end_is_torn(tmp_path: Path) -> None:
    whole = saved(tmp_path)
    damaged = {"step_2.pt": whole[:-30], "step_3.pt": b"\0" * 4096, "step_4.pt": b""}
    write(tmp_path, {"step_1.pt": whole} | damaged)
    assert newest(tmp_path) == "step_1.pt"
    assert list(why(tmp_path).values()) == ["checkpoint-incomplete", "checkpoint-torn", "checkpoint-torn"]


@pytest.mark.parametrize("damage", [tensors()[:-1], b"\xff" * 8 + b"{}", b"\0" * 64, b"\2\0\0\0\0\0\0\0[]",
     b'\x21\0\0\0\0\0\0\0{"w":{"data_offsets":[0,1e999]} } '],
)  # fmt: skip
def test_a_safetensors_file_shorter_than_its_header_says_is_torn(tmp_path: Path, damage: bytes) -> None:
    write(tmp_path, {"checkpoint-1/model.safetensors": damage})
    assert why(tmp_path) == {"checkpoint-1": "checkpoint-torn"}


@pytest.mark.parametrize("index", ["", "[]", "{", '{"weight_map": 3}', "[" * 50_000])
def test_an_index_that_is_none_is_torn_or_incomplete(tmp_path: Path, index: str) -> None:
    write(tmp_path, {"checkpoint-1/model.safetensors.index.json": index, "checkpoint-1/m.safetensors": tensors()})
    assert newest(tmp_path) == "" or index == ""


def test_without_steps_the_newest_by_time_is_taken(tmp_path: Path) -> None:
    write(tmp_path, {"a/model.safetensors": tensors()}, age_s=2 * HOUR)
    write(tmp_path, {"b/model.safetensors": tensors()}, age_s=HOUR)
    assert newest(tmp_path) == "b"


def test_the_folder_itself_may_be_the_checkpoint(tmp_path: Path) -> None:
    write(tmp_path, dcp(0, folder="."))
    assert newest(tmp_path) == "."


def test_nothing_there_is_no_error(tmp_path: Path) -> None:
    write(tmp_path, {"notes.txt": "hello"})
    assert search(tmp_path) == CheckpointSearch(None, ())
    assert [str(reason) for reason in search(tmp_path, "absent").passed] == ["absent: there is no such folder"]


@pytest.mark.parametrize(
    "folder", ["..", "a/../..", "/etc", "a\0b", "x" * 5000, "leads-out", "leads-out/inner", "$(HOME)"]
)
def test_a_folder_outside_the_root_is_refused(tmp_path: Path, folder: str) -> None:
    outside = tmp_path / "outside"
    write(outside, {"inner/step-1/.metadata": b"__0_0.distcp"})
    root = tmp_path / "root"
    root.mkdir()
    (root / "leads-out").symlink_to(outside)
    (refused,) = search(root, folder).passed
    assert refused.token == "checkpoint-unreadable"
    assert refused.subject.isprintable()


def test_a_folder_may_be_named_by_its_whole_path(tmp_path: Path) -> None:
    write(tmp_path, {f"job/{name}": data for name, data in dcp(3).items()})
    folder = str(tmp_path / "job")
    assert path_of(folder, search(tmp_path, folder)) == f"{folder}/step-3"
    assert path_of(folder, CheckpointSearch(None)) == ""


@pytest.mark.parametrize("name", ["a\nb_step-9", "$(SECRET)_step-9"])
def test_names_that_a_variable_should_not_hold_are_left_out(tmp_path: Path, name: str) -> None:
    write(tmp_path, dcp(1))
    write(tmp_path / name, dcp(9, folder="."))
    assert newest(tmp_path) == "step-1"


def test_a_link_to_itself_leads_nowhere(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for folder in ("loop", "loop/inner"):
        assert [reason.token for reason in search(tmp_path, folder).passed] == ["checkpoint-unreadable"]


def test_a_zip_that_claims_several_disks_is_torn(tmp_path: Path) -> None:
    locator = struct.pack("<4sLQL", b"PK\x06\x07", 0, 0, 7)
    write(tmp_path, {"step_1.pt": saved(tmp_path)[:-22] + locator + saved(tmp_path)[-22:]})
    assert why(tmp_path) == {"step_1.pt": "checkpoint-torn"}


@examples(200)
@given(
    names=st.sets(st.sampled_from([*dcp(2), *trainer(1), *megatron(3), *deepspeed(4), *TRACKERS, "last.pt"])),
    content=st.binary(max_size=80) | st.sampled_from([b"__0_0.distcp", b'{"weight_map": {"a": 1}}', b"3"]),
    size=st.integers(0, 3),
    age_s=st.floats(-100, 1e6),
)
def test_no_files_make_it_raise_and_what_is_found_is_among_them(
    names: set[str], content: bytes, size: int, age_s: float
) -> None:
    files = {name: FileSeen(size, NOW - age_s) for name in names}
    found = newest_of(files, read=lambda path: content, is_torn=lambda path: False, now_s=NOW)
    if found.newest is not None:
        assert any(name.startswith(found.newest.path) for name in names)
        assert size > 0


def test_links_inside_a_folder_are_as_if_they_were_not_there(tmp_path: Path) -> None:
    root = tmp_path / "root"
    write(tmp_path, dcp(9, folder="elsewhere"))
    write(root, dcp(1))
    (root / "step-9").symlink_to(tmp_path / "elsewhere")
    assert newest(root) == "step-1"
    (root / "step-1/__1_0.distcp").unlink()
    (root / "step-1/__1_0.distcp").symlink_to(tmp_path / "elsewhere/__1_0.distcp")
    assert why(root) == {"step-1": "checkpoint-incomplete"}


def test_a_pipe_is_no_file_and_hangs_nobody(tmp_path: Path) -> None:
    write(tmp_path, dcp(1))
    os.mkfifo(tmp_path / "latest")
    assert newest(tmp_path) == "step-1"


def test_too_many_files_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strata.cluster.controller.checkpoint_files.MOST_FILES", 3)
    write(tmp_path / "job", dcp(1) | dcp(2))
    assert [str(reason) for reason in search(tmp_path, "job").passed] == ["job: has more than 3 files"]


def test_a_folder_that_may_not_be_read_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> None:
        raise PermissionError(13, "Permission denied")

    write(tmp_path, dcp(1))
    monkeypatch.setattr("os.scandir", refuse)
    assert [str(reason) for reason in search(tmp_path).passed] == ["Permission denied"]


@pytest.mark.real("torch")
@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_what_torch_itself_writes_is_whole_until_a_file_goes(tmp_path: Path) -> None:
    import torch
    import torch.distributed.checkpoint as torch_dcp

    state = {"w": torch.ones(4), "step": torch.tensor(1)}
    for step in (1, 2):
        torch_dcp.save(state, checkpoint_id=tmp_path / f"step-{step}", no_dist=True)
    torch.save(state, tmp_path / "last.pt")
    for path in tmp_path.rglob("*"):
        os.utime(path, (NOW - HOUR, NOW - HOUR))
    found = newest_complete(tmp_path, now_s=NOW)
    assert found.newest is not None
    assert found.newest.path == "step-2"
    for path in (tmp_path / "step-2").glob("*.distcp"):
        path.unlink()
    assert newest(tmp_path) == "step-1"
