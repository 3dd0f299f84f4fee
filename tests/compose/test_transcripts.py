"""What a user sees who has made a mistake: whole transcripts, compared with ``golden/`` (HAMES_UPDATE_GOLDEN=1 writes them)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

GOLDEN = Path(__file__).parent / "golden"
HAMES = Path(sys.executable).with_name("hames")

MISTAKES = {
    "a misspelled setting": ("- {id: bash, set: {config: {timeot: 20}}}", "check"),
    "wrong types, all at once": ("- id: bash\n  set:\n    config:\n      timeout: soon\n      longest: -1\n      withhold: KEY", "check"),
    "a misspelled row": ("- {id: prompst, set: {config: {identity: false}}}", "check"),
    "a key that stands twice": ("- {id: web, use: hames.toolkit.files, use: hames.toolkit.search}", "check"),
    "a plugin that is not installed": ("- {id: web, use: hames.toolkit.filse}", "check"),
    "a row that is there already": ("- {id: bash, use: hames.toolkit.bash, config: {timeout: 5}}", "check"),
    "an unset variable": ("- {id: models, set: {config: {default: '${env:TEAM_MODEL}'}}}", "check"),
    "files in a circle": ("- {include: mistake.yaml}", "check"),
    "tabs": ("- id: web\n\tuse: hames.toolkit.files", "check"),
    "an isolated service that nobody knows": ("- {id: more, isolate: {tolls: true}, group: []}", "check"),
    "a value that nobody set": ("- {id: bash, set: {config: {timeout: 20}}}", "explain bash:config.timeot"),
    "a value and what it replaced": (
        "- {id: prompts, set: {config: {identity: false}}}\n- {id: prompts, set: {config: {identity: true}}}",
        "explain prompts:config.identity",
    ),
}


def transcript(name, text, command, place):
    (place / "mistake.yaml").write_text(text + "\n")
    environment = {"PATH": os.environ["PATH"], "HOME": str(place / "home")}
    arguments = ["compose", *command.split(), "--patch", "mistake.yaml"]
    done = subprocess.run([HAMES, *arguments], cwd=place, env=environment, capture_output=True, text=True, check=False)
    shown = "".join(f"    {line}\n" for line in text.splitlines())
    return f"# {name}\n\n{shown}\n$ hames {' '.join(arguments)}\n{done.stdout}{done.stderr}[exit status {done.returncode}]\n"


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_answered_as_in_the_transcript(name, tmp_path):
    text, command = MISTAKES[name]
    got = transcript(name, text, command, tmp_path)
    file = GOLDEN / f"{name.replace(' ', '_').replace(',', '')}.txt"
    if os.environ.get("HAMES_UPDATE_GOLDEN"):
        file.write_text(got)
    assert got == file.read_text()
