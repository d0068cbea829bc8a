"""What docs/scale.md tells people to paste: YAML that parses, scripts that bash reads, commands that we take."""

import re
import shlex
import subprocess
from pathlib import Path

import yaml

from vitreous.cli import load_verb, verb_table
from vitreous.cli.parsing import parse
from vitreous.inference.part_plan import parse_slice

PAGE = (Path(__file__).parents[2] / "docs" / "scale.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", PAGE, flags=re.S | re.M)
SCRIPTS = [text for kind, text in BLOCKS if kind in ("sh", "bash")]
MANIFESTS = [text for kind, text in BLOCKS if kind == "yaml"]
VARIABLES = {
    "$SLURM_ARRAY_TASK_ID": "3",
    "$SLURM_ARRAY_TASK_COUNT": "32",
    "$((JOB_COMPLETION_INDEX + 1))": "32",
    "$first": "node1",
}


def commands(text):
    """The words after `vitreous` in each command of a script."""
    for name, value in VARIABLES.items():
        text = text.replace(name, value)
    for line in text.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        if "vitreous" in words:
            yield words[words.index("vitreous") + 1 :]


def manifest_commands(document):
    """The same of a Kubernetes object: its entry point, or what its containers are told."""
    if "entrypoint" in document["spec"]:
        yield from commands(document["spec"]["entrypoint"])
    for container in document["spec"].get("template", {}).get("spec", {}).get("containers", ()):
        words = [*container["command"], *container["args"]]
        yield from commands(words[2] if words[:2] == ["sh", "-c"] else shlex.join(words))


DOCUMENTS = [document for text in MANIFESTS for document in yaml.safe_load_all(text)]
COMMANDS = [words for text in SCRIPTS for words in commands(text)]
COMMANDS += [words for document in DOCUMENTS for words in manifest_commands(document)]


def test_there_are_examples():
    assert {document["kind"] for document in DOCUMENTS} == {"Service", "Job", "RayJob"}
    assert len(SCRIPTS) >= 6
    assert len(COMMANDS) >= 10


def test_bash_reads_it(subtests):
    for text in SCRIPTS:
        with subtests.test(text=text):
            subprocess.run(["bash", "-n"], input=text, text=True, check=True)


def test_the_command_line_takes_it(subtests):
    for verb, *rest in COMMANDS:
        with subtests.test(" ".join([verb, *rest])):
            assert verb in verb_table()
            taken, _ = parse(verb, load_verb(verb), rest)
            if getattr(taken, "part", None):
                assert parse_slice(taken.part)[1] == 32


def test_a_pod_of_the_service_is_where_the_others_meet():
    """The name that the pods of an indexed job get: JOB-INDEX.SUBDOMAIN."""
    service, job = DOCUMENTS[:2]
    pods = job["spec"]["template"]["spec"]
    assert service["spec"]["selector"] == {"job-name": job["metadata"]["name"]}
    assert pods["subdomain"] == service["metadata"]["name"]
    assert f"--rdzv-endpoint={job['metadata']['name']}-0.{pods['subdomain']}:29500" in pods["containers"][0]["args"]
    assert f"--nnodes={job['spec']['completions']}" in pods["containers"][0]["args"]
    assert {"name": "TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "value": "1"} in pods["containers"][0]["env"]
