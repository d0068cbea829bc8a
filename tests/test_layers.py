"""Who may import whom: each room only rooms below it, neighbours in a row not each other."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "vitreous"

ROWS = [
    ["verbs"],
    ["cli"],
    ["studies"],
    ["training", "server"],
    ["report"],
    ["inference"],
    ["evaluation", "explain", "fetch"],
    ["objectives"],
    ["weights"],
    ["data"],
    ["model"],
    ["storage", "distributed", "config"],
    ["memory", "threads", "arguments", "callbacks"],
    ["inputs"],
    ["errors", "interrupt", "glossary"],
]
HEIGHT = {room: height for height, row in enumerate(reversed(ROWS)) for room in row}
DOORS = (PACKAGE / "__init__.py", PACKAGE / "__main__.py")
FILES = sorted(path for path in PACKAGE.rglob("*.py") if path not in DOORS)


def room_of(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


def imports(path: Path) -> set[str]:
    """The rooms that a file imports from, wherever in the file."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name}: relative import; write the whole name"
            names = [node.module]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        found |= {room_of(name) for name in names if name == "vitreous" or name.startswith("vitreous.")}
    return found - {""}  # `from vitreous import __version__` imports no room


def test_a_room_knows_only_rooms_below_it(subtests):
    assert len(FILES) > 100
    for path in FILES:
        with subtests.test(str(path.relative_to(PACKAGE))):
            room = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
            assert room in HEIGHT, f"{room} has no row: give it one here and in docs/design.md"
            for other in imports(path) - {room}:
                assert HEIGHT[other] < HEIGHT[room], f"{path.relative_to(PACKAGE)} may not import vitreous.{other}"


def test_the_rule_would_notice(tmp_path):
    """The check reads imports inside functions too."""
    file = tmp_path / "x.py"
    file.write_text("def f():\n    from vitreous.training.loop import train\n    import vitreous.cli\n")
    assert imports(file) == {"training", "cli"}


LIGHT = [
    path
    for path in FILES
    if path.relative_to(PACKAGE).parts[0]
    in ("config", "cli", "verbs", "errors.py", "inputs.py", "interrupt.py", "memory.py", "threads.py")
    and path.name != "load.py"  # of Python only: no command
]


def test_config_and_commands_know_no_torch_until_they_run(subtests):
    assert {path.name for path in LIGHT} >= {"model.py", "train.py", "fit.py", "errors.py"}
    for path in LIGHT:
        with subtests.test(str(path.relative_to(PACKAGE))):
            for line in path.read_text().splitlines():
                assert not line.startswith(("import torch", "from torch")), f"{path}: {line}"


def test_every_file_that_the_design_names_is_there(subtests):
    design = (ROOT / "docs" / "design.md").read_text()
    rooms = re.findall(r"^      (\w+)/", design, re.M) + re.findall(r"│  (\w+)/", design)
    assert set(rooms) == {room for row in ROWS for room in row if (PACKAGE / room).is_dir()}
    for name in re.findall(r"`((?:\w+/)+(?:\w+\.py)?)`", design.partition("## A verb")[0]):
        with subtests.test(name):
            assert (PACKAGE / name).exists() or (ROOT / name).exists(), f"{name}: name the file that took its place"
