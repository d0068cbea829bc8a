"""The files that docs/deploy.md hands out, each performed as far as this machine has the tools."""

import fnmatch
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import httpx
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from support.commands import check_refused, run_command
from support.live_server import image_bytes, save_tiny_model, serving
from support.ports import free_port
from support.serving import wait_for
from vitreous.config.server import ServerSettings
from vitreous.server.running import Server

ROOT = Path(__file__).parents[2]
TOKEN = "0123456789abcdef0123456789abcdef"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save_tiny_model(tmp_path_factory.mktemp("models") / "tiny")


def instructions():
    """(name, rest) of each instruction of the Dockerfile, continued lines joined."""
    text = re.sub(r"^#.*\n", "", (ROOT / "Dockerfile").read_text(), flags=re.M).replace("\\\n", " ")
    return [tuple(line.split(None, 1)) for line in text.splitlines() if line.strip()]


def the(name):
    return [rest for found, rest in instructions() if found == name]


def test_the_image_has_two_stages_and_no_root():
    stages = the("FROM")
    assert len(stages) == 2
    assert stages[0].endswith("AS build")
    assert not any("/" in stage for stage in stages)  # no registry is named
    assert [rest for rest in the("COPY") if rest.startswith("--from=build")] == [
        "--from=build /opt/vitreous /opt/vitreous"
    ]
    assert the("USER") == ["vitreous"]
    last = instructions()[[found for found, _ in instructions()].index("FROM", 1) :]
    assert [found for found, _ in last].index("USER") < [found for found, _ in last].index("ENTRYPOINT")


def copied():
    """What the first stage copies from the project."""
    return [word for rest in the("COPY") if not rest.startswith("--from") for word in rest.split()[:-1]]


def test_what_the_image_is_made_of_is_there_and_let_in():
    rules = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")]
    for source in copied():
        assert (ROOT / source).exists(), source
        let_in = None
        for rule in rules:  # the last that fits decides
            if fnmatch.fnmatch(source, rule.lstrip("!").removeprefix("**/")):
                let_in = rule.startswith("!")
        assert let_in, source
    for secret in (".git", "runs", ".venv", "token"):
        assert fnmatch.fnmatch(secret, rules[0])
        assert f"!{secret}" not in rules


def test_the_packages_of_the_image_exist():
    install, _ = [shlex.split(rest) for rest in the("RUN") if "pip install" in rest]
    assert install[install.index("--constraint") + 1] == "constraints.txt"
    extras = re.fullmatch(r"\.\[(.+)\]", install[-1])[1].split(",")
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(extras) <= set(known)


def test_an_edit_of_the_sources_does_not_install_torch_again():
    """Docker keeps a layer as long as what was copied before it is the same; and torch for CUDA has gigabytes."""
    steps = [rest for name, rest in instructions() if name in ("COPY", "RUN")]
    needs, package = (number for number, rest in enumerate(steps) if "pip install" in rest)
    assert needs < steps.index("src ./src") < package
    assert "--no-deps" in steps[package]
    assert "PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu" in the("ARG")


