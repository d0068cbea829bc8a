"""What `pip install` gets: a wheel with everything in it, built from the source distribution."""

import os
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def run(*command, **options):
    done = subprocess.run(command, capture_output=True, text=True, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_an_installed_wheel_trains_predicts_and_reports(tmp_path):
    run(sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", str(tmp_path), cwd=ROOT)
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as file:
        file.extractall(tmp_path / "source", filter="data")
    (source,) = (tmp_path / "source").iterdir()
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path), cwd=source)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as file:
        packed = {name for name in file.namelist() if name.startswith("vitreous/")}
    ours = {path.relative_to(ROOT / "src").as_posix() for path in (ROOT / "src/vitreous").rglob("*") if path.is_file()}
    assert packed == {name for name in ours if "__pycache__" not in name}

    # an environment of its own, which borrows the dependencies of this one
    run(sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "venv"))
    python = tmp_path / "venv/bin/python"
    (site,) = (tmp_path / "venv/lib").glob("python*/site-packages")
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--no-deps", "--no-index", "--quiet"]
    run(*pip, str(wheel))
    borrowed = [sysconfig.get_paths()["purelib"], *(path for path in sys.path if path.endswith("site-packages"))]
    (site / "borrowed.pth").write_text("\n".join(dict.fromkeys(borrowed)))

    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    options = {"cwd": tmp_path, "env": environment}
    where = run(python, "-c", "import vitreous; print(vitreous.__file__)", **options)
    assert Path(where.strip()).is_relative_to(tmp_path / "venv")
    vitreous = str(tmp_path / "venv/bin/vitreous")
    run(vitreous, "fit", "builtin", "--epochs", "0.05", "--workers", "0", "--out", "run", **options)
    assert (tmp_path / "run" / "report.html").stat().st_size > 10_000
    run(python, "-c", "from vitreous.data.builtin import write_images; write_images('images')", **options)
    assert run(vitreous, "predict", "run", "images", **options).count("%") >= 10
