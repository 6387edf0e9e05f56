"""The examples of the README run."""

import re
from pathlib import Path


def test_examples() -> None:
    text = (Path(__file__).parent.parent / "README.md").read_text()
    examples = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    assert len(examples) == 3
    scope: dict[str, object] = {}
    for example in examples:  # the second goes on where the first ends
        exec(compile(example, "README.md", "exec"), scope)
    assert scope["joint"].event_shape == (3,)  # type: ignore[attr-defined]
