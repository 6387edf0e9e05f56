"""The notebooks run, in short, and are kept with the outputs of a full run."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
NOTEBOOKS = sorted((ROOT / "tutorials").glob("*.ipynb"))
MACHINE = re.compile(r"/(home|root|tmp|usr|work|opt|var|Users)/|[A-Z]:\\|site-packages|ipykernel_\d")


def _read(path: Path) -> dict[str, Any]:
    notebook: dict[str, Any] = json.loads(path.read_text())
    return notebook


def _cells(path: Path, kind: str) -> list[dict[str, Any]]:
    return [cell for cell in _read(path)["cells"] if cell["cell_type"] == kind]


def _source(cell: dict[str, Any]) -> str:
    return "".join(cell["source"])


def test_there_are_notebooks() -> None:
    assert NOTEBOOKS


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
class TestNotebook:
    def test_runs_in_short(self, path: Path, tmp_path: Path) -> None:
        # In a process of its own, as a reader would: notebooks register kernels and set styles.
        cells = _cells(path, "code")
        script = tmp_path / f"{path.stem}.py"
        script.write_text("\n".join(f"# cell {k}\n{_source(c)}" for k, c in enumerate(cells, 1)))
        environment = os.environ | {
            "CI": "1",
            "MPLBACKEND": "Agg",
            "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        }
        run = subprocess.run(
            [sys.executable, str(script)],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=600,
        )
        assert run.returncode == 0, run.stderr

    def test_says_what_it_is_for(self, path: Path) -> None:
        text = [_source(cell) for cell in _cells(path, "markdown")]
        assert text[0].startswith("# ")
        assert "what you will be able to do" in text[0].lower()
        assert text[-1].startswith("## What to try next")
        code = "\n".join(_source(cell) for cell in _cells(path, "code"))
        assert 'smoke_test = "CI" in os.environ' in code

    def test_has_outputs(self, path: Path) -> None:
        cells = _cells(path, "code")
        # Run once, from the first cell to the last.
        assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
        outputs = [output for cell in cells for output in cell["outputs"]]
        assert not [output for output in outputs if output["output_type"] == "error"]
        assert not [output for output in outputs if output.get("name") == "stderr"]
        assert any("image/png" in output.get("data", {}) for output in outputs)

    def test_has_no_trace_of_a_machine(self, path: Path) -> None:
        notebook = _read(path)
        for cell in notebook["cells"]:
            assert not cell["metadata"], "expected no metadata of cells, such as times"
            for output in cell.get("outputs", []):
                output.get("data", {}).pop("image/png", None)
        text = json.dumps(notebook)
        assert not MACHINE.search(text), MACHINE.search(text)
