"""`report.html`: what was trained on what, how well it does, and how to use it, in one file that needs nothing else."""

from __future__ import annotations

import json
from collections.abc import Iterable
from html import escape
from pathlib import Path
from typing import Any

from vitreous.report.plots import confusion, curves

STYLE = """
:root { color-scheme: light dark; --line: #8884; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 56rem; margin: 2rem auto; padding: 0 1rem; }
h1 { margin-bottom: 0; } h2 { margin-top: 2.2rem; border-bottom: 1px solid var(--line); padding-bottom: .2rem; }
table { border-collapse: collapse; } td, th { padding: .2rem .8rem .2rem 0; text-align: left; vertical-align: top; }
.wide { overflow-x: auto; } .figures { display: flex; flex-wrap: wrap; gap: 1rem; }
svg { max-width: 100%; height: auto; }
.big { font-size: 2.4rem; font-weight: 600; } .quiet { opacity: .7; } pre { overflow-x: auto; padding: .6rem;
border: 1px solid var(--line); border-radius: 6px; }
"""


def write_report(run: Path) -> Path:
    """Write the page of a finished run from its config.json, result.json and metrics.jsonl; return its path."""
    config = json.loads((run / "config.json").read_text())
    result = json.loads((run / "result.json").read_text())
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    path = run / "report.html"
    path.write_text(page(run.name, config, result, records), encoding="utf-8")
    return path


def page(name: str, config: dict[str, Any], result: dict[str, Any], records: list[dict[str, Any]]) -> str:
    """The whole page as text."""
    body = [
        f"<h1>{escape(name)}</h1>",
        f'<p class="quiet">{escape(_what(config, result))}</p>',
        *_figures(result),
        "<h2>Training</h2>",
        *_curves(records),
        _table(_facts(config, result)),
        *_mistakes(result),
        "<h2>Use it</h2>",
        f"<pre>vitreous predict {escape(result['bundle'])} picture.jpg\n"
        f"vitreous evaluate {escape(result['bundle'])} DATA</pre>",
    ]
    if result["remarks"]:
        body += ["<h2>Remarks</h2>", "<ul>", *(f"<li>{escape(remark)}</li>" for remark in result["remarks"]), "</ul>"]
    title = escape(f"{name}: vitreous")
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{title}</title>'
    return (
        f"<!doctype html><html lang=en><head>{head}<style>{STYLE}</style></head><body>{''.join(body)}</body></html>\n"
    )


def _what(config: dict[str, Any], result: dict[str, Any]) -> str:
    model = config["training"]["model"]
    size = "x".join(map(str, model["image_size"]))
    start = config["request"]["weights"] or "random weights"
    return (
        f"A Vision Transformer of width {model['width']}, depth {model['depth']} and patch {model['patch']} at {size} "
        f"pixels, trained from {start} on {result['pictures']:,} pictures of {len(result['classes'])} classes "
        f"from {config['request']['data']}."
    )


def _figures(result: dict[str, Any]) -> Iterable[str]:
    for part, name in (("test", "test"), ("validation", "validation")):
        found = result[part]
        if found:
            low, high = found["top1_interval"]
            yield (
                f'<p><span class="big">{found["top1"]:.1%}</span> of {found["n"]:,} {name} pictures right '
                f'<span class="quiet">(95 % interval {low:.1%} to {high:.1%}; top 5 {found["top5"]:.1%}; '
                f"calibration error {found['ece']:.3f})</span></p>"
            )


def _curves(records: list[dict[str, Any]]) -> Iterable[str]:
    def series(key: str) -> tuple[list[float], list[float]]:
        found = [(record["step"], record[key]) for record in records if key in record]
        every = max(1, len(found) // 400)  # a curve of a page needs no more points
        return [step for step, _ in found[::every]], [value for _, value in found[::every]]

    loss = {"training": series("loss"), "validation": series("val_loss")}
    accuracy = {"training": series("accuracy"), "validation": series("val_accuracy")}
    yield '<div class="figures">'
    yield curves({name: s for name, s in loss.items() if s[0]}, "loss")
    yield curves({name: s for name, s in accuracy.items() if s[0]}, "accuracy")
    yield "</div>"


def _facts(config: dict[str, Any], result: dict[str, Any]) -> dict[str, str]:
    training, spent = config["training"], result["spent"]
    optimizer = training["optimizer"]
    facts = {
        "recipe": config["request"]["recipe"],
        "steps": f"{result['steps']:,} of {training['batch_size']} pictures ({training['epochs']:.3g} epochs); "
        f"the weights of step {result['best_step']:,} are kept",
        "optimizer": f"{optimizer['name']}, rate {optimizer['rate']:g}, weight decay {optimizer['weight_decay']:g}",
        "time": f"{spent['seconds']:.0f} s, {spent['core_hours']:.3f} core-hours",
        "work": f"{spent['pictures']:,} pictures seen, {spent['flops']:.3g} floating-point operations",
        "seed": str(training["seed"]),
    }
    if result["probe"] and "accuracy" in result["probe"]:
        facts["frozen features"] = (
            f"a classifier on them had {result['probe']['accuracy']:.1%} of the validation pictures right after "
            f"{result['probe']['seconds']:.0f} s"
        )
    if spent["joules"] is not None:
        facts["energy"] = f"{spent['joules'] / 3600:.3g} Wh"
    return facts


def _mistakes(result: dict[str, Any]) -> Iterable[str]:
    found = result["test"] or result["validation"]
    if not found:
        return
    labels = result["classes"]
    yield "<h2>What it confuses</h2>"
    if len(labels) <= 60:
        yield f'<div class="wide">{confusion(found["confusion"], labels)}</div>'
    rows = [
        (count, truth, answer)
        for truth, row in zip(labels, found["confusion"], strict=True)
        for answer, count in zip(labels, row, strict=True)
        if truth != answer and count
    ]
    rows.sort(key=lambda row: -row[0])
    yield _table({f"{truth} taken for {answer}": str(count) for count, truth, answer in rows[:10]})


def _table(rows: dict[str, str]) -> str:
    cells = "".join(f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>" for name, value in rows.items())
    return f'<div class="wide"><table>{cells}</table></div>'
