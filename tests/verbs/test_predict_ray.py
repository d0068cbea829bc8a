"""Ray on one machine with two workers: the same predictions, and a prediction that was ended goes on where it was."""

import os
import re
import secrets
import signal
import subprocess
import sys
import time

import pyarrow.parquet as parquet
import pytest
import torch

from support.colours import COLOURS, make_bundle, make_images
from support.engines import converted_to_int8
from vitreous import export_weights
from vitreous.verbs.predict import predict_many
from vitreous.weights.bundle import load_bundle, save_bundle

pytestmark = pytest.mark.slow

CLUSTER = """
import ray
opened = ray.init(num_cpus=2, include_dashboard=False, object_store_memory=100 * 2**20, log_to_driver=False)
print("address", opened.address_info["address"], flush=True)
input()
"""
DRIVER = """
import time
from pathlib import Path

from vitreous.cli import main
from vitreous.inference import ray_cluster as cluster


class HeldWorker:
    def __init__(self, *given):
        self.worker = cluster.ClusterWorker(*given)

    def __call__(self, row):
        try:
            Path({taken!r}).touch(exist_ok=False)
        except FileExistsError:
            time.sleep(600)
        return self.worker(row)


cluster.ClusterWorker = HeldWorker
main()
"""
"""Workers do one part, whichever comes first, and then hang. Ray sends a class of the main script by value."""
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


def start(*words, code="from vitreous.cli import main; main()", environment=ENVIRONMENT):
    command = [sys.executable, "-c", code, "predict", *map(str, words)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def parts(out):
    return {path.name: path.read_bytes() for path in sorted(out.glob("part-*"))}


def test_predictions_are_the_same_with_and_without_ray(address, tmp_path):
    """From a folder of timm, with an unreadable image."""
    images = make_images(tmp_path / "p", count=30)
    (images / "red" / "7.png").write_text("no image")
    model = export_weights(make_bundle(tmp_path / "b"), tmp_path / "timm", to="timm")
    options = ("--preprocess", "crop=0.9", "--engine", "torch", "--out", tmp_path / "ray", "--ray", address)
    driver = start(model, images, *options)
    said, err = driver.communicate(timeout=SECONDS)
    assert driver.returncode == 0, err
    assert re.search(r"\b90\b.*\b1\b.*\b2\b", said)
    predict_many(model, images, tmp_path / "plain", preprocess="crop=0.9", engine="torch")
    assert parts(tmp_path / "ray") == parts(tmp_path / "plain")
    rows = parquet.read_table(tmp_path / "ray").to_pylist()
    assert [row["path"] for row in rows if row["error"] is not None] == [str(images / "red" / "7.png")]
    labels = [row["prediction"] for row in rows if row["error"] is None]
    assert labels == [colour for colour in COLOURS for _ in range(30 - (colour == "red"))]


def test_a_refusal_of_a_worker_is_told(address, tmp_path):
    """Weights that overflow, which only who computes can see."""
    bundle = load_bundle(make_bundle(tmp_path / "b"))
    with torch.no_grad():
        bundle.model.head.weight.fill_(3e38)
    save_bundle(tmp_path / "huge", bundle.model, bundle.preprocess, bundle.labels)
    driver = start(
        tmp_path / "huge", make_images(tmp_path / "p", count=1), "--out", tmp_path / "none", "--ray", address
    )
    _, err = driver.communicate(timeout=SECONDS)
    assert driver.returncode == 2
    assert "Traceback" not in err
    assert "huge: " in err.splitlines()[-1]


def test_workers_without_the_verified_int8_compute_in_fp32_and_the_command_says_so(address, tmp_path, monkeypatch):
    """After `bench` chose int8 here: the workers have another cache, as on other machines."""
    monkeypatch.setenv("VITREOUS_CACHE", str(tmp_path / "cache"))
    path = make_bundle(tmp_path / "b")
    converted_to_int8(load_bundle(path))
    images = make_images(tmp_path / "p", count=30)
    environment = {**ENVIRONMENT, "VITREOUS_CACHE": str(tmp_path / "cache")}
    driver = start(path, images, "--out", tmp_path / "o", "--ray", address, environment=environment)
    out, err = driver.communicate(timeout=SECONDS)
    assert driver.returncode == 0, err
    assert '"precision": "int8"' in (tmp_path / "o" / "_vitreous" / "plan.json").read_text()
    assert "computed by openvino-fp32" in out
    assert re.search(r"engine: 2 of 2 parts .*openvino-int8", err)
    labels = parquet.read_table(tmp_path / "o").column("prediction").to_pylist()
    assert labels == [colour for colour in COLOURS for _ in range(30)]


def finished(out):
    return {path.name: path.stat().st_mtime_ns for path in (out / "_vitreous").glob("part-*.json")}


def wait_for(driver, out, count):
    end = time.monotonic() + SECONDS
    while len(finished(out)) < count:
        if driver.poll() is not None or time.monotonic() > end:
            driver.kill()
            pytest.fail(driver.communicate()[1])
        time.sleep(0.02)


def test_interrupted_and_killed_and_started_again(address, tmp_path):
    """Four parts: Ctrl-C comes after one, SIGKILL after two, and the third command does the other two."""
    images = make_images(tmp_path / "p", count=70)
    words = (make_bundle(tmp_path / "b"), images, "--out", tmp_path / "o", "--ray", address)
    out = tmp_path / "o"
    interrupted = start(*words, code=DRIVER.format(taken=str(tmp_path / "first")))
    wait_for(interrupted, out, 1)
    interrupted.send_signal(signal.SIGINT)
    _, err = interrupted.communicate(timeout=SECONDS)
    assert interrupted.returncode == 128 + signal.SIGINT
    assert "Traceback" not in err
    killed = start(*words, code=DRIVER.format(taken=str(tmp_path / "second")))
    wait_for(killed, out, 2)
    killed.kill()
    killed.communicate()
    before = finished(out)
    assert len(before) == 2
    last = start(*words)
    said, err = last.communicate(timeout=SECONDS)
    assert last.returncode == 0, err
    assert re.search(r"\b210\b.*\b4\b.*\b2\b", said)
    assert len(parts(out)) == len(finished(out)) == 4
    assert before.items() <= finished(out).items(), "what was done was not done again"
    paths = parquet.read_table(out).column("path").to_pylist()
    assert paths == sorted(str(path) for path in images.rglob("*.png"))
