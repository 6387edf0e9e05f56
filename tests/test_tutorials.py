"""The notebooks run, in short, and are kept with the outputs of a full run."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

ROOT = Path(__file__).parent.parent
NOTEBOOKS = sorted((ROOT / "tutorials").glob("*.ipynb"))
MACHINE = re.compile(
    r"/(home|root|tmp|usr|work|opt|var|Users)/|[A-Z]:\\|site-packages|ipykernel_\d"
)


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

    def test_prose_leaves_figures_to_the_cells(self, path: Path) -> None:
        """A figure with two decimals that no cell sets would be wrong after the next run."""
        settings = "\n".join(_source(cell) for cell in _cells(path, "code"))
        prose = "\n".join(_source(cell) for cell in _cells(path, "markdown"))
        prose = re.sub(r"\$\$.*?\$\$|\$.*?\$|`.*?`|\]\(.*?\)|arXiv:\S+", "", prose, flags=re.DOTALL)
        figures = re.findall(r"\d+\.\d{2,}", prose)
        assert not [figure for figure in figures if figure not in settings]

    def test_has_no_trace_of_a_machine(self, path: Path) -> None:
        notebook = _read(path)
        for cell in notebook["cells"]:
            assert not cell["metadata"], "expected no metadata of cells, such as times"
            for output in cell.get("outputs", []):
                output.get("data", {}).pop("image/png", None)
        text = json.dumps(notebook)
        assert not MACHINE.search(text), MACHINE.search(text)


def _torchrun(folder: Path, script: list[str]) -> "subprocess.Popen[str]":
    environment = os.environ | {
        "CI": "1",
        "GLOO_SOCKET_IFNAME": "lo0" if sys.platform == "darwin" else "lo",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
    }
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    return subprocess.Popen(
        [*command, str(ROOT / "tutorials" / "on_more_machines.py"), *script],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_on_more_machines(tmp_path: Path) -> None:
    """Two processes that are killed, and started again, end where others end."""
    first = _torchrun(tmp_path, ["--folder", "killed", "--crash-after", "2"])
    before, errors = first.communicate(timeout=300)
    assert first.returncode != 0 and "SIGKILL" in errors, errors
    runs = [_torchrun(tmp_path, ["--folder", name]) for name in ("whole", "killed")]
    results = [run.communicate(timeout=300) for run in runs]
    for run, (_, errors) in zip(runs, results, strict=True):
        assert run.returncode == 0, errors
    whole, after = (output.splitlines() for output, _ in results)
    killed = before.splitlines() + after
    # The second start goes on with epoch 3, and its lines are those of the whole run.
    assert killed[0] == killed[3] == whole[0] == "2 processes"
    assert killed[1:3] + killed[4:] == whole[1:]
    assert [line.split(":")[0] for line in whole[1:5]] == [f"epoch {k}" for k in range(1, 5)]
    states = [torch.load(tmp_path / name / "diamonds.pt") for name in ("whole", "killed")]
    assert all(torch.equal(value, states[1][name]) for name, value in states[0].items())
