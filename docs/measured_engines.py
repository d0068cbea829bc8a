"""What benchmarks/inference.py found on each kind of processor: tables for the page on engines and the front page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from measured import cores

PEERS = {
    "transformers": "`transformers`' pipeline",
    "timm": "a loop over timm's model",
    "OpenVINO": "a loop over OpenVINO",
}


def engines_tables(results: Sequence[dict[str, Any]]) -> str:
    """For each processor speeds, from files to labels and of the model alone, what int8 and merging cost, and how
    exact runtimes are."""
    sections = {
        "files": _file_speeds,
        "model": _model_speeds,
        "accuracy": _costs,
        "merging": _merging,
        "equal": _agreements,
    }
    texts = []
    for found in results:
        texts.append(_processor(next(found[name] for name in sections if name in found)))
        texts += ["\n".join(table(found[name])) for name, table in sections.items() if name in found]
    return "\n\n".join(texts)


def _processor(section: dict[str, Any]) -> str:
    machine = section["measured_on"]
    return f"### {machine['cpu']}\n\n{', '.join(machine['features'])}; {cores(section)}, torch {machine['torch']}."


def _file_speeds(found: dict[str, Any]) -> list[str]:
    lines = [
        f"| JPEG files to labels, {found['images']:,} images | images a second | right, % |",
        "| --- | ---: | ---: |",
    ]
    for name, speed in sorted(found["images_per_second"].items(), key=lambda item: -item[1]):
        lines.append(f"| {name} | {speed:.1f} | {100 * found['accuracy'][name]:.1f} |")
    speeds = found["images_per_second"]
    by_default = max(speeds[name] for name in ("transformers pipeline", "timm loop"))
    return [
        *lines,
        "",
        f"`auto` took {found['engine']}: {speeds['vitreous predict'] / by_default:.2f} times the best of the PyTorch "
        f"peers with their default settings, {found['times_best_pytorch']:.2f} times with batches, "
        f"{found['times_best_openvino']:.2f} times the best of the OpenVINO loops.",
    ]


def engines_summary(results: Sequence[dict[str, Any]]) -> str:
    """What the tables say, for somebody who reads no further."""
    lines = [
        "Images a second from JPEG files to labels, ViT-Ti/16 (`docs/engines.md`):",
        "",
        f"| | `vitreous predict` | {' | '.join(PEERS.values())} |",
        "| --- |" + " ---: |" * (1 + len(PEERS)),
    ]
    for files in (found["files"] for found in results if "files" in found):
        machine, speeds = files["measured_on"], files["images_per_second"]
        peers = [max(speed for way, speed in speeds.items() if way.startswith(name)) for name in PEERS]
        cells = " | ".join(f"{speed:.0f}" for speed in (speeds["vitreous predict"], *peers))
        lines.append(f"| {cores(files)}, {machine['cpu']} ({machine['capability']}) | {cells} |")
    return "\n".join(lines)


def _model_speeds(found: dict[str, Any]) -> list[str]:
    sizes = [size for size, row in found.items() if isinstance(row, dict) and "times_best" in row]
    lines = [f"| the model alone, images a second | {' | '.join(sizes)} |", "| --- |" + " ---: |" * len(sizes)]
    for name in found[sizes[0]]["images_per_second"]:
        speeds = " | ".join(f"{found[size]['images_per_second'][name]:.1f}" for size in sizes)
        lines.append(f"| {name} | {speeds} |")
    taken, limits = " | ".join(f"{found[size]['times_best']:.2f}" for size in sizes), found["limits_gops"]
    return [
        *lines,
        f"| `auto`, times the best of the others | {taken} |",
        "",
        f"The machine's limits: {limits['fp32']:,} billion operations a second in a large float32 product, "
        f"{limits['int8']:,} in int8.",
    ]


def _agreements(found: dict[str, Any]) -> list[str]:
    """How far both runtimes are from PyTorch."""
    lines = [
        "| float32 beside PyTorch | images | same label | logits differ by at most | representations |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for name, row in found.items():
        if isinstance(row, dict) and "same_label" in row:
            worst = f"{row['max_logit_difference']:.1g} | {row['max_representation_difference']:.1g}"
            lines.append(f"| {name} | {row['images']:,} | {row['same_label']:,} | {worst} |")
    return [*lines, "", "Differences are relative to the largest number where that is above 1; 1e-4 is allowed."]


def _length(row: dict[str, Any]) -> str:
    """What of a training is not the recipe's own."""
    told = {"epochs": "{} epochs", "budget": "{}", "image_size": "{} pixels"}
    said = [text.format(row[name]) for name, text in told.items() if name in row]
    return f" ({', '.join(said)})" if said else ""


