"""How well the house is kept: its size, the files that one training enters, what is written twice, and the words.

    python -m benchmarks.house [--list]        (or: python benchmarks/house.py)

Lines: all .py files of src/vitreous. Long files: those of more than 350 lines.

Files entered by a fit: files of cli, verbs and training in which the body of a function runs during one `vitreous fit
builtin --epochs 0.1 --workers 0`. What runs while a module is imported does not count: its top level, class bodies, and
functions that are called from there.

Places of an option of `fit`: lines that write its name on the way from the command to the training. These are annotated
fields of `Fit` and its bases; and in cli, in these classes and the functions beside them parameters with a help text,
keyword arguments `name=name`, and lines "name: ..." of docstrings. Using a value (`self.out`) does not write it again,
and an option that another verb has under the same name is that verb's.

Pass-through lines: lines that are `x=x,` and nothing else, in the rooms that took over cli, jobs and run.

Class names that stand twice: public classes (no leading underscore) of one name in two places of the package.

Dictionary words: names that the rebuilt rooms bind and that are in the left column of WORDS.md: see the four tables.

Processor time of `vitreous --help`: user and system time of the process, the best of five.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import json
import re
import resource
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1] / "src" / "vitreous"
REBUILT = (
    *("cli", "verbs", "training", "studies", "inference", "evaluation", "objectives", "model", "storage"),
    *("distributed", "config", "data", "fetch", "weights", "server", "explain", "report"),
)

NEVER = {
    "afterwards": "reserved",
    "among": "label_space",
    "asker": "query_token",
    "askers": "query_tokens",
    "aside": "ignored (keys), held_out (images)",
    "begin_alike": "broadcast_parameters",
    "believed": "teacher_probabilities",
    "calls_at_once": "max_concurrency",
    "chances": "probabilities",
    "compute_once": "eliminate_common_subexpressions",
    "divide_products": "split_qkv",
    "divided_like": "shard_like",
    "doubtful": "uncertain",
    "first_does": "on_main",
    "from_first": "broadcast",
    "gathered_one": "full_tensor",
    "heard": "predictions, teacher_logits",
    "hold_alike": "shard_same",
    "hurry": "Deadline",
    "likeness": "cosine_similarity",
    "listener": "callback",
    "listeners": "callbacks",
    "listening": "callbacks, progress",
    "loosen_views": "view_to_reshape",
    "machine_of": "local_runtime",
    "machines_of": "join_runtime",
    "most_images": "max_queue_size",
    "outlook": "TimeEstimate",
    "passed_over": "skipped",
    "picture": "image",
    "pictures": "images",
    "quantise_within": "quantize_with_accuracy_control",
    "recompute": "activation_checkpointing",
    "refused_error": "ApiError",
    "relaid": "export_state",
    "rows_of_all": "all_gather",
    "said": "predictions, message",
    "situation": "dataset_stats",
    "so_many": "n",
    "so_much": "n",
    "stated": "config",
    "surest": "most_confident",
    "taught": "teacher, targets",
    "thirds": "split_qkv",
    "timekeeper": "Deadline",
    "timetable": "TimeEstimate",
    "told_apart": "significant",
    "torn": "label_conflicts",
    "yardstick": "benchmark",
    "yardsticks": "benchmarks",
}
"""No name may contain one of these, not even that of a local variable."""
PARTLY = {
    "answer": "prediction",
    "answers": "predictions",
    "look": "progress, evaluation, forward pass",
    "looks": "evaluations, explanation requests",
    "share": "fraction, lam, rate, weight, rank_slice",
    "shares": "fractions, weights",
}
"""No name may contain one of these, except a local variable: there they are plain English."""
WHOLLY = {
    "about": "metadata",
    "agree": "any_rank",
    "ahead": "prefetch",
    "alike": "consistent",
    "averaged": "no_sync",
    "beat": "heartbeat",
    "bend": "replan",
    "besides": "keep_pending",
    "chance": "rng, uniform, generator",
    "changes": "overrides",
    "copies": "duplicates",
    "draw": "rng, uniform, generator",
    "evidence": "log_odds",
    "extent": "original_size",
    "facts": "metadata",
    "first": "is_main, or the first of what",
    "keep": "keep_ids, save",
    "kept": "index_cache, saved",
    "lesson": "pseudo_labels",
    "machine": "runtime",
    "made": "transforms, collate",
    "making": "transforms, collate",
    "manner": "mode",
    "meeting": "rendezvous_id",
    "moved": "total_variation",
    "ours": "overwrite guard",
    "part": "subset, slice",
    "pen": "ctx",
    "places": "storage, queue",
    "reach": "attention_window",
    "role": "parameter_group",
    "roles": "parameter_groups",
    "same": "consistency",
    "scores": "logits",
    "sure": "most_confident",
    "tried": "trials",
    "wanted": "transforms, indices",
    "way": "mode",
    "whole": "full_model",
}
"""No name may be one of these, except a local variable: as a part of a name, too, they are plain English."""
TYPES = {
    "Asked": "Request",
    "Foreign": "ParsedCheckpoint",
    "Machine": "Runtime",
    "Pace": "TimeBudget",
    "Patience": "Timeout",
    "Place": "Path, Url, or the place of what",
    "Raw": "RawCheckpoint",
    "Score": "the score of what",
    "Spent": "Cost",
    "Watch": "Heartbeat",
}
"""No type may be called this."""
CONSTANTS = {
    "ENOUGH": "MIN_ and the thing",
    "FEW": "MIN_ and the thing",
    "FEWEST": "MIN_ and the thing",
    "GONE": "the thing",
    "KEPT": "MAX_KEPT_ and the thing",
    "LARGE": "the thing",
    "MOST": "MAX_ and the thing",
    "OPEN": "the thing",
}
"""No constant may be called this, nor begin with it."""
ALLOWED = {
    "config/objective.py answers": "a field of Distill, written in run folders",
    "config/objective.py keep": "a field of Dino, written in run folders",
    "config/train.py share": "a field of Training, written in run folders",
    "inference/part part": "an output file of a prediction in parts: WORDS.md allows this one",
    "inference/probing.py scores": "accuracies by protocol, in Python and in --json; no logits there",
    "inference/bench.py machine": "the computer that was measured, in Python and in --json",
    "verbs/predict.py part": "an output file of a prediction in parts: WORDS.md allows this one",
    "training/teaching/token_labels.py shares": "written in run folders",
    "studies/transfer scores": "accuracies of a task; no logits there",
    "studies/compare/result.py ahead": "a key in compare.json",
    "studies/compare/result.py first": "a key in compare.json",
    "studies/compare/result.py tried": "a key in compare.json",
    "studies/compare/result.py machine": "a key in compare.json",
    "studies/transfer/result.py machine": "a key in transfer.json",
    "studies/self_train/result.py sure": "a key in result.json",
    "evaluation/classify.py share": "a key of most_confused in result.json",
    "evaluation/classify.py surest_wrong": "a key in result.json",
    "evaluation/classify.py surest_right": "a key in result.json",
    "evaluation/corruptions.py scores": "a key in --json; accuracies by corruption, no logits there",
    "explain/analysis/bias_result.py same": "a key in bias.json",
    "explain/analysis/bias_result.py moved": "a key in bias.json",
    "explain/analysis/bias_result.py likeness": "a key in bias.json",
    "explain/analysis/bias_result.py whole": "a key in bias.json",
    "explain/analysis/depth_result.py share": "a key in analysis.json",
    "explain/score.py scores": "how good each method is, in Python; no logits there",
    "evaluation/intervals.py ahead": "a key of the verdicts in compare.json",
}
"""Names that a word above is right for: where (a file or folder, with the name) and why."""


@dataclass(frozen=True, order=True)
class Finding:
    """A name that should be another."""

    file: str
    line: int
    name: str
    write: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.name} -> {self.write}"


def count_lines() -> int:
    """Lines of the package."""
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in PACKAGE.rglob("*.py"))


def long_files(limit: int = 350) -> list[str]:
    """Files of the package with more lines than that."""
    counts = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in PACKAGE.rglob("*.py")}
    return sorted(f"{path.relative_to(PACKAGE)}: {count}" for path, count in counts.items() if count > limit)


def repeated_classes() -> dict[str, list[str]]:
    """Public class names that stand more than once, with the places."""
    found = defaultdict(list)
    for path in sorted(PACKAGE.rglob("*.py")):
        for line, text in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if name := re.match(r"\s*class ([A-Za-z]\w*)[(:]", text):
                found[name[1]].append(f"{path.relative_to(PACKAGE)}:{line}")
    return {name: places for name, places in found.items() if len(places) > 1}


def dictionary_words() -> list[Finding]:
    """Names of the rebuilt rooms that WORDS.md has another word for."""
    found = []
    for path in sorted(path for room in REBUILT for path in (PACKAGE / room).rglob("*.py")):
        file = path.relative_to(PACKAGE).as_posix()
        for line, name, kind in bound_names(path):
            write = better_word(name, kind)
            if write is not None and not _is_allowed(file, name):
                found.append(Finding(file, line, name, write))
    return sorted(set(found))


def better_word(name: str, kind: str) -> str | None:
    """What WORDS.md says in place of a name of this kind ("local" or any other); None where the name is good."""
    plain = name.strip("_")
    snake = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", plain).lower()
    if (found := _component(snake, NEVER)) is not None:
        return found
    if plain in TYPES:
        return TYPES[plain]
    if plain.isupper() and plain.split("_")[0] in CONSTANTS and (plain in CONSTANTS or plain[:4] in ("MOST", "FEW_")):
        return CONSTANTS[plain.split("_")[0]]
    if kind == "local":
        return None
    return WHOLLY.get(snake) or _component(snake, PARTLY)


def _component(snake: str, words: dict[str, str]) -> str | None:
    return next((write for word, write in words.items() if f"_{word}_" in f"_{snake}_"), None)


def _is_allowed(file: str, name: str) -> bool:
    places = (text.split() for text in ALLOWED)
    return any(name.strip("_").lower() == allowed and file.startswith(place) for place, allowed in places)


def bound_names(path: Path) -> Iterator[tuple[int, str, str]]:
    """Each name that a file binds: its line, the name, and its kind, "local" for a variable of a function."""
    yield 1, path.parent.name if path.name == "__init__.py" else path.stem, "module"
    tree = _tree(path)
    functions = [
        node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
    ]
    inside = {id(node) for function in functions for node in ast.walk(function)}
    for node in ast.walk(tree):
        match node:
            case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
                yield node.lineno, node.name, "definition"
            case ast.arg():
                yield node.lineno, node.arg, "parameter"
            case ast.Attribute(ctx=ast.Store()):
                yield node.lineno, node.attr, "attribute"
            case ast.Name(ctx=ast.Store()):
                yield node.lineno, node.id, "local" if id(node) in inside else "attribute"
            case ast.alias(asname=str(name)) | ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)):
                yield node.lineno, name, "local"


def places_of_options() -> dict[str, list[str]]:
    """Each option of `fit` with the places where it is written."""
    from vitreous.cli.parsing import command_arguments
    from vitreous.verbs.fit import Fit

    options = [name for name in command_arguments(Fit) if name != "json"]
    bases = [base for base in Fit.__mro__ if base.__module__.startswith("vitreous.")]
    declaring = {base.__name__: inspect.getfile(base) for base in bases}
    found: dict[str, list[str]] = {name: [] for name in options}
    for path in sorted({*map(Path, declaring.values()), *(PACKAGE / "cli").rglob("*.py")}):
        for name, line in _written(path, {name for name, file in declaring.items() if Path(file) == path}):
            if name in found:
                found[name].append(f"{path.relative_to(PACKAGE)}:{line}")
    return found


def _written(path: Path, classes: set[str]) -> Iterator[tuple[str, int]]:
    """Names that a file writes as a field of these classes, a parameter with help, `name=name`, or in a docstring."""
    body = [
        one for one in _tree(path).body if not (classes and isinstance(one, ast.ClassDef) and one.name not in classes)
    ]
    for node in (node for one in body for node in ast.walk(one)):
        match node:
            case ast.ClassDef(name=name) if name in classes:
                fields = (one for one in node.body if isinstance(one, ast.AnnAssign))
                yield from ((one.target.id, one.lineno) for one in fields if isinstance(one.target, ast.Name))
            case ast.arg(arg=name, annotation=ast.Subscript(value=ast.Name(id="Annotated"))):
                yield name, node.lineno
            case ast.keyword(arg=str(name), value=ast.Name(id=value)) if name == value:
                yield name, node.lineno
        if classes and isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            for written in re.findall(r"^(\w+): ", inspect.cleandoc(ast.get_docstring(node) or ""), re.M):
                yield written, node.lineno


def pass_through_lines() -> int:
    """Lines that are `x=x,` and nothing else."""
    texts = (path.read_text(encoding="utf-8") for room in REBUILT for path in (PACKAGE / room).rglob("*.py"))
    return sum(len(re.findall(r"^\s*(\w+)=\1,$", text, re.M)) for text in texts)


TRACER = """
import inspect, json, sys, threading

