"""What is built from this checkout works elsewhere."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GOLDEN = Path(__file__).parent / "golden"


def run(*command, cwd, **more):
    done = subprocess.run([str(part) for part in command], cwd=cwd, capture_output=True, text=True, check=False, **more)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The wheel and the source archive."""
    directory = tmp_path_factory.mktemp("built")
    source = tmp_path_factory.mktemp("source") / "hames"
    run("git", "clone", "--quiet", "--no-hardlinks", ROOT, source, cwd=ROOT)
    for name in run("git", "ls-files", "--modified", "--others", "--exclude-standard", cwd=ROOT).splitlines():
        if (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((ROOT / name).read_bytes())
    code = f"from setuptools import build_meta as b; b.build_sdist({str(directory)!r}); b.build_wheel({str(directory)!r})"
    run(sys.executable, "-c", code, cwd=source)
    plugin = source / "examples" / "plugin"
    run(sys.executable, "-c", f"from setuptools import build_meta as b; b.build_wheel({str(directory)!r})", cwd=plugin)
    return directory


@pytest.fixture(scope="module")
def elsewhere(built, tmp_path_factory):
    """An empty environment with the wheels installed, and a home of its own."""
    place = tmp_path_factory.mktemp("elsewhere")
    venv.create(place / "venv", with_pip=True)
    python = place / "venv" / "bin" / "python"
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    run(*pip, "--require-hashes", "--only-binary", ":all:", "-r", ROOT / "locks" / "base.txt", cwd=place)
    run(*pip, "--no-index", *built.glob("*.whl"), cwd=place)
    (place / "work").mkdir()
    (place / "rows.yaml").write_text((ROOT / "examples" / "plugin" / "rows.yaml").read_text())
    environment = {"PATH": os.environ["PATH"], "HOME": str(place / "home")}
    return lambda *arguments: run(place / "venv" / "bin" / "hames", *arguments, cwd=place, env=environment)


def test_the_archives_hold_the_code_and_its_data(built):
    (wheel,) = built.glob("hames-*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert "hames/profiles/standard.yaml" in names and "hames/py.typed" in names
    assert not [name for name in names if name.startswith("tests")]
    (archive,) = built.glob("hames-*.tar.gz")
    with tarfile.open(archive) as opened:
        assert any(name.endswith("/LICENSE") for name in opened.getnames())


def test_the_installed_command_runs_a_turn(elsewhere, tmp_path):
    script = tmp_path / "script.yaml"
    script.write_text("- text: hello from elsewhere\n")
    assert elsewhere("--version").startswith("hames, version ")
    assert elsewhere("run", "hi", "--model", f"scripted:{script}", "--cwd", "work") == "hello from elsewhere\n"
    assert '"idle"' in elsewhere("sessions", "list", "--json")


def test_the_rows_of_an_installed_plugin_are_shown_and_mounted(elsewhere, tmp_path):
    shown = elsewhere("compose", "show", "--profile", "minimal", "--patch", "rows.yaml")
    if os.environ.get("HAMES_UPDATE_GOLDEN"):
        (GOLDEN / "plugin_rows.txt").write_text(shown)
    assert shown == (GOLDEN / "plugin_rows.txt").read_text()
    assert elsewhere("compose", "check", "--patch", "rows.yaml") == "ok: 35 rows\n"
    script = tmp_path / "script.yaml"
    script.write_text("- calls: [{name: weather, arguments: {city: Lisbon}}]\n- text: done\n")
    elsewhere("run", "hi", "--model", f"scripted:{script}", "--cwd", "work", "--patch", "rows.yaml")
    assert "It rains in Lisbon, at 285 degrees kelvin." in elsewhere("sessions", "show", elsewhere("sessions", "list").split()[0])
