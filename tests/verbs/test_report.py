"""`vitreous report` for a run, a bundle and a bare model; what it says when something is missing."""

import html
import json
import re
import shutil
from pathlib import Path

import pytest

from support.colours import COLOURS, make_bundle, make_images
from support.commands import check_refused, run_command
from vitreous import UserError, ViT, write_report
from vitreous.cli import main
from vitreous.config.data import Preprocess
from vitreous.verbs.evaluate import evaluate
from vitreous.verbs.fit import fit
from vitreous.weights.bundle import load_bundle, save_bundle


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A bundle, images in train and test, and a run that was trained on them."""
    root = tmp_path_factory.mktemp("report")
    make_bundle(root / "bundle")
    make_images(root / "data" / "train", count=6)
    make_images(root / "data" / "test", seed=50)
    fit(root / "data", weights=root / "bundle", epochs=2, out=root / "run", workers=0)
    return root


def test_fit_leaves_a_page_with_its_own_numbers(place):
    text = (place / "run" / "report.html").read_text(encoding="utf-8")
    result = json.loads((place / "run" / "result.json").read_text())
    for split in ("test", "validation"):
        assert f'id="accuracy-{split}">{100 * result[split]["top1"]:.1f}\u00a0%<' in text
        assert re.search(rf"\bof {result[split]['n']}\b", text)
    assert text.count('class="interval"') == 2  # of the test images, and of those that selected the weights
    assert text.count("optimistic") == 1
    for section in ("training", "classes", "calibration", "cost"):
        assert f'id="{section}"' in text
    assert text.count("<svg") == 7  # training, calibration, filters, positions, and how far heads look
    assert text.count('class="two"') == 3  # the most confident right image of each colour, with its overlay
    assert "<script" not in text


def test_it_can_be_written_again_and_elsewhere(place, tmp_path):
    before = (place / "run" / "report.html").read_text(encoding="utf-8")
    again = write_report(place / "run", out=tmp_path / "new" / "page.html")
    assert again == tmp_path / "new" / "page.html"
    assert again.read_text(encoding="utf-8") == before


def test_a_bundle_with_data_is_measured(place, tmp_path):
    found = evaluate(place / "bundle", place / "data").result
    path = write_report(place / "bundle", data=place / "data", out=tmp_path / "page.html")
    text = path.read_text(encoding="utf-8")
    assert f'id="accuracy-test">{100 * found.top1:.1f}\u00a0%<' in text
    assert re.search(rf"\bof {found.n}\b", text)
    assert 'id="calibration"' in text
    assert 'id="training"' not in text
    assert html.escape((place / "bundle" / "README.md").read_text().splitlines()[0]) in text  # its card


def test_a_bundle_alone_is_described(place, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = write_report(place / "bundle")
    assert path.name == "bundle-report.html"
    text = path.read_text(encoding="utf-8")
    assert all(colour in text for colour in COLOURS)
    assert text.count("<svg") == 2  # filters and positions; how far heads look needs images
    assert 'id="accuracy' not in text
    assert write_report(load_bundle(place / "bundle"), out=tmp_path / "same.html").exists()
    encoder = save_bundle(tmp_path / "encoder", ViT("P/4@16", classes=0), Preprocess(size=(16, 16)), ())
    assert 'id="accuracy' not in write_report(encoder).read_text(encoding="utf-8")
    with pytest.raises(UserError, match="encoder: "):
        write_report(encoder, data=place / "data")


def test_images_that_are_gone_are_said_to_be(place, tmp_path):
    run = shutil.copytree(place / "run", tmp_path / "run")
    config = json.loads((run / "config.json").read_text())
    config["request"]["data"] = str(tmp_path / "nowhere")
    (run / "config.json").write_text(json.dumps(config))
    text = write_report(run).read_text(encoding="utf-8")
    assert 'class="two"' not in text
    assert 'id="accuracy-test"' in text
    data = shutil.copytree(place / "data", tmp_path / "data")
    (run / "config.json").write_text(json.dumps(config).replace("nowhere", "data"))
    result = (run / "result.json").read_text().replace(str(place / "data"), str(data))
    (run / "result.json").write_text(result)
    first = json.loads(result)["test"]["surest_right"][0]["image"]
    Path(first).write_text("damaged since")
    text = write_report(run).read_text(encoding="utf-8")
    assert text.count('class="two"') == 2
    assert 'id="accuracy-test"' in text


def test_an_unreadable_image_is_listed(place, tmp_path):
    data = shutil.copytree(place / "data" / "test", tmp_path / "data")
    for i in range(40):
        shutil.copy(data / "red" / "0.png", data / "red" / f"more{i}.png")
    (data / "red" / "<bad>.png").write_text("not an image")
    text = write_report(place / "bundle", data=data, out=tmp_path / "page.html").read_text(encoding="utf-8")
    assert "&lt;bad&gt;.png: " in text
    assert "<bad>" not in text


def test_mistakes_are_answered(place, tmp_path):
    run = shutil.copytree(place / "run", tmp_path / "run")
    with pytest.raises(UserError, match="nowhere: "):
        write_report(tmp_path / "nowhere")
    with pytest.raises(UserError, match=r"page\.html: "):
        write_report(run, out=run / "result.json" / "page.html")
    kept = (run / "result.json").read_text()
    result = json.loads(kept)
    del result["test"]["bins"]
    for text in (json.dumps(result), "{}", "{"):
        (run / "result.json").write_text(text)
        with pytest.raises(UserError, match=r"result\.json: "):
            write_report(run)
    (run / "result.json").write_text(kept)
    (run / "config.json").rename(run / "elsewhere.json")
    with pytest.raises(UserError, match=r"config\.json"):
        write_report(run)
    (run / "elsewhere.json").rename(run / "config.json")
    (run / "metrics.jsonl").write_text("{")
    with pytest.raises(UserError, match=r"metrics\.jsonl"):
        write_report(run)
    (run / "result.json").unlink()
    with pytest.raises(UserError, match=f"{run}: "):
        write_report(run)


def test_the_verb_says_where_it_is(place, tmp_path, capsys):
    main(["report", str(place / "run"), "--out", str(tmp_path / "page.html")])
    assert capsys.readouterr().out.startswith(f"{tmp_path / 'page.html'} (")
    with pytest.raises(SystemExit) as stop:
        main(["report", str(place / "run"), "--data", str(tmp_path / "nothing")])
    assert stop.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_walkthrough_by_the_verb(place, tmp_path, capsys):
    image, bad = place / "data/test/red/0.png", tmp_path / "bad.png"
    bad.write_text("no")
    with pytest.raises(SystemExit) as stop:
        main(["walkthrough", str(place / "bundle"), str(image), str(bad), "--out", str(tmp_path / "out")])
    assert stop.value.code == 1
    said = capsys.readouterr()
    assert "0-walkthrough.html" in said.out
    assert "bad.png: " in said.err
    assert COLOURS[2] in (tmp_path / "out" / "0-walkthrough.html").read_text(encoding="utf-8")
    for words, says in (
        (["--head", "all"], "--head all"),
        (["--head", "2"], "head 2"),
        (["--layer", "7"], "layer 7"),
        (["--query", "500,3"], "query 500,3"),
        (["--method", "rollout"], "--method"),
    ):
        check_refused(run_command("walkthrough", place / "bundle", image, "--out", tmp_path, *words), says)