package, out, *command = sys.argv[1:]
rooms = tuple(f"{package}/{room}/" for room in ("cli", "verbs", "training"))
entered = set()

def is_importing(frame):
    while frame is not None:
        if frame.f_code.co_name == "<module>" and frame.f_code.co_filename.startswith(package):
            return True
        frame = frame.f_back
    return False

def note(frame, event, argument):
    code = frame.f_code
    if event != "call" or code.co_filename in entered or not code.co_filename.startswith(rooms):
        return
    if code.co_flags & inspect.CO_OPTIMIZED and not is_importing(frame):  # class bodies are not optimized
        entered.add(code.co_filename)

from vitreous.cli import main

sys.argv = ["vitreous", *command]
threading.setprofile(note)
sys.setprofile(note)
try:
    main()
finally:
    sys.setprofile(None)
    with open(out, "w") as file:
        json.dump(sorted(entered), file)
"""


def files_of_fit() -> list[str]:
    """Files in which a function runs during one short training; see above."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "entered.json"
        words = ["fit", "builtin", "--epochs", "0.1", "--workers", "0", "--out", f"{folder}/run"]
        subprocess.run([sys.executable, "-c", TRACER, PACKAGE, out, *words], check=True, capture_output=True)
        return [str(Path(file).relative_to(PACKAGE)) for file in json.loads(out.read_text())]


