"""Write the pages that are made from the program itself; with --check, fail if one is out of date.

python docs/generate.py [--check]
"""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from vitreous.cli import VERBS
from vitreous.data.datasets.table import DATASETS
from vitreous.inputs import size_text
from vitreous.jobs.data_list import list_data
from vitreous.jobs.models import models
from vitreous.recipes.supervised import RECIPES

DOCS = Path(__file__).parent


def command_line() -> str:
    """Every verb's help, as the command prints it."""
    page = ["# The command line", "", "Made by `make docs` from the command itself.", ""]
    for words in ([], *(verb.split() for verb in VERBS)):
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
        of_tokens = ("" if one is None else str(one) for one in (row.tokens, row.width, row.depth, row.heads))
        shape = " | ".join([str(row.image_size[0]), *of_tokens])
        page.append(f"| {row.name} | {shape} | {row.parameters:,} | {row.gflops:,.2f} | {row.activation_mb:,.1f} |")
    return "\n".join([*page, ""])


def explain_page() -> str:
    """The page on explanations with the tables of its benchmark."""
    result = _result("explain")
    tables = {"scores": _scores(result["score"]), "speed": _speed(result["speed"]), "memory": _memory(result["memory"])}
    return _filled("explain.md", tables)


def pretraining_page() -> str:
    """The page on learning without labels with the tables of its benchmark."""
    result = _result("self_supervised")
    tables = {
        "features": _features(result),
        "tenth": _tenth(result["finetune"]),
        "depths": _depths(result["analyze"]),
        "speed": _masked_speed(result["speed"]),
    }
    return _filled("pretraining.md", tables)


def training_page() -> str:
    """The page on training with the recipes and the tables of its benchmarks."""
    tables = {
        "recipes": _recipes(),
        "finetune": _finetune(_result("finetune")["rows"]),
        "scratch": _scratch(_result("scratch")),
        "loading": _loading(_result("loading")),
    }
    if (DOCS.parent / "benchmarks" / "results" / "budgets.json").exists():  # it takes an idle hour
        tables["budgets"] = _budgets(_result("budgets")["rows"])
    return _filled("training.md", tables)


def compare_page() -> str:
    """The page on comparisons with the table of its benchmark."""
    tables = {}
    if (DOCS.parent / "benchmarks" / "results" / "compare.json").exists():  # it takes an idle hour or two
        tables["cifar"] = _compared(_result("compare"))
    return _filled("compare.md", tables)


def teachers_page() -> str:
    """The page on teachers with the table of its benchmark."""
    if not (DOCS.parent / "benchmarks" / "results" / "teachers.json").exists():  # it takes idle hours
        return _filled("teachers.md", {})
    return _filled("teachers.md", {"teachers": _teachers(_result("teachers"))})


