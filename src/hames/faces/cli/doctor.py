"""``hames doctor``: is everything here that Hames needs, and is its state sound?"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import click

from hames import __version__
from hames.faces.cli.common import json_option, state_directory, state_option


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at; ``warn`` costs something, ``fail`` must be mended."""

    what: str
    verdict: Literal["ok", "warn", "fail"]
    detail: str
    remedy: str = ""


def program(name: str, why: str, verdict: Literal["warn", "fail"]) -> Finding:
    path = shutil.which(name)
    if path is None:
        return Finding(name, verdict, f"not found; {why}", f"install {name}")
    done = subprocess.run([path, "--version"], capture_output=True, text=True, check=False)
    return Finding(name, "ok", done.stdout.splitlines()[0] if done.stdout else path)


def confinement(state: Path) -> Finding:
    """What holds commands to their mode on this machine."""
    from hames.sandbox import Sandbox
    from hames.sandbox.protect import Rules

    found = Sandbox("auto", state / "sandbox", Rules).enforcement
    if found.level == "enforced":
        return Finding("sandbox", "ok", f"{found.means} confines commands")
    remedy = "install bubblewrap (apt install bubblewrap, or pip install 'hames[sandbox]')"
    return Finding("sandbox", "warn", f"{found.means}: {found.level}; {'; '.join(found.gaps)}", remedy)


def findings(state: Path) -> Iterator[Finding]:
    import apsw

    from hames.sessions import session_id
    from hames.store.checks import damage, living
    from hames.store.owners import sweep

    yield Finding("hames", "ok", f"{__version__} on Python {platform.python_version()}, {platform.platform()}")
    yield Finding("sqlite", "ok", apsw.sqlite_lib_version())
    yield program("git", "worktrees and diffs need it", "fail")
    yield program("bash", "the tool bash needs it", "fail")
    yield program("rg", "grep is slower without it", "warn")
    yield confinement(state)
    try:
        state.mkdir(parents=True, exist_ok=True, mode=0o700)
        writable = os.access(state, os.W_OK)
    except OSError:
        writable = False
    if not writable:
        yield Finding("state", "fail", f"{state} cannot be written", "name another directory with --state-dir or HAMES_STATE")
        return
    alive, dead = living(state), sweep(state / "owners")
    gone = f", {dead} lock files of dead ones removed" if dead else ""
    yield Finding("state", "ok", f"{state}, {len(alive)} live process{'es' if len(alive) != 1 else ''}{gone}")
    for name in ("sessions.db", "control.db"):
        path = state / name
        if path.exists():
            bad = damage(path, session_id)
            remedy = "run 'hames doctor --salvage'" if bad else ""
            yield Finding(name, "fail" if bad else "ok", "; ".join(bad) or f"{path.stat().st_size} bytes, sound", remedy)


@click.command("doctor")
@click.option("--salvage", is_flag=True, help="Copy what is sound of a damaged sessions.db into a new one; the damaged file is kept.")
@json_option
@state_option
def command(salvage: bool, as_json: bool, state_dir: str | None) -> None:
    """Check this installation and its state."""
    state = state_directory(state_dir)
    if salvage:
        _salvage(state, as_json)
        return
    found = list(findings(state))
    if as_json:
        items = [{"what": f.what, "verdict": f.verdict, "detail": f.detail, "remedy": f.remedy} for f in found]
        click.echo(json.dumps({"findings": items}, ensure_ascii=False))
    else:
        for finding in found:
            click.echo(f"{finding.verdict:<5} {finding.what}: {finding.detail}" + (f" ({finding.remedy})" if finding.remedy else ""))
    sys.exit(1 if any(finding.verdict == "fail" for finding in found) else 0)


def _salvage(state: Path, as_json: bool) -> None:
    from hames.store.checks import salvage_state

    kept, report = salvage_state(state)
    if as_json:
        click.echo(json.dumps({"damaged": str(kept), "tables": report}))
        return
    for table, counts in report.items():
        click.echo(f"{table}: {counts['kept']} rows kept, {counts['damaged']} damaged")
    click.echo(f"the damaged file is kept as {kept}")
