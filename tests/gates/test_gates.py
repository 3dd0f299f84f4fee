"""The project's checks on itself."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent


def passes(*command):
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize(
    "command",
    [
        ("ruff", "check", "."),
        ("ruff", "format", "--check", "."),
        ("basedpyright",),
        ("lint-imports", "--no-cache"),
        ("deptry", "src"),
        ("python", "docs/generate.py", "--check"),
    ],
    ids=lambda command: " ".join(command),
)
def test_check(command):
    passes(BIN / command[0], *command[1:])


def test_no_code_is_dead():
    done = subprocess.run([BIN / "vulture"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert not [line for line in done.stdout.splitlines() if line.startswith("src/")], done.stdout


def test_decisions_have_one_skeleton():
    text = (ROOT / "docs" / "decisions.md").read_text()
    for decision in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        heads = re.findall(r"^\*\*(\w+)\.\*\*", decision, flags=re.MULTILINE)
        assert heads == ["Decision", "Why", "Consequences"], decision.splitlines()[0]


def test_links_between_documents_lead_somewhere():
    for page in [ROOT / "README.md", *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")]:
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.relative_to(ROOT)} links to {target}"


def test_every_promise_is_kept_by_a_test_that_runs_or_says_what_stands_instead(request):
    """Each row of the parity page names tests of this very run, a replacement with its reason, or that it is planned."""
    collected = {item.nodeid.partition("[")[0] for item in request.session.items}
    whole = len({item.path for item in request.session.items}) > 5
    rows = [line for line in (ROOT / "docs" / "parity.md").read_text().splitlines() if line.startswith("| ") and "---" not in line]
    promises = [[cell.strip() for cell in re.split(r"(?<!\\)\|", row)[1:-1]] for row in rows]
    promises = [cells for cells in promises if cells[0] != "source"]
    assert len(promises) > 300
    for source, behaviour, kept in promises:
        assert source and behaviour, behaviour
        names = re.findall(r"`(tests/[^`]+)`", kept)
        if not names:
            assert kept == "planned" or re.match(r"replaced: .{10,}", kept), f"{behaviour} → {kept}"
        for name in names:
            path, _, test = name.partition("::")
            assert f"def {test}(" in (ROOT / path).read_text(), f"{name} does not exist"
            assert not whole or name in collected, f"{name} did not run"


def test_the_demo_fixes_a_test_and_commits_it_with_a_message_of_a_local_model():
    said = passes(sys.executable, "examples/fix_a_test/demo.py")
    assert "3 failed" in said and "3 passed" in said
    assert "is scripted" in said.splitlines()[0] or "The agent's model is" in said.splitlines()[0]
    assert said.rstrip().endswith("Done: the test is fixed, and the fix is committed.")
