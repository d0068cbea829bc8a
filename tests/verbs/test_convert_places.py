"""Where import and export write: never over what is not theirs, and so that others can read it."""

import json
import os
import re
import stat

import numpy as np
import pytest
import torch
import transformers as hf
from safetensors.torch import save_file

from support.colours import make_bundle
from support.published import timm_like
from support.tiny_models import preprocess_for, random_model
from vitreous import UserError, export_weights, import_weights, load
from vitreous.cli import main
from vitreous.weights.bundle import load_bundle
from vitreous.weights.huggingface import write_huggingface
from vitreous.weights.source import open_weights


@pytest.fixture
def source(tmp_path):
    """A file of weights in a folder with other things."""
    folder = tmp_path / "ckpts"
    (folder / "sub").mkdir(parents=True)
    (folder / "thesis.txt").write_text("years of work")
    save_file(timm_like(), folder / "w.safetensors")
    return folder / "w.safetensors"


def held(folder):
    return {str(path.relative_to(folder)): path.is_file() and path.read_bytes() for path in folder.rglob("*")}


def test_import_does_not_replace_what_is_no_bundle(source, tmp_path_factory, monkeypatch):
    before, empty = held(source.parent), tmp_path_factory.mktemp("empty")
    monkeypatch.chdir(source.parent)
    for out in (source.parent, ".", ".."):
        with pytest.raises(UserError, match=re.escape(f"{out}: ")):
            import_weights(source, out)
    monkeypatch.chdir(empty)
    with pytest.raises(UserError, match="out=''"):
        import_weights(source, "")
    with pytest.raises(UserError, match=r"thesis\.txt, w\.safetensors"):
        import_weights(source, source.parent)
    monkeypatch.chdir(source.parent)
    with pytest.raises(UserError, match=r"thesis\.txt"):
        import_weights(source, "thesis.txt")
    assert held(source.parent) == before


def test_a_bundle_is_replaced_unless_something_was_put_into_it(source, tmp_path):
    out = tmp_path / "b"
    import_weights(source, out)
    import_weights(source, out, classes=0)
    assert load_bundle(out).labels == ()
    (out / "thesis.txt").write_text("years of work")
    with pytest.raises(UserError, match=r"thesis\.txt"):
        import_weights(source, out)
    assert (out / "thesis.txt").exists()
    (tmp_path / "empty").mkdir()
    import_weights(source, tmp_path / "empty")


def test_the_source_is_not_written_over(tmp_path):
    bundle = make_bundle(tmp_path / "run" / "bundle")
    before = held(tmp_path)
    for given, out in ((bundle, bundle), (tmp_path / "run", bundle), (bundle / "model.safetensors", bundle)):
        with pytest.raises(UserError, match=f"{out}: "):
            import_weights(given, out)
    for to in ("timm", "huggingface"):
        for out in (bundle, tmp_path / "run"):
            with pytest.raises(UserError, match=f"{out}: "):
                export_weights(bundle, out, to=to)
    assert held(tmp_path) == before
    export_weights(bundle, tmp_path / "t", to="timm")
    with pytest.raises(UserError, match=f"{tmp_path / 't'}: "):
        export_weights(tmp_path / "t", tmp_path / "t", to="timm")


@pytest.mark.parametrize("to", ["timm", "huggingface"])
def test_an_export_replaces_an_earlier_one_and_all_may_read_it(tmp_path, to):
    bundle = make_bundle(tmp_path / "b")
    for _ in range(2):
        export_weights(bundle, tmp_path / "out", to=to)
    modes = {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "out").iterdir()}
    umask = os.umask(0)
    os.umask(umask)
    assert modes == {0o666 & ~umask}


def test_an_npz_is_replaced_and_nothing_else(tmp_path):
    bundle, out = make_bundle(tmp_path / "b"), tmp_path / "x.npz"
    export_weights(bundle, out, to="google")
    export_weights(bundle, out, to="google")
    np.savez(tmp_path / "data.npz", images=np.zeros(3))
    with np.load(out) as published:
        np.savez(tmp_path / "published.npz", **published)  # the same tensors, from somebody else
    (tmp_path / "folder.npz").mkdir()
    (tmp_path / "x.npz.txt").write_text("vitreous 0.1.0")
    os.link(tmp_path / "x.npz.txt", tmp_path / "words.npz")
    for name in ("data.npz", "published.npz", "folder.npz", "words.npz"):
        with pytest.raises(UserError, match=f"{name}: "):
            export_weights(bundle, tmp_path / name, to="google")
    with pytest.raises(UserError, match=f"{out}: "):
        export_weights(out, out, to="google")
    assert not list(tmp_path.glob(".*.new"))


def test_the_line_that_opens_an_export_opens_it(capsys, tmp_path):
    bundle = make_bundle(tmp_path / "b")
    import_weights(bundle, tmp_path / "bare", classes=0)
    for given, auto in ((bundle, "AutoModelForImageClassification"), (tmp_path / "bare", "AutoModel")):
        out = tmp_path / auto
        main(["export", str(given), str(out), "--to", "huggingface"])
        assert f'transformers.{auto}.from_pretrained("{out}")' in capsys.readouterr().out
        getattr(hf, auto).from_pretrained(out)


def test_a_large_epsilon_has_no_place_in_the_formats_of_timm_and_google(tmp_path):
    model = random_model(width=64, image_size=(16, 16), norm_eps=1e-3)
    write_huggingface(tmp_path / "hf", model, preprocess_for(model), tuple("abcde"), {})
    for to in ("timm", "google"):
        with pytest.raises(UserError, match=r"0\.001.*--epsilon 1e-6"):
            export_weights(tmp_path / "hf", tmp_path / "out.npz", to=to)
    import_weights(tmp_path / "hf", tmp_path / "b", epsilon=1e-6)
    export_weights(tmp_path / "b", tmp_path / "t", to="timm")
    assert open_weights(tmp_path / "t").model.config.norm_eps == 1e-6
    for wrong in (0.0, float("nan")):
        with pytest.raises(UserError, match=f"epsilon={wrong}"):
            import_weights(tmp_path / "hf", tmp_path / "c", epsilon=wrong)


def test_a_bundle_that_is_published_tells_nothing_of_this_machine(source, tmp_path):
    import_weights(source, tmp_path / "b")
    for name in ("README.md", "config.json"):
        assert str(tmp_path) not in (tmp_path / "b" / name).read_text()
    info = load_bundle(tmp_path / "b").info
    assert info["imported"] == "w.safetensors"
    assert info["notes"][0].startswith("w.safetensors: ")


def test_classes_called_by_numbers_have_names(capsys, source, tmp_path):
    (tmp_path / "names.txt").write_text("0\n1\n2\n3\n4\n")
    main(["import", str(source), str(tmp_path / "b"), "--labels", str(tmp_path / "names.txt")])
    assert "--labels" not in capsys.readouterr().out
    assert import_weights(tmp_path / "b", tmp_path / "c").numbered is False
    main(["import", str(source), str(tmp_path / "d"), "--json", "--heads", "4"])
    said = json.loads(capsys.readouterr().out)
    assert said["numbered"] is True
    assert load_bundle(tmp_path / "d").model.config.heads == 4


def test_a_backbone_opens_in_a_notebook(tmp_path):
    torch.save(timm_like(classes=0), tmp_path / "dino.pth")
    model = load(tmp_path / "dino.pth")
    assert model.vit(torch.zeros(1, 3, 32, 32)).shape == (1, 128)
    with pytest.raises(UserError, match=r"dino\.pth"):
        model.predict(tmp_path / "x.png")
