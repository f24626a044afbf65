"""Every ```python block of the documents runs: one file's blocks in order, as one program."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = ["README.md", "CONTRIBUTING.md"]
DOCUMENTS += sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("docs/**/*.md"))


def program(text):
    """The Python blocks of a Markdown text, each line at its own line number."""
    lines, fence = [], None
    for line in text.splitlines():
        if fence is None and line.strip().startswith("```"):
            fence = line.strip()
            indent = line.index("`")
            lines.append("")
        elif fence is not None and line.strip() == "```":
            fence = None
            lines.append("")
        else:
            lines.append(line[indent:] if fence == "```python" else "")
    return "\n".join(lines) + "\n"


def run(source, name, folder):
    """Run a program in a process of its own, so that it sees what a reader's Python would."""
    environment = os.environ | {"MPLBACKEND": "Agg", "PYTHONPATH": str(ROOT), "CI": "true"}
    del environment["XLA_FLAGS"]
    code = "import sys; exec(compile(sys.stdin.read(), sys.argv[1], 'exec'))"
    return subprocess.run(
        [sys.executable, "-c", code, name],
        input=source,
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
    )


# what a reader meets first, and what calls ArviZ, runs among the fast tests on every Python
FAST = {"README.md", "CONTRIBUTING.md", "docs/function_space.md"}


@pytest.mark.parametrize(
    "name", [n if n in FAST else pytest.param(n, marks=pytest.mark.slow) for n in DOCUMENTS]
)
def test_python_blocks_run(name, tmp_path):
    result = run(program((ROOT / name).read_text()), name, tmp_path)
    assert result.returncode == 0, result.stderr


def test_a_failing_block_is_named_by_file_and_line(tmp_path):
    text = "- item\n\n  ```python\n  x = 1\n  ```\n\n```sh\nfalse\n```\n\n```python\nx / 0\n```\n"
    result = run(program(text), "page.md", tmp_path)
    assert result.returncode == 1
    assert 'File "page.md", line 12' in result.stderr
    assert "ZeroDivisionError" in result.stderr
