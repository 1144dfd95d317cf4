"""Load models whose weights are codes, decoded by tests/cli/codes.py.

transformers 5.23 computes the height of an FP8 block as rows / scale rows, which gives wrong values or an
error if a block is cut.  So models are decoded before transformers loads them.
"""

import json
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path

import oracle

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "cli"))
import codes  # noqa: E402


@contextmanager
def plain(folder):
    """The folder, or a float32 copy without quantization_config if it has codes."""
    folder = Path(folder)
    if "quantization_config" not in json.loads((folder / "config.json").read_text()):
        yield folder
        return
    with tempfile.TemporaryDirectory() as parent:
        codes.plain(folder, Path(parent) / folder.name)
        yield Path(parent) / folder.name


def load(folder):
    with plain(folder) as path:
        return oracle.load(path)
