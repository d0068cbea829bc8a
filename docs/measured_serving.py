"""What benchmarks/serve.py found, as tables and sentences for docs/deploy.md."""

from __future__ import annotations

from typing import Any

from measured import cores


def serve_table(found: dict[str, Any]) -> str:
    """What the server holds under load; sections that were not measured are left out."""
    machine, lines = found["machine"], list[str]()
    lines.append(
        f"{machine['cpu']} ({', '.join(machine['features'])}), {cores(found)}, {machine['gemm_gflops']} billion "
        f"float32 operations a second in products, torch {machine['torch']}, ViT-Ti/16, Pets' JPEGs."
    )
    for section, describe in _SERVED.items():
        if section in found:
            lines += ["", *describe(found[section])]
    return "\n".join(lines)


def _throughput(found: dict[str, Any]) -> list[str]:
    median, latency = found["median"], found["latency"]
    return [
        f"| {found['clients']} clients, engine {found['engine']} | images a second |",
        "| --- | ---: |",
        f"| the model alone, without JPEGs | {median['model']:.1f} |",
        f"| the engine from JPEG bytes to labels, as `predict` does | {median['engine']:.1f} |",
        f"| the server, its clients on the same cores | {median['server']:.1f} |",
        "",
        f"The server has {100 * found['share_of_engine']:.0f} % of the engine's speed from bytes, "
        f"{100 * found['share_of_model']:.0f} % of the model's; half of the answers come within "
        f"{1000 * latency['p50']:.0f} ms, 99 % within {1000 * latency['p99']:.0f} ms.",
    ]


def _peers(found: dict[str, Any]) -> list[str]:
    lines = [
        f"| {found['clients']} clients, the same engine in each | requests a second | each round | median, ms "
        "| 99 %, ms |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for name, row in found["servers"].items():
        rounds = ", ".join(f"{one['per_second']:.1f}" for one in row["rounds"])
        lines.append(
            f"| {name} | {row['per_second']:.1f} | {rounds} | {1000 * row['p50']:.0f} | {1000 * row['p99']:.0f} |"
        )
    return [
        *lines,
        "",
        f"Medians of {len(row['rounds'])} rounds. The load of the machine before them was {found['load_before']:.1f}; "
        "where it is not near 0, others computed too, and differences smaller than those between rounds mean nothing.",
    ]


def _overload(found: dict[str, Any]) -> list[str]:
    refused, answered, held = found["refused"], found["answered"], found["megabytes"]
    return [
        f"**Overload.** {found['offered_per_second']:,.0f} requests a second were sent to a server that answers "
        f"{found['capacity']:.0f}. It answered {found['answered_per_second']:.0f} a second, 99 % within "
        f"{answered['p99']:.2f} s (a full queue takes {found['bound']:.2f} s), and refused the others: half of them "
        f"within {1000 * refused['p50']:.0f} ms, 99 % within {1000 * refused['p99']:.0f} ms, the slowest after "
        f"{1000 * refused['most']:.0f} ms. It held {held['before']} MB before, and at most {held['most']} MB. "
        f"Afterwards it answered {found['per_second_afterwards']:.0f} a second again.",
    ]


def _equality(found: dict[str, Any]) -> list[str]:
    said = [
        f"{row['largest_difference']:.1e} ({name}, {row['images']} images)"
        for name, row in found.items()
        if isinstance(row, dict) and "largest_difference" in row
    ]
    return [
        "**Batches.** Asked alone and among 32 others, no probability of any class differs by more than "
        f"{' and '.join(said)}."
    ]


def _memory(found: dict[str, Any]) -> list[str]:
    held = found["megabytes_after_each_tenth"]
    return [
        f"**Memory.** {found['requests']:,} requests to a tiny model (images, broken files, wrong names, "
        f"explanations): {held[0]:.0f} MB after the first tenth, {held[-1]:.0f} MB after the last; over the last eight "
        f"tenths it grew by {found['megabytes_per_thousand']:.2f} MB per thousand requests."
    ]


def _ending(found: dict[str, Any]) -> list[str]:
    return [
        f"**SIGTERM** under the load of 32 clients, {found['endings']} times: {found['under_way']} requests were under "
        f"way, {found['answered']} of them were answered, {found['lost']} lost; {found['processes_left']} processes "
        f"stayed, and the slowest end took {found['slowest']:.1f} s."
    ]


_SERVED = {
    "throughput": _throughput,
    "peers": _peers,
    "overload": _overload,
    "equal": _equality,
    "memory": _memory,
    "ending": _ending,
}
