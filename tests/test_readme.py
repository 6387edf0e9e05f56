"""The README: its example runs, and nobody scrolls past figures to find how to begin."""

import re
from pathlib import Path

README = (Path(__file__).parent.parent / "README.md").read_text()
SCREEN = 60  # lines


def test_example() -> None:
    (example,) = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    scope: dict[str, object] = {}
    exec(compile(example, "README.md", "exec"), scope)
    assert scope["likelihood"](scope["x"]).batch_shape == (1000,)  # type: ignore[operator]


def test_three_screens() -> None:
    """The story and how to begin come first, then tables of what there is, then figures."""
    lines = README.splitlines()
    assert len(lines) <= 3 * SCREEN
    begin, works, figures = (
        lines.index(f"## {title}") for title in ("Three commands", "What works", "Figures")
    )
    assert begin < SCREEN
    assert works <= SCREEN + 5
    assert figures <= 2 * SCREEN
