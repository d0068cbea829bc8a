"""What docs/measured_engines.py makes of a result file; nothing is measured."""

import re

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
    plain = {"images_per_second": 50.0, "times": [1.0, 1.0, 1.0], "times_in_processor_time": [1.0, 1.0, 1.0]}
    merged = {"images_per_second": 60.0, "times": [1.1, 1.204, 1.3], "times_in_processor_time": [1.15, 1.216, 1.25]}
    found = {
        "0": {"n": 1110, "accuracies": [0.9, 0.91], "int8_of_seed_0": 0.895, "speeds": {"PyTorch": plain}},
        "8": {"n": 1110, "accuracies": [0.9, 0.892], "int8_of_seed_0": 0.89, "speeds": {"PyTorch": merged}},
        "load_before": 0.1,
        "epochs": 4,
    }
    lines = measured_engines._merging(found)
    assert re.search(r"\b4 \D+\b2 \D+1,110 ", lines[0])  # epochs, seeds, n
    assert lines[2:4] == [
        "| R = 0 | 90.50 | 90.0, 91.0 | 50.0: 1.00x; 1.00x (1.00 to 1.00) |",
        "| R = 8 | 89.60 | 90.0, 89.2 | 60.0: 1.20x; 1.22x (1.15 to 1.25) |",
    ]
    assert "89.50 % (R = 0), 89.00 % (R = 8)" in lines[-1]
