"""The page writes numbers as the rest of the package does."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

import vitreous
from vitreous.report.numbers import percent

BARS = Path(vitreous.__file__).parent / "server" / "page" / "static" / "bars.js"
VALUES = (0, 0.0004, 0.0996, 0.1, 0.1234, 0.5, 0.9951, 0.9994, 0.9996, 1)


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
def test_per_cents_are_those_of_python():
    code = f"import {{ percent }} from {json.dumps(BARS.as_uri())};"
    code += f"console.log(JSON.stringify({list(VALUES)}.map(percent)))"
    run = subprocess.run(
        ["node", "--input-type=module", "-e", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert json.loads(run.stdout) == [percent(value) for value in VALUES]
