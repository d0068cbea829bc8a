"""Tables of work beyond one machine, and of what goes wrong there, from the results of benchmarks."""

from __future__ import annotations

from typing import Any

from vitreous.config.model import preset
from vitreous.model.family import count_flops, count_parameters

IMAGES = 32
"""Of a process in a step, on paper; as many as were measured."""
PROCESSES = (8, 64, 512, 4096)
MODELS = ("Ti/16", "B/16", "H/14")
NETWORKS = {"Ethernet of 25 Gbit/s": (25e9 / 8, 30e-6), "InfiniBand of 400 Gbit/s": (400e9 / 8, 5e-6)}
"""Bytes a second and seconds of latency."""
FLOAT = 4


def kills_table(found: dict[str, Any]) -> str:
    lines = [
        "| disturbance at a random moment | times | trainings | same bits | tracebacks | processes left behind |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name, row in found.items():
        if isinstance(row, dict) and "same_bits" in row:
            counts = (row[key] for key in ("disturbances", "trainings", "same_bits", "tracebacks", "left_behind"))
            lines.append(f"| {name} | {' | '.join(map(str, counts))} |")
    return "\n".join(lines)


def faults_table(found: dict[str, Any]) -> str:
    lines = [
        "| fault, of two processes that train together | times | hangs | longest, s | compared | as undisturbed |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    rows = [row for row in found.values() if isinstance(row, dict)]
    for row in rows:
        if "hangs" in row:
            counts = (row[key] for key in ("faults", "hangs", "slowest_seconds", "trainings", "same_bits"))
            lines.append(f"| {row['what']} | {' | '.join(map(str, counts))} |")
    flips = [row for row in rows if "refused" in row]
    if flips:
        lines += [
            "",
            "| damage | times | refused | the earlier one taken | s each |",
            "| --- | ---: | ---: | ---: | ---: |",
        ]
        for row in flips:
            counts = (row[key] for key in ("flips", "refused", "earlier_taken", "seconds_each"))
            lines.append(f"| {row['what']} | {' | '.join(map(str, counts))} |")
    return "\n".join(lines)


def scaling_table(found: dict[str, Any], assumed: dict[str, Any]) -> str:
    """What was measured of two processes, and on paper what that says of many; assumed: of a GPU."""
    talk, rates = found["all_reduce"], found["images_per_second"]
    lines = ["| ViT-Ti/16, 32 images of 224 pixels a step | images/s |", "| --- | ---: |"]
    lines += [f"| {name} | {rate:.1f} |" for name, rate in rates.items()]
    lines += [
        "",
        f"Adding up the gradients, {talk['bytes'] / 1e6:.1f} MB, takes {1000 * talk['seconds']:.0f} ms alone, "
        f"{talk['share_of_step']:.1%} of the step of two processes ({talk['bytes_per_second'] / 1e9:.2f} GB/s, "
        f"{1e6 * talk['latency_seconds']:.0f} us per message). In training it partly overlaps with the backward pass.",
        "",
        "On paper, a ring of n processes moves 2 (n - 1) / n of the bytes in 2 (n - 1) messages. The share of a step "
        f"that computes, with {IMAGES} images of each process and nothing that overlaps. A processor computes as "
        "fast as one thread was measured here (larger models in proportion to their operations), a GPU as assumed "
        "above; this machine's network is measured, the others are what vendors name:",
        "",
        f"| | {' | '.join(f'{count:,} processes' for count in PROCESSES)} |",
        f"| --- |{' ---: |' * len(PROCESSES)}",
    ]
    here = (talk["bytes_per_second"], talk["latency_seconds"])
    flops_per_second = rates["one process, one thread"] * _step_flops("Ti/16")
    for who, speed, networks in (
        ("processors", flops_per_second, {"this machine": here, **NETWORKS}),
        ("GPUs", assumed["gpu_peak_flops"] * assumed["share_used"], NETWORKS),
    ):
        for network, (bandwidth, latency) in networks.items():
            for model in MODELS:
                shares = (efficiency(model, count, speed, bandwidth, latency) for count in PROCESSES)
                lines.append(f"| {model}, {who}, {network} | {' | '.join(f'{share:.0%}' for share in shares)} |")
    return "\n".join(lines)


def efficiency(model: str, processes: int, flops_per_second: float, bandwidth: float, latency: float) -> float:
    """The share of a step that computes, where so many processes then add up their gradients in a ring.

    bandwidth: bytes a second; latency: seconds per message.
    """
    computing = IMAGES * _step_flops(model) / flops_per_second
    size = FLOAT * count_parameters(preset(model, classes=1000))
    talking = 2 * (processes - 1) / processes * size / bandwidth + 2 * (processes - 1) * latency
    return computing / (computing + talking)


def _step_flops(model: str) -> float:
    """Operations of a training step for one image: forward, and twice as many backward."""
    return 3.0 * count_flops(preset(model, classes=1000))


def shards_table(found: dict[str, Any]) -> str:
    """What was measured of shards so far: reading and packing want an idle machine, the index does not."""
    lines: list[str] = []
    if reading := found.get("reading"):
        lines += ["| Pets, images a second | folder | shards | ratio |", "| --- | ---: | ---: | ---: |"]
        jobs = {"decoded": "decoded", "loader": "an epoch of training", "two_workers": "with two workers"}
        for name, row in reading.items():
            what = jobs[name.removesuffix("_cold")]
            what += ", nothing in the system's cache" if name.endswith("_cold") else ""
            speeds = " | ".join(f"{row[f'{kind}_images_per_second']:,.0f}" for kind in ("folder", "shards"))
            lines.append(f"| {what} | {speeds} | {row['ratio']:.2f} |")
        lines.append("")
    rows = {}
    if packing := found.get("packing"):
        per_second = f"{packing['pack_megabytes_per_second']:.0f} MB, {packing['pack_images_per_second']:,} images"
        rows[f"packed in a second; a plain copy: {packing['copy_megabytes_per_second']:.0f} MB"] = per_second
    if index := found.get("index"):
        scanned, again = index["scanned"], index["found_again"]
        peak = max(scanned["order_peak_megabytes"], again["order_peak_megabytes"])
        rows |= {
            f"{index['images']:,} images of others indexed, processor time per million": (
                f"{scanned['processor_seconds_per_million']:.0f} s"
            ),
            "the same by the clock, on two cores that others kept busy": f"{scanned['seconds_per_million']:.0f} s",
            **_smaller_indexes(found),
            "the index found again, processor time": f"{again['open_processor_seconds']:.1f} s",
            "most memory in all of this, with the order of an epoch": f"{peak:,} MB",
        }
    return "\n".join([*lines, "| | |", "| --- | ---: |", *(f"| {name} | {value} |" for name, value in rows.items())])


def _smaller_indexes(found: dict[str, Any]) -> dict[str, str]:
    """By the clock, where fewer images were indexed beside the many."""
    rows = [value for key, value in found.items() if key.startswith("index_")]
    return {
        f"{row['images']:,} images by the clock, on two cores that were less busy": (
            f"{row['scanned']['seconds_per_million']:.0f} s"
        )
        for row in rows
    }


def steps_table(found: dict[str, Any]) -> str:
    """Memory of training steps on a processor, measured beside computed."""
    if not found["measured"]:
        return "Not measured on a processor yet."
    lines = [
        "Measured on a processor, in float32 with one thread per process, beside what the formulas say of it. Where "
        "nothing is sharded they agree within 15 % or 75 MB, which a test holds. With sharding a processor holds up to "
        "twice as much as is computed, for memory of weights that were gathered for a moment stays with the process; "
        "what a GPU holds could not be measured.",
        "",
        "| model | way | processes | images each | measured MB | computed MB | seconds of processor time per step |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for row in found["measured"]:
        memory = f"{row['measured_bytes'] / 1e6:,.0f} | {row['computed_bytes'] / 1e6:,.0f}"
        shape = f"{row['model']} | {row['way']} | {row['processes']} | {row['batch']}"
        lines.append(f"| {shape} | {memory} | {row['seconds']:.2f} |")
    return "\n".join(lines)


def gpus_table(found: dict[str, Any]) -> str:
    """What is computed for GPUs."""
    assumed = found["assumed"]
    used = f"{assumed['share_used']:.0%} of {assumed['gpu_peak_flops'] / 1e12:.0f} TFLOP/s"
    lines = [
        f"{assumed['gpus']} GPUs of {assumed['memory'] / 1e9:.0f} GB each, in mixed precision with AdamW. The speed "
        f"assumes that {used} are used, and nothing for communication.",
        "",
        "| model | weights, gradients, moments GB | MB per image | with activation checkpointing "
        "| images per GPU at most | choose | images/s per GPU | ms per step of 64 |",
        "| --- | ---: | ---: | ---: | ---: | --- | ---: | ---: |",
    ]
    for row in found["computed"]:
        fit, speed = row["fit"], row["images_per_second_per_gpu"]
        state = f"{4 * fit['weights'] / 1e9:,.2f}"
        images = f"{fit['image'] / 1e6:,.0f} | {fit['image_checkpointed'] / 1e6:,.0f}"
        most = fit["largest_batch"][fit["choice"]]
        lines.append(
            f"| {row['model']} | {state} | {images} | {most:,} | {fit['choice']} | {speed:,} | {64e3 / speed:,.0f} |"
        )
    return "\n".join(lines)