def seconds_of_help(repeats: int = 5) -> float:
    """Processor time of `vitreous --help`, the best of some."""
    found = []
    for _ in range(repeats):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-m", "vitreous", "--help"], check=True, stdout=subprocess.DEVNULL)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        found.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return min(found)


def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="also list the files that a fit enters")
    given = parser.parse_args()
    files, options, classes, words = files_of_fit(), places_of_options(), repeated_classes(), dictionary_words()
    twice = {name: places for name, places in options.items() if len(places) != 1}
    rows = [
        ("lines of src/vitreous", f"{count_lines():,}", "at most 40,000", "53,255"),
        ("files of more than 350 lines", len(long_files()), "0", "0"),
        ("files of cli, verbs, training that one fit enters", len(files), "at most 18", "42"),
        ("options of fit", len(options), "", ""),
        ("options of fit that are not written exactly once", len(twice), "0", ""),
        ("lines that are x=x,", pass_through_lines(), "few", "219"),
        ("public class names that stand twice", len(classes), "0", ""),
        ("dictionary words left", len(words), "0", ""),
        ("processor time of vitreous --help, s", f"{seconds_of_help():.3f}", "at most 0.15", ""),
    ]
    print(f"{'measure':<52}{'now':>8}  {'wanted':<16}{'before':>8}")
    for measure, now, wanted, before in rows:
        print(f"{measure:<52}{now:>8}  {wanted:<16}{before:>8}")
    details = {
        "Options of fit that are not written exactly once": [f"{name}: {', '.join(at)}" for name, at in twice.items()],
        "Public class names that stand twice": [f"{name}: {', '.join(at)}" for name, at in classes.items()],
        "Files of more than 350 lines": long_files(),
        "Dictionary words left": [str(one) for one in words],
        "Files that one fit enters": files if given.list or len(files) > 18 else [],
    }
    for title, lines in details.items():
        if lines:
            print(f"\n{title}:", *lines, sep="\n  ")


if __name__ == "__main__":
    main()
