"""Names, stems and windows that cannot be, by the command line: one sentence each, in time."""

from support.commands import MB, check_ended_well, check_refused, run_command

NAMES = (
    *("R26+S/16", "R50+B/8", "R+Ti/32", "C+Ti/3", "C+Ti/1", "C+Ti/0", "C9+Ti/4", "Q+Ti/4", "R+", "+Ti/16", "R50+B"),
    *("C+Ti/4@", "R26+S/32@-32", "R+R+Ti/16", "R26+S/32x2"),
)
SIZES = {"R26+S/32@100": "100", "C+Ti/4@30": "30", "R50+L/32@0": "0"}
ATTENTION = (
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
HYBRID = {
    "model.patch_dropout=0.5": "patch_dropout",
    "model.stem.widths=[]": "stem.widths",
    "model.stem.widths=[64,128,256]": "patch",
}


def train(folder, model, *changes):
    options = [word for change in changes for word in ("--overrides", change)]
    return run_command("fit", "builtin", "--model", model, "--epochs", "1", "--out", folder, *options)


def test_a_hybrid_that_there_is_not(subtests):
    for name in NAMES:
        with subtests.test(name):
            check_refused(run_command("models", name), f"model '{name}'")
    for name, size in SIZES.items():
        with subtests.test(name):
            check_refused(run_command("models", name), "image_size", size)


def test_attention_that_cannot_be(subtests, tmp_path):
    for changes in ATTENTION:
        with subtests.test(str(changes)):
            outcome = train(tmp_path / "run", "F/4@32", *changes)
            check_refused(outcome, changes[-1].partition("=")[0].removeprefix("model."))


def test_what_a_hybrid_cannot_do(subtests, tmp_path):
    for change, name in HYBRID.items():
        with subtests.test(change):
            check_refused(train(tmp_path / "run", "C+F/4@32", change), name)


def test_what_only_patches_of_pixels_can_do(subtests, tmp_path):
    """Said once the network is built, below the line that announces it."""
    for change, name in {"objective.keep_schedule=[[0.5,0.5]]": "keep_schedule", "whiten=true": "whiten"}.items():
        with subtests.test(change):
            outcome = train(tmp_path / name, "C+F/4@32", change)
            check_ended_well(outcome, seconds=2, memory=200 * MB)
            assert outcome.status == 2
            assert name in outcome.stderr.splitlines()[-1]
