"""Write the pages that are made from the program itself; with --check, fail if one is out of date.

python docs/generate.py [--check]
"""

from __future__ import annotations

import io
import json
import os
import re
import runpy
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any
from unittest.mock import patch

import measured
import measured_engines
import measured_scale
import measured_serving
from vitreous.cli import main as command
from vitreous.cli import verb_table
from vitreous.data.corrupt import AS_PUBLISHED, CORRUPTIONS
from vitreous.data.datasets.table import DATASETS
from vitreous.glossary import GLOSSARY
from vitreous.inputs import format_bytes
from vitreous.training.recipes.supervised import RECIPES
from vitreous.verbs.data import list_data
from vitreous.verbs.models import ModelRow, models
from vitreous.weights.published import WEIGHTS

DOCS = Path(__file__).parent
RESULTS = DOCS.parent / "benchmarks" / "results"


def command_line() -> str:
    """Every verb's help, as the command prints it."""
    page = ["# The command line", "", "Made by `make docs` from the command itself.", ""]
    for words in ([], *(verb.split() for verb in verb_table())):
        page += [f"## `{' '.join(['vitreous', *words])}`", "", "```text", _help(words), "```", ""]
    return "\n".join(page)


def _help(words: list[str]) -> str:
    printed = io.BytesIO()
    with (
        io.TextIOWrapper(printed, encoding="utf-8", write_through=True) as out,
        redirect_stdout(out),
        patch.dict(os.environ, COLUMNS="100", NO_COLOR="1"),
    ):
        command([*words, "--help"])
        text = printed.getvalue().decode()
    return "\n".join(line.rstrip() for line in text.strip().splitlines())


def glossary_page() -> str:
    """The words, one sentence each."""
    page = [
        "# Glossary",
        "",
        "Made by `make docs`; `vitreous glossary` prints it.",
        "",
        "| word | meaning |",
        "| --- | --- |",
    ]
    return "\n".join([*page, *(f"| {word} | {meaning} |" for word, meaning in GLOSSARY.items()), ""])


