"""The three root folders make one package, and imports between them run one way."""

import ast
import importlib
import tomllib
from pathlib import Path

import pytest

import ppl_bnn

ROOT = Path(__file__).resolve().parents[1]
ROOMS = {"ppl_bnn": "ppl_bnn", "models": "ppl_bnn.models", "inference": "ppl_bnn.inference"}
FILES = sorted(path.relative_to(ROOT) for room in ROOMS for path in (ROOT / room).rglob("*.py"))
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def module_name(path):
    """The dotted name of a source file, such as `ppl_bnn.models.mlp` for models/mlp.py."""
    parts = [ROOMS[path.parts[0]], *path.with_suffix("").parts[1:]]
    return ".".join(parts).removesuffix(".__init__")


def imported_names(source):
    """Every dotted name that a source text imports; a relative import begins with a dot."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            prefix = "." * node.level + (node.module or "")
            yield from (f"{prefix}.{alias.name}" for alias in node.names)


def room_of(name):
    """The room that a dotted name lies in: models, inference, shared, or None outside ppl_bnn."""
    first, _, rest = name.partition(".")
    if first != "ppl_bnn":
        return None
    return rest.split(".")[0] if rest.split(".")[0] in ("models", "inference") else "shared"


def test_every_folder_with_an_init_is_a_listed_package():
    folders = {module_name(path) for path in FILES if path.name == "__init__.py"}
    assert folders == set(PYPROJECT["tool"]["setuptools"]["packages"])


@pytest.mark.parametrize("room", ["models", "inference"])
def test_a_room_refuses_its_bare_name(room, monkeypatch):
    monkeypatch.syspath_prepend(ROOT)
    with pytest.raises(ImportError, match=f"write `import ppl_bnn.{room}`"):
        importlib.import_module(room)


def test_public_names_import():
    assert ppl_bnn.__all__
    for module in map(importlib.import_module, ROOMS.values()):
        for name in getattr(module, "__all__", ()):
            assert hasattr(module, name), f"{module.__name__}.__all__ lists {name!r}"


def test_version_is_that_of_the_distribution():
    assert ppl_bnn.__version__ == PYPROJECT["project"]["version"]


@pytest.mark.parametrize("path", FILES, ids=str)
def test_imports_run_one_way(path):
    here = room_of(module_name(path))
    for name in imported_names((ROOT / path).read_text()):
        assert not name.startswith("."), f"{path} imports {name}: write it from `ppl_bnn` on"
        if path != Path("ppl_bnn/__init__.py"):
            assert room_of(name) in {None, "shared", here}, f"{path} must not import {name}"
