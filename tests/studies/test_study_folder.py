"""One kind of folder for every study: what it refuses, what it goes on with, and what it deletes."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from vitreous import UserError
from vitreous.callbacks import Callbacks
from vitreous.data.packed import ArraySource
from vitreous.data.source import Data
from vitreous.studies.folder import KINDS, StudyConfig, hold_study, open_study, read_study, write_result
from vitreous.studies.requests import CompareRequest, SelfTrainRequest, TransferRequest
from vitreous.training.folder import DataIdentity

REQUESTS = {
    "compare": CompareRequest("d.npz", models=("P/4@32",), fractions=(0.1, 1.0), repeats=2, budget="1h"),
    "transfer": TransferRequest("bundle", tasks=("pets",), protocols=("knn", "linear")),
    "self-train": SelfTrainRequest("labelled", "unlabelled", rounds=2, overrides={"batch_size": "8"}),
}


def data(count=6):
    images, labels = torch.zeros(count, 3, 4, 4, dtype=torch.uint8), np.arange(count) % 2
    return DataIdentity.of(Data({"train": ArraySource("d.npz", images, labels, ("a", "b"))}, ("a", "b")))


def config(kind="compare", **more):
    return StudyConfig(replace(REQUESTS[kind], **more), {"data": data()}, {"seconds": 3.5})


def opened(folder, now, free=(), overwrite=False):
    return open_study(folder, now, {"data": "photos"}, free, overwrite=overwrite)


def test_what_is_written_is_read_again(tmp_path, subtests):
    assert set(REQUESTS) == set(KINDS)
    for kind in KINDS:
        with subtests.test(kind):
            folder = tmp_path / kind
            assert opened(folder, config(kind)) is None
            with hold_study(folder, kind, None, Callbacks(), overwrite=False):
                config(kind).write(folder)
            assert json.loads((folder / "config.json").read_text())["kind"] == kind
            found = opened(folder, config(kind))
            assert (found.data, found.plan) == ({"data": data()}, {"seconds": 3.5})
            assert type(found.request) is type(REQUESTS[kind])
            for other in KINDS.keys() - {kind}:
                with pytest.raises(UserError, match=f"{folder}: .*{kind}"):
                    read_study(folder, other)


def test_another_request_or_other_data_are_refused_with_what_to_do(tmp_path, subtests):
    config().write(tmp_path)
    for name, value, named in (
        ("budget", "2h", "budget='1h'.*'2h'"),
        ("equal", "flops", "equal='time'"),
        ("data", "e.npz", r"data='d\.npz'"),
        ("image_size", 16, "image-size=None.* 16"),
        ("overrides", {"batch_size": "8"}, "overrides={}"),
        ("repeats", 1, "repeats=2.* 1"),
    ):
        with subtests.test(name), pytest.raises(UserError, match=f"{tmp_path}: .*{named}.*--overwrite.*--out"):
            opened(tmp_path, config(**{name: value}))
    assert opened(tmp_path, config(budget="60m")) is not None  # the same time
    assert opened(tmp_path, config(repeats=3), free=("repeats",)) is not None
    with pytest.raises(UserError, match=rf"photos: .*\b8 train .*\b6\b.*{tmp_path} .*--overwrite.*--out"):
        opened(tmp_path, replace(config(), data={"data": data(8)}))
    assert opened(tmp_path, config(budget="2h"), overwrite=True) is None


def test_what_another_process_has_done_meanwhile_is_not_written_over(tmp_path):
    """Both found the folder empty, the other was first and has ended."""
    saved = opened(tmp_path, config())
    with hold_study(tmp_path, "compare", None, Callbacks(), overwrite=False):
        config(repeats=3).write(tmp_path)
    with (
        pytest.raises(UserError, match=str(tmp_path)),
        hold_study(tmp_path, "compare", saved, Callbacks(), overwrite=False),
    ):
        pytest.fail("the folder is not what it was")
    assert read_study(tmp_path, "compare").request.repeats == 3


def test_overwriting_deletes_the_study_and_nothing_else(tmp_path):
    config().write(tmp_path)
    write_result(tmp_path, "compare", {"finished": True}, '<!doctype html><meta name="generator" content="vitreous 0">')
    (tmp_path / "cells" / "a").mkdir(parents=True)
    (tmp_path / "notes.txt").write_text("mine")
    with hold_study(tmp_path, "compare", None, Callbacks(), overwrite=True):
        assert sorted(path.name for path in tmp_path.iterdir()) == [".vitreous.lock", "notes.txt"]


def test_a_damaged_file_is_refused_and_can_be_overwritten(tmp_path, subtests):
    for content in ("{}", '{"request": {}}', '{"kind": "compare", "request": 3}', "[1]", "{"):
        (tmp_path / "config.json").write_text(content)
        with subtests.test(content), pytest.raises(UserError, match=str(tmp_path)):
            read_study(tmp_path, "compare")
    (tmp_path / "config.json").write_text('{"kind": "compare", "request": 3}')
    assert opened(tmp_path, config(), overwrite=True) is None


def test_a_folder_with_other_things_is_refused_and_an_empty_one_is_not(tmp_path):
    assert read_study(tmp_path, "compare") is None
    assert read_study(tmp_path / "new", "compare") is None
    (tmp_path / "thesis.txt").write_text("precious")
    for overwrite in (False, True):
        for place in (tmp_path, tmp_path / "thesis.txt"):
            with pytest.raises(UserError, match=r"thesis\.txt"):
                opened(place, config(), overwrite=overwrite)