def _teachers(found: dict[str, Any]) -> str:
    teacher = found["teacher"]
    lines = [
        f"| {found['data']}, {found['training_pictures']:,} training pictures, {found['budget']} each "
        "| right, % | spread | seeds | steps |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for name, row in found["ways"].items():
        spread = "" if row["std"] is None else f"{100 * row['std']:.1f}"
        steps = sum(cell["steps"] for cell in row["cells"]) / len(row["cells"])
        lines.append(f"| {name} | {100 * row['mean']:.1f} | {spread} | {row['seeds']} | {steps:,.0f} |")
    lines += [
        "",
        f"The teacher, {teacher['model']}, has {100 * teacher['test_accuracy']:.1f} % after {teacher['budget']}.",
    ]
    return "\n".join(lines)


def self_training_page() -> str:
    """The page on self-training with the table of its benchmark."""
    if not (DOCS.parent / "benchmarks" / "results" / "noisy_student.json").exists():  # it takes 40 idle minutes
        return _filled("self-training.md", {})
    return _filled("self-training.md", {"noisy_student": _noisy_student(_result("noisy_student"))})


def _noisy_student(found: dict[str, Any]) -> str:
    """Accuracy by way, then how far the student is ahead."""
    setting, cells = found["setting"], found["cells"]
    first, second = setting["teacher_minutes"], setting["student_minutes"]
    minutes = {"teacher": first, "student": second, "control": first + second, "control-noised": first + second}
    labelled = next(iter(cells.values()))["n_labelled"]
    lines = [
        f"| CIFAR-10, {labelled:,} labels, `{setting['model']}` | minutes | right, % | spread | seeds | n |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for way, row in found["summary"]["ways"].items():
        spread = "" if row["deviation"] is None else f"{100 * row['deviation']:.1f}"
        counts = f"{row['seeds']} | {row['n_test']:,}"
        lines.append(f"| {way} | {minutes[way]:g} | {100 * row['mean']:.1f} | {spread} | {counts} |")
    lines.append("")
    for name, row in found["summary"]["differences"].items():
        margin = "" if row["margin"] is None else f" ± {100 * row['margin']:.1f}"
        unsure = "one seed tells no spread" if row["margin"] is None else "not told apart"
        verdict = "told apart" if row["told_apart"] else unsure
        lines.append(f"- {name}: {100 * row['value']:+.1f}{margin} points, {verdict};")
    loads = [cell["load_before"] for cell in cells.values()]
    rounds = "1 round" if setting["rounds"] == 1 else f"{setting['rounds']} rounds"
    lines.append(
        f"- {rounds}; ± is a 95 % interval by seeds and pictures. Load before the trainings: {min(loads):.1f} to "
        f"{max(loads):.1f}, on {found['machine']['cores']} cores."
    )
    return "\n".join(lines)


def reliability_page() -> str:
    """The page on reliability with the sizes of the hostile corpus, and the interruptions that were survived."""
    tables = {"corpus": _corpus()}
    if (DOCS.parent / "benchmarks" / "results" / "kill.json").exists():
        tables["kills"] = _kills(_result("kill"))
    return _filled("reliability.md", tables)


def _corpus() -> str:
    """Of each file of hostile tests how many cases it has, and what it says of itself."""
    folder = DOCS.parent / "tests" / "hostile"
    listed = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", "tests/hostile"],
        capture_output=True,
        encoding="utf-8",
        cwd=DOCS.parent,
        check=True,
    )
    counts = {name: int(count) for name, count in re.findall(r"hostile/(test_\w+)\.py: (\d+)", listed.stdout)}
    lines = ["| `tests/hostile/` | cases | |", "| --- | ---: | --- |"]
    for name, count in sorted(counts.items()):
        text = ast.get_docstring(ast.parse((folder / f"{name}.py").read_text(encoding="utf-8"))) or ""
        lines.append(f"| `{name}` | {count:,} | {text.splitlines()[0].rstrip('.')} |")
    return "\n".join([*lines, f"| together | {sum(counts.values()):,} | |"])


def _kills(found: dict[str, Any]) -> str:
    lines = [
        "| disturbance at a random moment | times | trainings | same bits | tracebacks | processes left behind |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name, row in found.items():
        if isinstance(row, dict) and "same_bits" in row:
            counts = (row[key] for key in ("disturbances", "trainings", "same_bits", "tracebacks", "left_behind"))
            lines.append(f"| {name} | {' | '.join(map(str, counts))} |")
    return "\n".join(lines)


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
        size = "" if row.bytes is None else size_text(row.bytes)
        by_hand, checked = ", ".join(f"`{name}`" for name in row.by_hand), f"{row.checksums} of {row.files}"
        name = f"[{row.name}]({row.homepage})"
        lines.append(
            f"| {name} | {row.classes} | {counts} | {size} | {row.vtab or ''} | {by_hand} | {checked} | {row.licence} |"
        )
    lines += ["", *(f"- {row.name}: {row.title}. {row.citation}." for row in rows)]
    splits = [f"- {dataset.name}: {dataset.split_by}." for dataset in DATASETS.values() if dataset.split_by]
    return _filled("datasets.md", {"datasets": "\n".join(lines), "splits": "\n".join(splits)})


def _result(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((DOCS.parent / "benchmarks" / "results" / f"{name}.json").read_text())
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


def _finetune(rows: list[dict[str, Any]]) -> str:
    lines = [
        f"| {rows[0]['n']:,} test pictures | asked for | trained, s | all, s | pictures seen | right, % | interval |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for row in rows:
        name = f"`{row.get('recipe', 'auto')}` at {row.get('image_size', 224)} pixels"
        low, high = row["interval"]
        accuracy = f"{100 * row['test_accuracy']:.1f} | {100 * low:.1f} to {100 * high:.1f}"
        asked = row.get("budget", f"{row.get('epochs', 4)} epochs")
        taken = f"{row['seconds_to_last_step']:.0f} | {row['seconds']:.0f}"
        lines.append(f"| {name} | {asked} | {taken} | {row['pictures_seen']:,} | {accuracy} |")
    return "\n".join(lines)


def _scratch(found: dict[str, Any]) -> str:
    low, high = (f"{100 * edge:.1f}" for edge in found["interval"])
    return (
        f"{found['data']} with `--budget {found['budget']}` on {found['machine']['cores']} cores: "
        f"{100 * found['test_accuracy']:.1f} % of {found['n']:,} test pictures\n(95 % interval {low} to {high}) after "
        f"{found['seconds']:,} s, {found['pictures_seen']:,} pictures seen."
    )


def _budgets(rows: list[dict[str, Any]]) -> str:
    lines = [
        "| `fit --budget`, timed from outside | s | not all fits, said | steps | val | test | right, % | interval |",
        "| --- | ---: | --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for row in rows:
        share = row["val_accuracy"] if row["test_accuracy"] is None else row["test_accuracy"]
        between = "" if row["interval"] is None else " to ".join(f"{100 * edge:.1f}" for edge in row["interval"])
        counts = f"{row['steps']:,} | {row['n_val'] or 0:,} | {row['n_test'] or 0:,}"
        right = "" if share is None else f"{100 * share:.1f}"
        lines.append(
            f"| {row['cell']} | {row['wall']:.0f} | {'yes' if row['said'] else ''} | {counts} | {right} | {between} |"
        )
    return "\n".join(lines)


def _compared(found: dict[str, Any]) -> str:
    """Accuracies by model and share, who is ahead, and which bias goes with it."""
    names, shares = found["names"], sorted({row["fraction"] for row in found["summary"]})
    cells = {(row["model"], row["fraction"]): row for row in found["summary"]}
    pictures = [next(row["pictures"] for row in found["summary"] if row["fraction"] == share) for share in shares]
    seeds, n = found["summary"][0]["seeds"], min(row["n"] for row in found["summary"])
    lines = [
        f"| test accuracy, %, {seeds} seeds, n = {n:,} | {' | '.join(f'{count:,} pictures' for count in pictures)} |",
        "| --- |" + " ---: |" * len(shares),
    ]
    for name, words in names.items():
        values = [cells[name, share] for share in shares]
        shown = (f"{100 * row['mean']:.1f} ± {100 * row['deviation']:.1f}" for row in values)
        lines.append(f"| {words} (`{name}`) | {' | '.join(shown)} |")
    size, pairs = found["image_size"], sum(verdict["pairs"] for verdict in found["verdicts"])
    lines += ["", f"{found['cell_seconds']:.0f} s for each training of {size}x{size} pixels, on"]
    lines[-1] += (
        f" {found['machine']['cores']} cores. ± is the standard deviation over seeds; {pairs} pairs were compared."
    )
    lines.append("")
    for share, verdict in zip(shares, found["verdicts"], strict=True):
        epochs = [cell["epochs"] for cell in found["cells"] if cell["fraction"] == share and cell["epochs"] is not None]
        seen = f" ({min(epochs):.3g} to {max(epochs):.3g} epochs)" if epochs else ""
        lines.append(f"- With {100 * share:g} % of the pictures{seen}: {verdict['text']}.")
    if found["closing"]:
        first = found["closing"][0]
        gap = f"ahead of `{first['first']}` by how much more with {100 * first['few']:g} % than with"
        lines += [
            "",
            f"| {gap} {100 * first['many']:g} % of the pictures | points | told apart |",
            "| --- | ---: | --- |",
        ]
        for row in found["closing"]:
            margin = "" if row["gap"]["margin"] is None else f" ± {100 * row['gap']['margin']:.1f}"
            apart = "yes" if row["told_apart"] else "no"
            lines.append(f"| `{row['model']}` | {100 * row['gap']['value']:+.1f}{margin} | {apart} |")
    bias = found["bias"]
    lines += ["", f"| bias, {bias['pictures']:,} test pictures | {' | '.join(f'`{name}`' for name in names)} |"]
    lines.append("| --- |" + " ---: |" * len(names))
    for row in bias["rows"]:
        values = [row["values"][name] for name in names]
        shown = ("–" if v is None else f"{v:.1%}" if row["share"] else f"{v:.3g}" for v in values)
        lines.append(f"| {row['measure']} | {' | '.join(shown)} |")
    return "\n".join(lines)


def _loading(found: dict[str, Any]) -> str:
    speed, command, index = found["speed"], found["command"], found["index"]
    rows = {
        "training speed with real pictures, of that with constant tensors, best turns": f"{speed['ratio']:.1%}",
        "the same, median of the turns": f"{speed['median_ratio_of_turns']:.1%}",
        "memory of all processes, batch 32, two workers": f"{command['peak_megabytes']:,} MB",
        "from the command to the first step": f"{command['first_step_seconds']:.0f} s",
        f"{index['files']:,} files indexed in": f"{index['seconds']:.1f} s",
        "memory for that": f"{index['peak_megabytes']:,} MB",
    }
    return "\n".join(
        ["| Pets at 224 pixels, ViT-Ti/16 | |", "| --- | ---: |", *(f"| {n} | {v} |" for n, v in rows.items())]
    )


def _features(result: dict[str, Any]) -> str:
    rows = {"raw pixels": result["pixels"]}
    for method in [name for name in ("dino", "mae", "masked-patch") if name in result]:
        rows |= {method: result[method], f"the network of {method}, untrained": result[method]["untrained"]}
    nearest = (10, 20, 100, 200)
    lines = [
        f"| {result['pixels']['n']:,} test pictures, % | {' | '.join(f'k = {k}' for k in nearest)} | linear |",
        "| --- |" + " ---: |" * (len(nearest) + 1),
    ]
    for name, row in rows.items():
        values = [row[f"knn_{k}"] for k in nearest] + [row["linear"]]
        lines.append(f"| {name} | {' | '.join(f'{100 * value:.1f}' for value in values)} |")
    return "\n".join(lines)


def _tenth(found: dict[str, Any]) -> str:
    names = {
        "mae": "fine-tuned from `mae`",
        "masked-patch": "fine-tuned from `masked-patch`",
        "scratch_same_network": "the same network from scratch",
        "scratch_for_few_pictures": "from scratch, the recipe for few pictures",
    }
    lines = [
        f"| {found['labels']:,} labels, {found['budget']} each | test accuracy, % | 95 % interval | seconds taken |"
    ]
    lines.append("| --- | ---: | ---: | ---: |")
    for key in [key for key in names if key in found]:
        low, high = found[key]["interval"]
        accuracy = f"{100 * found[key]['test_accuracy']:.1f} | {100 * low:.1f} to {100 * high:.1f}"
        lines.append(f"| {names[key]} | {accuracy} | {found[key]['seconds']:.0f} |")
    return "\n".join(lines)


def _depths(found: dict[str, Any]) -> str:
    by_depth = found["by_depth"]
    measures = {
        "mean attention distance, pixels": "attention_distance",
        "mutual information of attention": "mutual_information",
        "similarity of two patches' attention": "query_similarity",
        "log amplitude of the highest frequency, from depth 0": "high_frequency",
        "linear probe, from depth 0": "probe",
    }
    depth = len(by_depth["mae"]["attention_distance"])
    lines = [f"| by depth 1 to {depth} | {' | '.join(by_depth)} |", "| --- |" + " --- |" * len(by_depth)]
    for title, name in measures.items():
        lines.append(f"| {title} | {' | '.join(', '.join(map(str, row[name])) for row in by_depth.values())} |")
    return "\n".join(lines)


def _masked_speed(speed: dict[str, Any]) -> str:
    lines = ["| encoder | times supervised training | times `transformers`' ViTMAE |", "| --- | ---: | ---: |"]
    for name, row in speed.items():
        if isinstance(row, dict):
            lines.append(f"| {name} | {row['mae_over_supervised']:.2f} | {row['mae_over_transformers']:.2f} |")
    return "\n".join(lines)


def _scores(score: dict[str, Any]) -> str:
    lines = [
        f"| {score['pictures']} pictures | energy | pointing | IoU | deletion | insertion |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name, row in {**score["baselines"], **score["methods"]}.items():
        shares = f"{row['energy']:.1%} | {row['pointing']:.1%} | {row['iou']:.3f}"
        lines.append(f"| {name} | {shares} | {row['deletion']:.3f} | {row['insertion']:.3f} |")
    return "\n".join(lines)


def _memory(memory: dict[str, Any]) -> str:
    lines = ["| one picture, B/16 at 384 pixels | MB above the model |", "| --- | ---: |"]
    return "\n".join(lines + [f"| {name} | {held} |" for name, held in memory["megabytes"].items()])


def _speed(speed: dict[str, Any]) -> str:
    lines = ["| from a file to | times a plain prediction |", "| --- | ---: |"]
    lines += [f"| {name} | {row['predictions']:.2f} |" for name, row in speed.items() if isinstance(row, dict)]
    return "\n".join(lines)


PAGES = {
    "cli.md": command_line,
    "models.md": model_table,
    "datasets.md": datasets_page,
    "compare.md": compare_page,
    "explain.md": explain_page,
    "pretraining.md": pretraining_page,
    "training.md": training_page,
    "teachers.md": teachers_page,
    "self-training.md": self_training_page,
    "reliability.md": reliability_page,
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
