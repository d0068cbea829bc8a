"""Names, stems and windows that cannot be, by the command line: one sentence each, in time."""

import pytest

from support.commands import MB, check_ended_well, check_refused

NAMES = (
    *("R26+S/16", "R50+B/8", "R+Ti/32", "C+Ti/3", "C+Ti/1", "C+Ti/0", "C9+Ti/4", "Q+Ti/4", "R+", "+Ti/16", "R50+B"),
    *("R26+S/32@100", "C+Ti/4@30", "R50+L/32@0", "C+Ti/4@", "R26+S/32@-32", "R+R+Ti/16", "R26+S/32x2"),
)
CHANGES = (
    ("model.window=3",),
    ("model.attention=neighbourhood",),
    ("model.attention=neighbourhood", "model.window=4"),
    ("model.attention=neighbourhood", "model.window=0"),
    ("model.attention=neighbourhood", "model.window=-7"),
    ("model.attention=neighbourhood", "model.window=seven"),
    ("model.attention=local",),
    ("model.attention=axial", "model.window=3"),
    ("model.stem=resnet",),
)


@pytest.mark.parametrize("name", NAMES)
def test_a_hybrid_that_there_is_not(processes, name):
    check_refused(processes("models", name), "model" if "@" not in name else "")


@pytest.mark.parametrize("changes", CHANGES, ids=str)
def test_attention_that_cannot_be(processes, tmp_path, changes):
    options = [word for change in changes for word in ("--set", change)]
    outcome = processes("fit", "builtin", "--model", "F/4@32", "--epochs", "1", "--out", tmp_path / "run", *options)
    check_refused(outcome, changes[-1].partition("=")[0].removeprefix("model."))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (("model.patch_dropout=0.5",), "patch_dropout"),
        (("model.stem.widths=[]",), "stem.widths"),
        (("model.stem.widths=[64,128,256]",), "patch"),
    ],
    ids=str,
)
def test_what_a_hybrid_cannot_do(processes, tmp_path, changes, said):
    options = [word for change in changes for word in ("--set", change)]
    outcome = processes("fit", "builtin", "--model", "C+F/4@32", "--epochs", "1", "--out", tmp_path / "run", *options)
    check_refused(outcome, said)


@pytest.mark.parametrize("change", ["objective.keep_schedule=[[0.5,0.5]]", "whiten=true"])
def test_what_only_patches_of_pixels_can_do(processes, tmp_path, change):
    """Said once the network is built, below the line that announces it."""
    training = ("fit", "builtin", "--model", "C+F/4@32", "--epochs", "1", "--out", tmp_path / "run")
    outcome = processes(*training, "--set", change)
    check_ended_well(outcome, seconds=2, memory=200 * MB)
    assert outcome.status == 2
    said = outcome.stderr.strip().splitlines()[-1]
    assert change.partition("=")[0].removeprefix("objective.") in said
    assert "a hybrid's stem" in said
