"""Write the pages that are made from the program itself; with --check, fail if one is out of date.

python docs/generate.py [--check]
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from vitreous.cli import VERBS
from vitreous.jobs.models import models

DOCS = Path(__file__).parent


def command_line() -> str:
    """Every verb's help, as the command prints it."""
    page = ["# The command line", "", "Made by `make docs` from the command itself.", ""]
    for words in ([], *([verb] for verb in sorted(VERBS))):
        page += [f"## `{' '.join(['vitreous', *words])}`", "", "```text", _help(words), "```", ""]
    return "\n".join(page)


def _help(words: list[str]) -> str:
    run = "from vitreous.cli import main; main()"
    environment = {**os.environ, "COLUMNS": "100", "NO_COLOR": "1", "PYTHONIOENCODING": "utf-8"}
    done = subprocess.run(
        [sys.executable, "-c", run, *words, "--help"],
        capture_output=True,
        encoding="utf-8",
        env=environment,
        check=True,
    )
    return "\n".join(line.rstrip() for line in done.stdout.strip().splitlines())


def model_table() -> str:
    """The family and its cost."""
    page = [
        "# The models",
        "",
        "Made by `make docs` from `vitreous models`. For one picture and 1,000 classes. GFLOPs: forward, with a",
        "multiplication and an addition counted as two; training MB: activations that a float32 step keeps for the",
        "backward pass. Published tables often count the two as one, and the whole of the last block although only its",
        "class token is read: B/16 is 17.6 there.",
        "",
        "| model | pixels | tokens | width | depth | heads | parameters | GFLOPs | training MB |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for row in models():
        shape = f"{row.image_size[0]} | {row.tokens} | {row.width} | {row.depth} | {row.heads}"
        page.append(f"| {row.name} | {shape} | {row.parameters:,} | {row.gflops:,.2f} | {row.activation_mb:,.1f} |")
    return "\n".join([*page, ""])


PAGES = {"cli.md": command_line, "models.md": model_table}


def main() -> None:
    stale = []
    for name, make in PAGES.items():
        path, text = DOCS / name, make()
        if "--check" in sys.argv[1:]:
            if not path.exists() or path.read_text(encoding="utf-8") != text:
                stale.append(name)
        else:
            path.write_text(text, encoding="utf-8")
    if stale:
        sys.exit(f"out of date: {', '.join(stale)} in docs; run `make docs` and commit what it writes")


if __name__ == "__main__":
    main()