def build_stage(folder):
    """The environment that the first stage makes, by its own instructions, in a folder instead of /opt and /build.

    What it installs is this project alone: no test asks the network, so pip is shown the packages that are here.
    """
    work, installed = folder / "build", folder / "opt"
    work.mkdir()
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= {"PIP_NO_INDEX": "1", "PIP_NO_BUILD_ISOLATION": "0", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
    stage = instructions()[: [found for found, _ in instructions()].index("FROM", 1)]
    for name, rest in stage:
        if name == "COPY":
            *sources, target = rest.split()
            for source in sources:
                place = work / target / (Path(source).name if target.endswith("/") else "")
                copy = partial(shutil.copytree, dirs_exist_ok=True) if (ROOT / source).is_dir() else shutil.copy
                copy(ROOT / source, place)
        elif name == "RUN":
            subprocess.run(
                rest.replace("/opt/vitreous", str(installed)), shell=True, cwd=work, env=environment, check=True
            )
            if "venv" in rest:
                (site,) = installed.glob("lib/python3.*/site-packages")
                (site / "here.pth").write_text(sysconfig.get_path("purelib"))
                for old in site.glob("setuptools*"):  # Python's own, which pip would get a newer one for
                    shutil.rmtree(old)
        else:
            assert name in ("FROM", "ARG", "WORKDIR"), name
    return installed


@pytest.mark.exhaustive
def test_the_image_by_its_steps(model, tmp_path):
    """What the first stage installs from what it copies; its command answers, is found healthy, and ends well."""
    installed = build_stage(tmp_path)
    start = json.loads(the("ENTRYPOINT")[0]) + json.loads(the("CMD")[0])
    assert start[:2] == ["vitreous", "serve"]
    assert "0.0.0.0" in start
    options = [word for word in start[2:] if word != "/model"]
    with serving(
        model,
        options=options,
        program=[installed / "bin" / start[0]],
        PYTHONPATH="",
        VITREOUS_TOKEN=TOKEN,
        VITREOUS_CACHE=str(tmp_path / "cache"),
    ) as running:
        check = json.loads(the("HEALTHCHECK")[0].partition("CMD ")[2])
        assert check[:2] == ["python", "-c"]
        health = check[2].replace("8000", str(running.port))
        subprocess.run([installed / "bin" / "python", "-c", health], check=True)
        assert the("EXPOSE") == ["8000"]
        answers = ask(f"{running.url}/predict")
        assert answers == {None: 401, TOKEN: 200}
        assert httpx.get(running.url, timeout=60).text  # the page's files were installed too
        assert running.end() == 0
    where = [installed / "bin" / "python", "-c", "import vitreous; print(vitreous.__file__)"]
    told = subprocess.run(where, capture_output=True, text=True, check=True, cwd=tmp_path, env={"PATH": "/usr/bin"})
    assert told.stdout.startswith(str(installed))


def test_the_image_refuses_to_start_without_a_token(model, monkeypatch):
    monkeypatch.delenv("VITREOUS_TOKEN", raising=False)
    start = [word if word != "/model" else model for word in json.loads(the("ENTRYPOINT")[0])[1:]]
    check_refused(run_command(*start, model), "VITREOUS_TOKEN")


def ask(address):
    """{token: status} of a prediction without and with the token."""
    return {
        token: httpx.post(
            address, content=image_bytes(), headers={"Authorization": f"Bearer {token}"} if token else {}, timeout=60
        ).status_code
        for token in (None, TOKEN)
    }


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze, of systemd")
def test_systemd_accepts_the_unit(tmp_path):
    unit = tmp_path / "vitreous.service"
    unit.write_text(
        (ROOT / "deploy" / "vitreous.service").read_text().replace("/opt/vitreous/bin/vitreous", sys.executable)
    )
    verified = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True)
    assert (verified.returncode, verified.stderr) == (0, "")
    secured = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--threshold=20", unit], capture_output=True, text=True
    )
    assert secured.returncode == 0, secured.stdout  # exposed by at most 2.0 of 10


def seconds(file, setting):
    """What a setting of one of the files says."""
    return float(re.search(rf"{re.escape(setting)}[ =](\d+)s?\b", (ROOT / file).read_text())[1])


def test_whoever_stands_before_the_server_is_more_patient_than_it():
    """Else a proxy tells people of its own that the server was about to answer, and a manager kills it as it ends."""
    settings = ServerSettings()
    assert seconds("deploy/nginx.conf", "proxy_read_timeout") > settings.longest_seconds
    assert seconds("deploy/vitreous.service", "TimeoutStopSec") > settings.longest_seconds
    assert seconds("docs/deploy.md", "docker stop --timeout") > settings.longest_seconds
    assert seconds("docs/deploy.md", "terminationGracePeriodSeconds:") > settings.longest_seconds


def test_the_proxy_lets_go_of_a_connection_before_the_server_does():
    """Else it now and then sends a request into a connection that is just being closed, and answers 502."""
    server = Server([], ServerSettings())
    assert seconds("deploy/nginx.conf", "keepalive_timeout") < server.config.timeout_keep_alive


def answers(web):
    try:
        return web.get("/v2/health/live")
    except httpx.ConnectError:
        return None


