"""The project's checks on itself."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    "command",
    [
        ("ruff", "check", "."),
        ("ruff", "format", "--check", "."),
        ("basedpyright",),
        ("lint-imports", "--no-cache"),
    ],
    ids=lambda command: " ".join(command),
)
def test_check(command):
    program = Path(sys.executable).with_name(command[0])
    done = subprocess.run([program, *command[1:]], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_demo_fixes_a_test_and_commits_it_with_a_message_of_a_local_model(tmp_path):
    done = subprocess.run([sys.executable, "examples/fix_a_test/demo.py"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 failed" in done.stdout and "3 passed" in done.stdout
    assert "is scripted" in done.stdout.splitlines()[0] or "The agent's model is" in done.stdout.splitlines()[0]
    assert done.stdout.rstrip().endswith("Done: the test is fixed, and the fix is committed.")
