"""What benchmarks found, as tables for the pages: each of what a file in benchmarks/results has."""

from __future__ import annotations

from typing import Any


def teachers_table(found: dict[str, Any]) -> str:
    teacher = found["teacher"]
    lines = [
        f"| {found['data']}, {found['training_images']:,} training images, {found['budget']} each "
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


def transfer_table(found: dict[str, Any]) -> str:
    """Accuracy of each task under each protocol, and what all of it took."""
    lines = [
        "| task | protocol | right, % | 95 % interval | test images | learned from | seconds |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: |",
    ]

    def part(count: int, of: int) -> str:
        return f"{count:,}" if count == of else f"{count:,} of {of:,}"

    for row in found["rows"]:
        low, high = row["interval"]
        images = f"{part(row['n'], row['of'])} | {part(row['trained_on'], row['trained_of'])}"
        lines.append(
            f"| {row['task']} | `{row['protocol']}` | {100 * row['accuracy']:.1f} | {100 * low:.1f} to "
            f"{100 * high:.1f} | {images} | {row['seconds']:.0f} |"
        )
    days = found["tpu_v3_core_days"]
    lines += [
        "",
        f"With `--budget {found['budget']}` and an empty cache all of it took {found['seconds'] / 60:.1f} minutes on "
        f"{cores(found)}: {found['flops']:.2e} operations, {days['value']:.1e} TPUv3-core-days. The seconds of a "
        "task's first protocol on frozen features include computing these.",
    ]
    return "\n".join(lines)


def noisy_student_table(found: dict[str, Any]) -> str:
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
        f"- {rounds}; ± is a 95 % interval by seeds and images. Load before the trainings: {min(loads):.1f} to "
        f"{max(loads):.1f}, on {cores(found)}."
    )
    return "\n".join(lines)


