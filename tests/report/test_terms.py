"""Jargon on a page carries its meaning from the glossary, once."""

import re
from html import unescape

from support.comparisons import comparison
from support.contents import plain_page, self_training
from support.transfers import FOUND
from vitreous.glossary import GLOSSARY
from vitreous.studies.compare.page import comparison_page
from vitreous.studies.transfer.page import transfer_page


def test_terms_have_the_glossary_s_words_and_no_page_says_one_twice(subtests):
    pages = {
        "report": plain_page(6),
        "comparison": comparison_page(comparison()),
        "transfer": transfer_page(FOUND),
        "self-training": self_training("a class", rounds=2),
    }
    for name, page in pages.items():
        with subtests.test(name):
            marked = [unescape(title) for title in re.findall(r'<abbr title="([^"]*)">', page)]
            assert marked
            assert set(marked) <= set(GLOSSARY.values())
            assert len(marked) == len(set(marked))
