"""`vitreous glossary`."""

import json

import pytest

from support.commands import run_command
from vitreous.errors import UserError
from vitreous.glossary import GLOSSARY
from vitreous.verbs.glossary import Glossary


def test_words_are_found_in_any_case_and_number():
    assert list(Glossary(["ece", "Epochs", "heads"]).run()) == ["ECE", "epoch", "head"]
    assert list(Glossary(["frozen", "features"]).run()) == ["frozen features"]
    assert list(Glossary(["Frozen", "features"]).run()) == ["frozen features"]
    assert Glossary().run() == GLOSSARY


def test_an_unknown_word_is_refused():
    with pytest.raises(UserError, match="epoch"):
        Glossary(["epok"]).run()


def test_every_entry_is_one_sentence(subtests):
    assert list(GLOSSARY) == sorted(GLOSSARY, key=str.lower)
    for word, meaning in GLOSSARY.items():
        with subtests.test(word=word):
            assert meaning.endswith(".")
            assert ". " not in meaning.replace("OpenVINO or ONNX", "")
            assert "|" not in meaning


def test_the_command():
    assert json.loads(run_command("glossary", "bundle", "--json").stdout) == {"bundle": GLOSSARY["bundle"]}
