"""What docs/measured_engines.py makes of a result file; nothing is measured."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "docs"))
import measured_engines


def test_a_section_holds_more_than_rows():
    """How busy the machine was stands beside the models."""
    row = {"accuracy": 0.91234, "interval": [0.9, 0.92], "n": 3669}
    machine = {"cpu": "Some CPU", "features": ["avx2"], "cores": 2, "threads": 2, "torch": "2.13.0"}
    found = {"pets": {"epochs": 2, "torch": row, "int8": row}, "load_before": 0.25, "measured_on": machine}
    text = measured_engines.engines_tables([{"accuracy": found}])
    assert text.splitlines()[0] == "### Some CPU"
    assert text.splitlines()[6:] == [
        "| pets (2 epochs), torch | 91.23 | 90.0 to 92.0 | 3,669 |",
        "| pets (2 epochs), int8 | 91.23 | 90.0 to 92.0 | 3,669 |",
    ]


def test_merging_is_told_beside_none():
    found = {
        "0": {"n": 1110, "accuracies": [0.9, 0.91], "pictures_per_second": {"torch": 50.0, "openvino": 60.0}},
        "8": {"n": 1110, "accuracies": [0.9, 0.892], "pictures_per_second": {"torch": 60.0, "openvino": 84.0}},
        "load_before": 0.1,
        "epochs": 4,
    }
    lines = measured_engines._merging(found)
    assert lines[0].startswith("| Pets after `fit --merge R` (4 epochs): mean of 2 seeds, n = 1,110 |")
    assert lines[2:] == [
        "| R = 0 | 90.50 | 90.0, 91.0 | 50.0 (1.00x) | 60.0 (1.00x) |",
        "| R = 8 | 89.60 | 90.0, 89.2 | 60.0 (1.20x) | 84.0 (1.40x) |",
    ]