def model_table() -> str:
    """The family and its cost."""
    page = [
        "# The models",
        "",
        "Made by `make docs` from `vitreous models`. For one image and 1,000 classes. GFLOPs: forward, with a",
        "multiplication and an addition counted as two; training MB: activations that a float32 step keeps for the",
        "backward pass. Published tables often count the two as one, and the whole of the last block although only its",
        "class token is read: B/16 is 17.6 there.",
        "",
        "| model | pixels | tokens | width | depth | heads | parameters | GFLOPs | training MB |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for row in models():
        assert isinstance(row, ModelRow)
        of_tokens = ("" if one is None else str(one) for one in (row.tokens, row.width, row.depth, row.heads))
        shape = " | ".join([str(row.image_size[0]), *of_tokens])
        page.append(f"| {row.name} | {shape} | {row.parameters:,} | {row.gflops:,.2f} | {row.activation_mb:,.1f} |")
    page += [
        "",
        "## Published weights",
        "",
        "Every command takes a name where it takes a model: `vitreous fit photos/ --weights s16`. The first use",
        "downloads the weights from the Hugging Face hub into its cache (`HF_HOME`), resumes a download that broke",
        "and compares the file with the hub's SHA-256; later the cache is enough. `HF_ENDPOINT` takes a mirror,",
        "`HTTPS_PROXY` a proxy, `VITREOUS_OFFLINE=1` downloads nothing. None of these asks for consent. IN: ImageNet.",
        "Accuracy on the validation images of ImageNet-1k: top-1 from timm's list of results, the others from papers.",
        "",
        "| name | model | parameters | MB | licence | trained on | accuracy, % | repository |",
        "| --- | --- | ---: | ---: | --- | --- | --- | --- |",
    ]
    for name, one in WEIGHTS.items():
        sizes = f"{one.parameters:,} | {one.megabytes:,.0f}"
        facts = f"{one.licence} | {one.data} | {one.accuracy:.1f} {one.measured}"
        page.append(f"| `{name}` | {one.model} | {sizes} | {facts} | {one.repository} |")
    return "\n".join([*page, ""])


def explain_page() -> str:
    """The page on explanations with the tables of its benchmark."""
    result = _result("explain")
    tables = {
        "scores": measured.scores_table(result["score"]),
        "speed": measured.speed_table(result["speed"]),
        "memory": measured.memory_table(result["memory"]),
    }
    return _filled("explain.md", tables)


def pretraining_page() -> str:
    """The page on learning without labels with the tables of its benchmark."""
    result = _result("self_supervised")
    tables = {
        "features": measured.features_table(result),
        "tenth": measured.tenth_table(result["finetune"]),
        "depths": measured.depths_table(result["analyze"]),
        "speed": measured.masked_speed_table(result["speed"]),
    }
    return _filled("pretraining.md", tables)


def training_page() -> str:
    """The page on training with the recipes and the tables of its benchmarks."""
    tables = {
        "recipes": _recipes(),
        "finetune": measured.finetune_table(_result("finetune")["rows"]),
        "scratch": measured.scratch_table(_result("scratch")),
        "loading": measured.loading_table(_result("loading")),
        "budgets": measured.budgets_table(_result("budgets")["rows"]),
    }
    return _filled("training.md", tables)


def compare_page() -> str:
    """The page on comparisons with the table of its benchmark."""
    return _filled("compare.md", {"cifar": measured.compared_table(_result("compare"))})


def transfer_page() -> str:
    """The page on transfer with the table of its benchmark."""
    return _filled("transfer.md", {"transfer": measured.transfer_table(_result("transfer"))})


def teachers_page() -> str:
    """The page on teachers with the table of its benchmark."""
    return _filled("teachers.md", {"teachers": measured.teachers_table(_result("teachers"))})


def self_training_page() -> str:
    """The page on self-training with the table of its benchmark."""
    return _filled("self-training.md", {"noisy_student": measured.noisy_student_table(_result("noisy_student"))})


def engines_page() -> str:
    """The page on engines with the tables of its benchmark, of every kind of processor it ran on."""
    return _filled("engines.md", {"engines": measured_engines.engines_tables(_inference_results())})


def merging_page() -> str:
    """The page on token merging with the table of its benchmark."""
    return _filled("merging.md", {"schedules": measured_engines.schedules_table(_result("merging"))})


def _inference_results() -> list[dict[str, Any]]:
    """What was measured on each kind of processor, those without special instructions first."""
    names = (f"inference-{kind}" for kind in ("avx2", "avx512", "vnni"))
    return [_result(name) for name in names if (RESULTS / f"{name}.json").exists()]


def scale_page() -> str:
    """The page on work beyond one machine with the tables of its benchmarks."""
    result = _result("scale_table")
    tables = {
        "gpus": measured_scale.gpus_table(result),
        "steps": measured_scale.steps_table(result),
        "scaling": measured_scale.scaling_table(_result("scaling"), result["assumed"]),
    }
    return _filled("scale.md", tables)


def shards_page() -> str:
    """The page on shards with the table of its benchmark."""
    return _filled("shards.md", {"shards": measured_scale.shards_table(_result("shards"))})


def readme() -> str:
    """The front page with how fast engines are."""
    return _filled("../README.md", {"speed": measured_engines.engines_summary(_inference_results())})


def deploy_page() -> str:
    """The page on where a server runs, with what its benchmark found."""
    return _filled("deploy.md", {"serve": measured_serving.serve_table(_result("serve"))})


def reliability_page() -> str:
    """The page on reliability with the interruptions that were survived."""
    tables = {
        "kills": measured_scale.kills_table(_result("kill")),
        "faults": measured_scale.faults_table(_result("faults")),
    }
    return _filled("reliability.md", tables)


def datasets_page() -> str:
    """The page on public datasets with the table of them."""
    rows = list_data()
    lines = [
        "| dataset | classes | train | val | test | size | VTAB | by hand | checked | licence |",
        "| --- | ---: | ---: | ---: | ---: | ---: | --- | --- | ---: | --- |",
    ]
    for row in rows:
        counts = " | ".join(
            f"{row.splits[split]:,}" if split in row.splits else "" for split in ("train", "val", "test")
        )
        size = "" if row.bytes is None else format_bytes(row.bytes)
        by_hand, checked = ", ".join(f"`{name}`" for name in row.by_hand), f"{row.checksums} of {row.files}"
        name = f"[{row.name}]({row.homepage})"
        lines.append(
            f"| {name} | {row.classes} | {counts} | {size} | {row.vtab or ''} | {by_hand} | {checked} | {row.licence} |"
        )
    lines += ["", *(f"- {row.name}: {row.title}. {row.citation}." for row in rows)]
    splits = [f"- {dataset.name}: {dataset.split_by}." for dataset in DATASETS.values() if dataset.split_by]
    return _filled("datasets.md", {"datasets": "\n".join(lines), "splits": "\n".join(splits)})


def checkpoints_page() -> str:
    """The page on checkpoints with the table of layouts, which tests/weights/test_layouts.py walks."""
    rows = runpy.run_path(str(DOCS.parent / "tests" / "support" / "layouts.py"))["ROWS"]
    layouts: dict[str, list[Any]] = {}
    for row in rows:
        layouts.setdefault(row.layout, []).append(row)
    lines = ["| layout | in | out | features equal to | at another resolution |", "| --- | --- | --- | --- | --- |"]
    for layout, same in sorted(layouts.items(), key=lambda pair: pair[0].lower()):
        names = ", ".join(dict.fromkeys(f"`{row.model}`" for row in same))
        judge = f"{same[0].by}: {names}" + (", whose own conversion reads the names" if same[0].names else "")
        out, other = ("yes" if any(getattr(row, name) for row in same) else "no" for name in ("out", "other"))
        lines.append(f"| {layout} | yes | {out} | {judge} | {other} |")
    lines += ["", f"{len(rows)} models in all, with random weights at tiny sizes; the features differ by 1e-5 at most."]
    return _filled("checkpoints.md", {"layouts": "\n".join(lines)})


def evaluation_page() -> str:
    """The page on evaluation with what differs from ImageNet-C."""
    everywhere = (
        "applied to the model's view, not stored as JPEG afterwards; lengths in pixels are scaled by the view's short "
        "side over 224; errors are not divided by AlexNet's, which are known on ImageNet alone"
    )
    kinds = {name: kind.differs for name, kind in CORRUPTIONS.items() if kind.differs != AS_PUBLISHED}
    lines = ["| kind | what differs |", "| --- | --- |"]
    lines += [f"| {name} | {text} |" for name, text in {"all": everywhere, **kinds}.items()]
    return _filled("evaluation.md", {"corruptions": "\n".join(lines)})


def _result(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text())
    return found


def _filled(name: str, tables: dict[str, str]) -> str:
    """The page with each table between the marks of its name."""
    page = (DOCS / name).read_text(encoding="utf-8")
    for table, text in tables.items():
        marks = f"(<!-- {table} -->\n).*?(<!-- end -->)"
        page = re.sub(marks, lambda mark, text=text: f"{mark[1]}{text}\n{mark[2]}", page, flags=re.S)  # type: ignore[misc]
    return page


def _recipes() -> str:
    """Each recipe's own first sentence."""
    lines = ["| `--recipe` | |", "| --- | --- |"]
    return "\n".join(
        lines + [f"| `{name}` | {(make.__doc__ or '').strip().splitlines()[0]} |" for name, make in RECIPES.items()]
    )


PAGES = {
    "checkpoints.md": checkpoints_page,
    "cli.md": command_line,
    "models.md": model_table,
    "glossary.md": glossary_page,
    "datasets.md": datasets_page,
    "evaluation.md": evaluation_page,
    "compare.md": compare_page,
    "transfer.md": transfer_page,
    "explain.md": explain_page,
    "pretraining.md": pretraining_page,
    "training.md": training_page,
    "teachers.md": teachers_page,
    "self-training.md": self_training_page,
    "engines.md": engines_page,
    "merging.md": merging_page,
    "../README.md": readme,
    "deploy.md": deploy_page,
    "reliability.md": reliability_page,
    "scale.md": scale_page,
    "shards.md": shards_page,
}


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