@contextmanager
def proxied(running, folder):
    """The address of nginx by our configuration, before a server."""
    port = free_port()
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    request = shlex.split("openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=images.example")
    subprocess.run([*request, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    site = (ROOT / "deploy" / "nginx.conf").read_text()
    changed = {
        "listen 443 ssl": f"listen 127.0.0.1:{port} ssl",
        "server 127.0.0.1:8000": f"server 127.0.0.1:{running.port}",
        "/etc/ssl/certs/images.example.pem": str(certificate),
        "/etc/ssl/private/images.example.key": str(key),
    }
    for old, new in changed.items():
        assert site.count(old) == 1, old
        site = site.replace(old, new)
    (folder / "site.conf").write_text(site)
    temporary = "".join(
        f"{kind}_temp_path {folder}/{kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    (folder / "nginx.conf").write_text(
        f"daemon off; master_process off; pid {folder}/pid; error_log stderr; events {{}}\n"
        f"http {{ access_log off; {temporary} include {folder}/site.conf; }}\n"
    )
    command = ["nginx", "-p", str(folder), "-c", str(folder / "nginx.conf")]
    checked = subprocess.run([*command, "-t", "-q"], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stderr
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        with httpx.Client(
            base_url=f"https://127.0.0.1:{port}", verify=False, headers={"Host": "images.example"}, timeout=60
        ) as web:
            wait_for(lambda: answers(web), "nginx answers")
            yield web
    finally:
        process.terminate()
        process.wait()


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("nginx") is None or shutil.which("openssl") is None, reason="needs nginx and openssl")
def test_behind_nginx(model, tmp_path):
    with serving(model, VITREOUS_TOKEN=TOKEN) as running, proxied(running, tmp_path) as web:
        bearer = {"Authorization": f"Bearer {TOKEN}"}
        assert web.get("/").status_code == 200
        assert web.post("/predict", content=image_bytes()).status_code == 401
        answered = web.post("/predict", content=image_bytes(), headers=bearer)
        directly = httpx.post(f"{running.url}/predict", content=image_bytes(), headers=bearer, timeout=60)
        assert answered.json() == directly.json()
        assert "default-src 'none'" in answered.headers["content-security-policy"]
        assert web.get("/metrics", headers=bearer).status_code == 403
        assert web.post("/predict", content=bytes(33 * 2**20), headers=bearer).status_code == 413
        from_page = {**bearer, "Origin": "https://images.example"}  # as a browser sends from the page
        assert web.post("/predict", content=image_bytes(), headers=from_page).status_code == 200


@pytest.mark.slow
def test_the_unit_starts_a_server_that_counts_what_alerts_ask_for(model):
    """By the unit for systemd, except for its port."""
    unit = (ROOT / "deploy" / "vitreous.service").read_text()
    program, verb, place, *words = shlex.split(re.search(r"^ExecStart=(.*)$", unit, re.M)[1])
    assert (program, verb, place) == ("/opt/vitreous/bin/vitreous", "serve", "/srv/vitreous/model")
    with serving(model, options=words[: words.index("--port")]) as running:
        assert httpx.get(f"{running.url}/v2/health/ready", timeout=60).status_code == 200
        check = json.loads(the("HEALTHCHECK")[0].partition("CMD ")[2])  # the image's
        subprocess.run([sys.executable, *check[1:-1], check[-1].replace("8000", str(running.port))], check=True)
        httpx.post(f"{running.url}/predict", content=image_bytes(), timeout=60)
        metrics = httpx.get(f"{running.url}/metrics", timeout=60).text
    families = text_string_to_metric_families(metrics)
    samples = [one for family in families for one in family.samples]
    rules = yaml.safe_load((ROOT / "deploy" / "alerts.yml").read_text())["groups"][0]["rules"]
    known = {one.name: set(one.labels) for one in samples} | {"up": set()}
    for rule in rules:
        asked = re.findall(r"\b((?:vitreous|process)_\w+|up)\b(?:\{(.*?)\})?", rule["expr"])
        assert asked, rule
        for name, labels in asked:
            assert name in known, name
            assert {label.partition("=")[0] for label in labels.split(",") if label} <= known[name] | {"job"}, rule