def finetune_table(rows: list[dict[str, Any]]) -> str:
    lines = [
        f"| {rows[0]['n']:,} test images | asked for | trained, s | all, s | images seen | right, % | interval |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for row in rows:
        name = f"`{row.get('recipe', 'auto')}` at {row.get('image_size', 224)} pixels"
        low, high = row["interval"]
        accuracy = f"{100 * row['test_accuracy']:.1f} | {100 * low:.1f} to {100 * high:.1f}"
        asked = row.get("budget", f"{row.get('epochs', 4)} epochs")
        taken = f"{row['seconds_to_last_step']:.0f} | {row['seconds']:.0f}"
        lines.append(f"| {name} | {asked} | {taken} | {row['images_seen']:,} | {accuracy} |")
    return "\n".join(lines)


def scratch_table(found: dict[str, Any]) -> str:
    low, high = (f"{100 * edge:.1f}" for edge in found["interval"])
    return (
        f"{found['data']} with `--budget {found['budget']}` on {found['machine']['cores']} cores: "
        f"{100 * found['test_accuracy']:.1f} % of {found['n']:,} test images\n(95 % interval {low} to {high}) after "
        f"{found['seconds']:,} s, {found['images_seen']:,} images seen."
    )


def budgets_table(rows: list[dict[str, Any]]) -> str:
    lines = [
        "| `fit --budget`, timed from outside | s | of it steps, % | steps | val | test | right, % | interval |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for row in rows:
        share = row["val_accuracy"] if row["test_accuracy"] is None else row["test_accuracy"]
        between = "" if row["interval"] is None else " to ".join(f"{100 * edge:.1f}" for edge in row["interval"])
        counts = f"{row['steps']:,} | {row['n_val'] or 0:,} | {row['n_test'] or 0:,}"
        right = "" if share is None else f"{100 * share:.1f}"
        in_steps = f"{100 * row['in_steps']:.0f}" if "in_steps" in row else ""
        lines.append(f"| {row['cell']} | {row['wall']:.0f} | {in_steps} | {counts} | {right} | {between} |")
    return "\n".join(lines)


def cores(found: dict[str, Any]) -> str:
    """How many cores were used for a result, or for a part of one, in words."""
    threads = found["measured_on" if "measured_on" in found else "machine"]["threads"]
    return "one core" if threads == 1 else f"{threads} cores"


def compared_table(found: dict[str, Any]) -> str:
    """Accuracies by model and share, who is ahead, and which bias goes with it."""
    names, shares = found["names"], sorted({row["fraction"] for row in found["summary"]})
    cells = {(row["model"], row["fraction"]): row for row in found["summary"]}
    images = [next(row["images"] for row in found["summary"] if row["fraction"] == share) for share in shares]
    seeds, n = found["summary"][0]["seeds"], min(row["n"] for row in found["summary"])
    lines = [
        f"| test accuracy, %, {seeds} seeds, n = {n:,} | {' | '.join(f'{count:,} images' for count in images)} |",
        "| --- |" + " ---: |" * len(shares),
    ]
    for name, words in names.items():
        values = [cells[name, share] for share in shares]
        shown = (f"{100 * row['mean']:.1f} ± {100 * row['deviation']:.1f}" for row in values)
        lines.append(f"| {words} (`{name}`) | {' | '.join(shown)} |")
    size, pairs = found["image_size"], sum(verdict["pairs"] for verdict in found["verdicts"])
    lines += ["", f"{found['cell_seconds']:.0f} s for each training of {size}x{size} pixels, on"]
    lines[-1] += f" {cores(found)}. ± is the standard deviation over seeds; {pairs} pairs were compared."
    lines.append("")
    for share, verdict in zip(shares, found["verdicts"], strict=True):
        epochs = [cell["epochs"] for cell in found["cells"] if cell["fraction"] == share and cell["epochs"] is not None]
        seen = f" ({min(epochs):.3g} to {max(epochs):.3g} epochs)" if epochs else ""
        lines.append(f"- With {100 * share:g} % of the images{seen}: {verdict['text']}.")
    if found["closing"]:
        first = found["closing"][0]
        gap = f"ahead of `{first['first']}` by how much more with {100 * first['few']:g} % than with"
        lines += [
            "",
            f"| {gap} {100 * first['many']:g} % of the images | points | told apart |",
            "| --- | ---: | --- |",
        ]
        for row in found["closing"]:
            margin = "" if row["gap"]["margin"] is None else f" ± {100 * row['gap']['margin']:.1f}"
            apart = "yes" if row["told_apart"] else "no"
            lines.append(f"| `{row['model']}` | {100 * row['gap']['value']:+.1f}{margin} | {apart} |")
    bias = found["bias"]
    lines += ["", f"| bias, {bias['images']:,} test images | {' | '.join(f'`{name}`' for name in names)} |"]
    lines.append("| --- |" + " ---: |" * len(names))
    for row in bias["rows"]:
        values = [row["values"][name] for name in names]
        shown = ("–" if v is None else f"{v:.1%}" if row["share"] else f"{v:.3g}" for v in values)
        lines.append(f"| {row['measure']} | {' | '.join(shown)} |")
    return "\n".join(lines)


def loading_table(found: dict[str, Any]) -> str:
    speed, command, index = found["speed"], found["command"], found["index"]
    rows = {
        "training speed with real images, of that with constant tensors, best turns": f"{speed['ratio']:.1%}",
        "the same, median of the turns": f"{speed['median_ratio_of_turns']:.1%}",
        "memory of all processes, batch 32, two workers": f"{command['peak_megabytes']:,} MB",
        "from the command to the first step": f"{command['first_step_seconds']:.0f} s",
        f"{index['files']:,} files indexed in": f"{index['seconds']:.1f} s",
        "memory for that": f"{index['peak_megabytes']:,} MB",
    }
    return "\n".join(
        ["| Pets at 224 pixels, ViT-Ti/16 | |", "| --- | ---: |", *(f"| {n} | {v} |" for n, v in rows.items())]
    )


def features_table(result: dict[str, Any]) -> str:
    rows = {"raw pixels": result["pixels"]}
    for method in [name for name in ("dino", "mae", "masked-patch") if name in result]:
        rows |= {method: result[method], f"the network of {method}, untrained": result[method]["untrained"]}
    nearest = (10, 20, 100, 200)
    lines = [
        f"| {result['pixels']['n']:,} test images, % | minutes | {' | '.join(f'k = {k}' for k in nearest)} | linear |",
        "| --- |" + " ---: |" * (len(nearest) + 2),
    ]
    for name, row in rows.items():
        minutes = f"{row['seconds'] / 60:.0f}" if "seconds" in row else ""
        values = [row[f"knn_{k}"] for k in nearest] + [row["linear"]]
        lines.append(f"| {name} | {minutes} | {' | '.join(f'{100 * value:.1f}' for value in values)} |")
    return "\n".join(lines)


def tenth_table(found: dict[str, Any]) -> str:
    names = {
        "mae": "fine-tuned from `mae`",
        "masked-patch": "fine-tuned from `masked-patch`",
        "scratch_same_network": "the same network from scratch",
        "scratch_for_few_images": "from scratch, the recipe for few images",
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


def depths_table(found: dict[str, Any]) -> str:
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


def masked_speed_table(speed: dict[str, Any]) -> str:
    lines = ["| encoder | times supervised training | times `transformers`' ViTMAE |", "| --- | ---: | ---: |"]
    for name, row in speed.items():
        if isinstance(row, dict) and "mae_over_supervised" in row:
            lines.append(f"| {name} | {row['mae_over_supervised']:.2f} | {row['mae_over_transformers']:.2f} |")
    return "\n".join(lines)


def scores_table(score: dict[str, Any]) -> str:
    lines = [
        f"| {score['images']} images | energy | pointing | IoU | deletion | insertion |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name, row in {**score["baselines"], **score["methods"]}.items():
        shares = f"{row['energy']:.1%} | {row['pointing']:.1%} | {row['iou']:.3f}"
        lines.append(f"| {name} | {shares} | {row['deletion']:.3f} | {row['insertion']:.3f} |")
    return "\n".join(lines)


def memory_table(memory: dict[str, Any]) -> str:
    lines = ["| one image, B/16 at 384 pixels | MB above the model |", "| --- | ---: |"]
    return "\n".join(lines + [f"| {name} | {held} |" for name, held in memory["megabytes"].items()])


def speed_table(speed: dict[str, Any]) -> str:
    lines = ["| from a file to | times a plain prediction |", "| --- | ---: |"]
    lines += [f"| {name} | {row['predictions']:.2f} |" for name, row in speed.items() if isinstance(row, dict)]
    return "\n".join(lines)
