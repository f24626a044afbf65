"""Check the installed package against the source tree; run with -I from a folder outside it.

usage: python -I check_wheel.py ROOT_OF_THE_SOURCE_TREE
"""

import importlib
import pkgutil
import sys
from importlib.metadata import files
from pathlib import Path

root = Path(sys.argv[1])
rooms = {"ppl_bnn": "ppl_bnn", "models": "ppl_bnn/models", "inference": "ppl_bnn/inference"}
expected = {
    f"{target}/{source.relative_to(root / room).as_posix()}"
    for room, target in rooms.items()
    for pattern in ("*.py", "py.typed")
    for source in (root / room).rglob(pattern)
}
shipped = {
    str(file)
    for file in files("ppl-bnn") or []
    if ".dist-info" not in file.parts[0] and file.suffix != ".pyc"
}
if shipped != expected:
    sys.exit(
        f"the wheel lacks {sorted(expected - shipped)} and should not hold"
        f" {sorted(shipped - expected)}: does [tool.setuptools] packages in pyproject.toml list"
        " every package?"
    )

package = importlib.import_module("ppl_bnn")
modules = [package] + [
    importlib.import_module(module.name)
    for module in pkgutil.walk_packages(package.__path__, "ppl_bnn.")
]
names = [getattr(module, name) for module in modules for name in getattr(module, "__all__", ())]
print(f"{len(expected)} files and {len(names)} public names found in {package.__path__[0]}")