def _costs(found: dict[str, Any]) -> list[str]:
    """What int8 costs in accuracy."""
    lines = ["| after `fit` | right, % | 95 % interval | n |", "| --- | ---: | ---: | ---: |"]
    for name, row in found.items():
        if not isinstance(row, dict):
            continue  # of the measurement, not of a model: how busy the machine was
        for way, one in row.items():
            if isinstance(one, dict) and "accuracy" in one:
                lines.append(f"| {name}{_length(row)}, {way} | {_right(one)} |")
    return lines


def _merging(found: dict[str, Any]) -> list[str]:
    """What merging costs in accuracy, over several trainings, and what it gains in speed."""
    seeds, n = len(found["0"]["accuracies"]), found["0"]["n"]
    engines = found["0"]["speeds"]
    lines = [
        f"| Pets after `fit --merge R`{_length(found)}: mean of {seeds} seeds, n = {n:,} | right, % | each seed "
        f"| {' | '.join(engines)} |",
        f"| --- | ---: | ---: |{' ---: |' * len(engines)}",
    ]
    for count, row in found.items():
        if count.isdigit():
            shares = [100 * share for share in row["accuracies"]]
            cells = " | ".join(_speed(row["speeds"][name]) for name in engines)
            each = ", ".join(f"{share:.1f}" for share in shares)
            lines.append(f"| R = {count} | {sum(shares) / seeds:.2f} | {each} | {cells} |")
    return [
        *lines,
        "",
        "Accuracy was measured in PyTorch; int8, calibrated and judged on training images, has "
        + ", ".join(
            f"{100 * row['int8_of_seed_0']:.2f} % (R = {count})" for count, row in found.items() if count.isdigit()
        )
        + " with seed 0. Speeds are images a second, then how many times as fast as without merging, compared turn "
        "by turn: the median by the clock; the median in processor time (and its quartiles).",
    ]


def _speed(found: dict[str, Any]) -> str:
    (low, processor, high), clock = found["times_in_processor_time"], found["times"][1]
    return f"{found['images_per_second']:.1f}: {clock:.2f}x; {processor:.2f}x ({low:.2f} to {high:.2f})"


def schedules_table(found: dict[str, Any]) -> str:
    """What benchmarks/merging.py found: how far merging without training moves a model's answers, and what it saves."""
    lines = [
        "| R | patch tokens at the end | operations | answers move by | as in the paper, R: both |",
        "| ---: | ---: | ---: | ---: | ---: |",
    ]
    for count, row in found["ours"].items():
        left, saved = found["patches"] - sum(row["merged"]), row["times_fewer_operations"]
        number, paper = min(found["paper"].items(), key=lambda one: abs(one[1]["times_fewer_operations"] - saved))
        beside = f"{number}: 1/{paper['times_fewer_operations']:.2f}, {paper['nats']:.3f}"
        lines.append(f"| {count} | {left} | 1/{saved:.2f} | {row['nats']:.3f} | {beside} |")
    return "\n".join(lines)


def _right(row: dict[str, Any]) -> str:
    low, high = row["interval"]
    return f"{100 * row['accuracy']:.2f} | {100 * low:.1f} to {100 * high:.1f} | {row['n']:,}"
