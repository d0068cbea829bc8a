"""Ray on one machine with two workers: the same answers, and after its driver was killed only the rest is done."""

import os
import secrets
import signal
import subprocess
import sys
import time

import pyarrow.parquet as parquet
import pytest
import torch
from PIL import Image

from support.colours import make_bundle, make_pictures, pixels
from vitreous.weights.bundle import load_bundle, save_bundle

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("ray")]

CLUSTER = """
import ray
opened = ray.init(num_cpus=2, include_dashboard=False, object_store_memory=100 * 2**20, log_to_driver=False)
print("address", opened.address_info["address"], flush=True)
input()
"""
TI16 = "vit_ti16_augreg_in21k_ft_in1k.safetensors"
SECONDS = 240
ENVIRONMENT = {
    **os.environ,
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN": secrets.token_hex(32),
}
"""Nobody else can use the cluster."""


@pytest.fixture(scope="module")
def address():
    """A cluster of two processors, in a process of its own: what Ray leaves in one is no business of other tests."""
    process = subprocess.Popen(
        [sys.executable, "-c", CLUSTER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=ENVIRONMENT
    )
    for line in process.stdout:
        if line.startswith("address "):
            yield line.split()[1]
            break
    process.communicate("\n", timeout=SECONDS)


def command(*words):
    return [sys.executable, "-c", "from vitreous.cli import main; main()", "predict", *map(str, words)]


def run(*words):
    done = subprocess.run(command(*words), capture_output=True, text=True, timeout=SECONDS, env=ENVIRONMENT)
    assert done.returncode == 0, done.stderr
    return done.stdout


def parts(out):
    return {path.name: path.read_bytes() for path in sorted(out.glob("part-*"))}


def test_pets_have_the_same_answers_with_and_without_ray(address, shared_data, tmp_path):
    breeds = [shared_data / "pets" / "test" / breed for breed in ("pug", "samoyed", "Siamese")]
    asked = (shared_data / TI16, *breeds, "--preprocess", "mean=0.5,std=0.5,crop=0.9", "--engine", "torch", "--out")
    said = run(*asked, tmp_path / "ray", "--ray", address)
    assert "90 pictures, in 2 parquet files" in said
    run(*asked, tmp_path / "plain")
    assert parts(tmp_path / "ray") == parts(tmp_path / "plain")
    labels = parquet.read_table(tmp_path / "ray").column("label").to_pylist()
    for start, name in ((0, "pug"), (30, "Samoyed"), (60, "Siamese cat")):
        right = [label == name for label in labels[start : start + 30]]
        assert sum(right) >= 20, name


@pytest.fixture(scope="module")
def slow_pictures(tmp_path_factory):
    """Eight parts of 64 that take a while to decode; they are one file with many names."""
    folder = tmp_path_factory.mktemp("slow")
    Image.fromarray(pixels("green", 0, (1100, 1100))).save(folder / "0.png", compress_level=1)
    for number in range(1, 8 * 64):
        (folder / f"{number}.png").hardlink_to(folder / "0.png")
    return folder


def finished(out):
    return {path.name for path in (out / "_vitreous").glob("part-*.json")}


def test_killed_half_way_and_started_again(address, slow_pictures, tmp_path):
    bundle, out = make_bundle(tmp_path / "b"), tmp_path / "o"
    driver = subprocess.Popen(
        command(bundle, slow_pictures, "--out", out, "--ray", address), stderr=subprocess.PIPE, env=ENVIRONMENT
    )
    end = time.monotonic() + SECONDS
    while len(finished(out)) < 2 and time.monotonic() < end:
        assert driver.poll() is None, driver.stderr.read()
        time.sleep(0.02)
    driver.kill()
    driver.communicate()
    wait_for_workers(out)
    before = {name: (out / "_vitreous" / name).stat().st_mtime_ns for name in finished(out)}
    assert 2 <= len(before) < 8
    said = run(bundle, slow_pictures, "--out", out, "--ray", address)
    assert f"512 pictures, in 8 parquet files ({len(before)} were there already)" in said
    assert len(finished(out)) == 8
    after = {name: (out / "_vitreous" / name).stat().st_mtime_ns for name in before}
    assert after == before
    paths = parquet.read_table(out).column("path").to_pylist()
    assert sorted(paths) == sorted(str(path) for path in slow_pictures.iterdir())


def test_what_a_worker_meets_is_told_as_it_would_be_here(address, tmp_path):
    """An unreadable picture in its row, and of weights that overflow the same sentence."""
    bundle = load_bundle(make_bundle(tmp_path / "b"))
    make_pictures(tmp_path / "p", count=30)
    (tmp_path / "p" / "red" / "7.png").write_text("no picture")
    said = run(tmp_path / "b", tmp_path / "p", "--out", tmp_path / "o", "--ray", address)
    assert "90 pictures, of which 1 could not be read, in 2 parquet files" in said
    errors = [row for row in parquet.read_table(tmp_path / "o").to_pylist() if row["error"] is not None]
    assert [row["path"] for row in errors] == [str(tmp_path / "p" / "red" / "7.png")]
    with torch.no_grad():
        bundle.model.head.weight.fill_(3e38)
    save_bundle(tmp_path / "huge", bundle.model, bundle.preprocess, bundle.labels)
    words = command(tmp_path / "huge", tmp_path / "p", "--out", tmp_path / "none", "--ray", address)
    done = subprocess.run(words, capture_output=True, text=True, timeout=SECONDS, env=ENVIRONMENT)
    assert done.returncode == 2
    assert "gives scores that are not numbers" in done.stderr.splitlines()[-1]


def wait_for_workers(out):
    """Until no part is written any more: Ray ends a dead driver's workers, but not in the same moment."""
    known = None
    while known != (known := finished(out)):
        time.sleep(2)


def test_ctrl_c_ends_it_and_keeps_what_is_done(address, slow_pictures, tmp_path):
    bundle, out = make_bundle(tmp_path / "b"), tmp_path / "o"
    driver = subprocess.Popen(
        command(bundle, slow_pictures, "--out", out, "--ray", address),
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
    )
    end = time.monotonic() + SECONDS
    while not finished(out) and time.monotonic() < end:
        time.sleep(0.02)
    driver.send_signal(signal.SIGINT)
    said = driver.communicate(timeout=SECONDS)[1]
    assert driver.returncode == 128 + signal.SIGINT
    assert "Traceback" not in said
    wait_for_workers(out)
    assert {path.stem for path in out.glob("part-*.parquet")} >= {name.removesuffix(".json") for name in finished(out)}
