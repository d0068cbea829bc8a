"""The public names, and that asking for them is cheap."""

import subprocess
import sys

import pytest

import vitreous


def test_the_public_names():
    assert vitreous.__all__ == sorted(vitreous.__all__)
    assert set(vitreous.__all__) == set(vitreous._HOMES)
    for name in vitreous.__all__:
        assert getattr(vitreous, name).__doc__


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="nonsense"):
        _ = vitreous.nonsense


def test_importing_it_does_not_import_torch(subtests):
    for module in ["vitreous", "vitreous.cli", "vitreous.verbs.models"]:
        with subtests.test(module=module):
            code = f"import sys, {module}; sys.exit('torch' in sys.modules)"
            assert subprocess.run([sys.executable, "-c", code]).returncode == 0
