"""What a Hugging Face folder holds beside the tensors: config.json with the labels, and preprocessor_config.json."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from vitreous.arguments import check_value
from vitreous.config.data import Preprocess
from vitreous.storage.files import new_folder, write_tensors
from vitreous.weights.checkpoint import ParsedCheckpoint, RawCheckpoint, without_placeholders
from vitreous.weights.processor import from_processor, to_processor


def with_description(raw: RawCheckpoint, found: ParsedCheckpoint) -> ParsedCheckpoint:
    """The checkpoint with the preprocessing and labels of the files beside it; LABEL_0, LABEL_1, ... are no labels."""
    read = None if raw.processor is None else partial(from_processor, raw.processor, found.config, raw.where)
    labels = (raw.config or {}).get("id2label") or {}
    names: Sequence[str] = check_value([labels[str(k)] for k in range(len(labels))], tuple[str, ...], "id2label")
    return found.apply_description(raw, "preprocessor_config.json", read, without_placeholders(names), "id2label")


def write_folder(
    out: Path, config: dict[str, Any], labels: Sequence[str], preprocess: Preprocess, tensors: dict[str, Tensor]
) -> Path:
    """Write config.json with the labels, preprocessor_config.json and the tensors."""
    processor = to_processor(preprocess, str(out))
    if labels:
        config = config | {
            "id2label": {str(k): label for k, label in enumerate(labels)},
            "label2id": {name: k for k, name in enumerate(_unique_labels(labels))},
        }
    with new_folder(out) as folder:
        (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        (folder / "preprocessor_config.json").write_text(json.dumps(processor, indent=2) + "\n", encoding="utf-8")
        write_tensors(folder / "model.safetensors", tensors)
    return out


def _unique_labels(labels: Sequence[str]) -> list[str]:
    """The labels; a name of several classes gets their numbers: "crane (134)", "crane (517)"."""
    counts, names = Counter(labels), []
    for k, name in enumerate(labels):
        if counts[name] > 1:
            while name in counts:  # a third class may be called so
                name = f"{name} ({k})"
        names.append(name)
    return names
