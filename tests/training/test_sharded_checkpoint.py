"""Checkpoints of shards: what torch writes is read, and a list of contents that does more than list is refused."""

import json
import os
import pickle
from pathlib import Path

import pytest
import torch
from torch.distributed.checkpoint import save

from vitreous.storage.manifest import write_manifest
from vitreous.training.checkpoint import load_newest
from vitreous.training.sharded_checkpoint import read_shards


@pytest.mark.filterwarnings("ignore::UserWarning")  # that one process writes it all
def test_what_torch_writes_is_read(tmp_path):
    state = {
        "module": {"a.weight": torch.arange(6.0).view(2, 3), "b": torch.ones(4, dtype=torch.bfloat16)},
        "optimizers": {"a.weight|step": torch.tensor(7, dtype=torch.int64)},
    }
    save(state, checkpoint_id=tmp_path / "shards", no_dist=True)
    found = read_shards(tmp_path)
    assert found["ema"] == {}
    for part, tensors in state.items():
        assert found[part].keys() == tensors.keys()
        for name, tensor in tensors.items():
            torch.testing.assert_close(found[part][name], tensor, rtol=0, atol=0)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_flipped_bit_is_refused_and_the_earlier_checkpoint_taken(tmp_path):
    """In any of its files."""
    for number in (1, 2):
        step = tmp_path / f"checkpoints/step-{number:08}"
        save({"module": {"a": torch.full((4,), float(number))}}, checkpoint_id=step / "shards", no_dist=True)
        (step / "state.json").write_text(json.dumps({"step": number}))
        write_manifest(step)
    assert load_newest(tmp_path / "checkpoints", read_shards)[0].step == 2
    files = sorted(path for path in step.rglob("*") if path.is_file())
    assert len(files) == 4  # numbers, their list, state and manifest
    for file in files:
        content = file.read_bytes()
        middle = len(content) // 2
        file.write_bytes(content[:middle] + bytes([content[middle] ^ 4]) + content[middle + 1 :])
        point, remarks = load_newest(tmp_path / "checkpoints", read_shards)
        assert point.step == 1, file
        assert point.module["a"].tolist() == [1.0] * 4
        assert step.name in remarks[0]
        file.write_bytes(content)


class Malicious:
    """A pickle that makes a folder where it is read."""

    def __init__(self, call, *arguments):
        self.call, self.arguments = call, arguments

    def __reduce__(self):
        return self.call, self.arguments


@pytest.mark.parametrize("call", [os.mkdir, Path.mkdir, eval, torch.load])
def test_a_list_that_runs_something_is_refused_though_its_manifest_is_right(tmp_path, call):
    step = tmp_path / "checkpoints/step-00000001"
    (step / "shards").mkdir(parents=True)
    ran = tmp_path / "ran"
    argument = f"__import__('os').mkdir({str(ran)!r})" if call is eval else ran if call is Path.mkdir else str(ran)
    (step / "shards/.metadata").write_bytes(pickle.dumps({"module": Malicious(call, argument)}))
    (step / "state.json").write_text('{"step": 1}')
    write_manifest(step)
    point, remarks = load_newest(tmp_path / "checkpoints", read_shards)
    assert point is None
    assert call.__name__ in remarks[0]
    assert not ran.exists()


def test_a_list_of_something_else_is_refused(tmp_path):
    step = tmp_path / "checkpoints/step-00000001"
    (step / "shards").mkdir(parents=True)
    (step / "state.json").write_text('{"step": 1}')
    for content in (pickle.dumps([1, 2]), b"", b"\x80\x04garbage"):
        (step / "shards/.metadata").write_bytes(content)
        write_manifest(step)
        point, remarks = load_newest(tmp_path / "checkpoints", read_shards)
        assert point is None
        assert step.name in remarks[0]
