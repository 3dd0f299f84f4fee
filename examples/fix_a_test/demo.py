"""An agent fixes a failing test in a fresh Git repository; a real local model writes the commit message.

Run it with ``./dev demo``. Without a key the agent's model is scripted: a file says what it calls, while tools, files, Git and pytest
are real. With OPENAI_API_KEY, ANTHROPIC_API_KEY or DEEPSEEK_API_KEY the same job runs on that provider.
"""

from __future__ import annotations

import asyncio
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

from hames.agents import AGENTS, AgentSpec
from hames.compose import running
from hames.content.errors import HamesError
from hames.content.jsontext import parse_object
from hames.content.schema import violations
from hames.kernel import Mask
from hames.models import Settings
from hames.models.weights import fetch
from hames.profiles import profile
from hames.store import STATE

HERE = Path(__file__).parent
PLACE = HERE.parent.parent / ".dev" / "demo"
STATE_DIRECTORY = HERE.parent.parent / ".dev" / "state"
TASK = "Tests of this repository fail. Find out why, mend the code (not the tests), and see that all of them pass."
SCHEMA = {
    "type": "object",
    "properties": {"subject": {"type": "string", "minLength": 8, "maxLength": 60}, "body": {"type": "string", "maxLength": 160}},
    "required": ["subject", "body"],
    "additionalProperties": False,
}
REAL = {
    "OPENAI_API_KEY": "openai:gpt-5-mini",
    "ANTHROPIC_API_KEY": "anthropic:claude-sonnet-4-5",
    "DEEPSEEK_API_KEY": "deepseek:deepseek-chat",
}


def git(*arguments: str) -> str:
    names = ["-c", "user.name=Hames demo", "-c", "user.email=demo@example.invalid", "-c", "commit.gpgsign=false"]
    return subprocess.run(["git", *names, *arguments], cwd=PLACE, check=True, capture_output=True, text=True).stdout


def tests_pass() -> bool:
    """Run the repository's tests, from here and not by the agent."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--no-header", "-rN", "--tb=no", "-c", os.devnull]
    done = subprocess.run([*command, "--rootdir", str(PLACE), str(PLACE)], cwd=PLACE, capture_output=True, text=True, check=False)
    print(f"    {done.stdout.strip().splitlines()[-1]}")
    return done.returncode == 0


def make_repository() -> None:
    shutil.rmtree(PLACE, ignore_errors=True)
    shutil.copytree(HERE / "project", PLACE)
    git("init", "--quiet", "--initial-branch=main")
    git("add", "--all")
    git("commit", "--quiet", "--message", "Turn titles into names for URLs")


def fix_with_agent(model: str) -> bool:
    """The main job, by the command that a user types."""
    command = [str(Path(sys.executable).with_name("hames")), "run", TASK, "--model", model, "--cwd", str(PLACE), "--max-steps", "40"]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    environment = {**os.environ, "PATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run([*command, "--state-dir", str(STATE_DIRECTORY)], env=environment, check=False).returncode == 0


def has_local_model() -> bool:
    try:
        import xllamacpp  # noqa: F401
    except ImportError:
        return False
    return True


async def write_message(model: str, diff: str) -> dict[str, object]:
    """A commit message under a schema. A small model may run on inside the JSON; it is then asked again, a little warmer."""
    why = ""
    async with running(profile("standard"), {STATE: STATE_DIRECTORY}) as host:
        agents = host.get(AGENTS)
        assert agents is not None
        for temperature in (0.0, 0.4, 0.8):
            settings = Settings(max_tokens=400, temperature=temperature, schema=SCHEMA)
            agent = await agents.create(AgentSpec(str(PLACE), model, settings=settings, tools=Mask.none()))
            end = await agent.run(f"Write a commit message with subject and body, as JSON, for this change:\n\n{diff}")
            await agents.dispose(agent)
            why = f"{end.reason}: {end.detail}"
            if end.reason == "completed":
                message = parse_object(end.text)
                bad = violations(message, SCHEMA)
                if not bad:
                    return message
                why = f"the message does not follow its schema: {'; '.join(bad)}"
    raise HamesError(f"no message: {why}")


def main() -> int:
    key = next((name for name in REAL if os.environ.get(name)), None)
    model = os.environ.get("HAMES_DEMO_MODEL") or (REAL[key] if key else f"scripted:{HERE / 'script.yaml'}")
    if key is None:
        print("The agent's model is scripted (examples/fix_a_test/script.yaml says what it calls); tools, files, Git and pytest are real.")
    else:
        print(f"The agent's model is {model}, since {key} is set.")
    make_repository()
    print(f"\n1. A fresh repository in {os.path.relpath(PLACE)}, its tests before:", flush=True)
    if tests_pass():
        print("demo: the tests pass already; there is nothing to show")
        return 1
    print("\n2. hames run:", flush=True)
    if not fix_with_agent(model):
        return 1
    print("\n3. The tests after, run from here:", flush=True)
    if not tests_pass():
        return 1
    diff = git("diff")
    print(f"\n4. The change:\n\n{diff}", flush=True)
    if has_local_model():
        print("5. A local model (SmolLM2, 135 million weights, one thread) writes the commit message under a JSON schema:", flush=True)
        fetch(STATE_DIRECTORY / "models", "smollm2")
        writer = "local:smollm2"
    elif (platform.system(), platform.machine()) in (("Linux", "x86_64"), ("Linux", "aarch64")):
        print("demo: the local model's runtime is not installed")
        return 1
    else:
        print("5. There is no local model for this machine; a scripted one writes the commit message:", flush=True)
        writer = f"scripted:{HERE / 'message.yaml'}"
    message = asyncio.run(write_message(writer, diff))
    git("commit", "--quiet", "--all", "--message", f"{message['subject']}\n\n{message['body']}")
    print(f"\n{git('log', '-1', '--format=    %s%n%n    %b').rstrip()}\n")
    print("Done: the test is fixed, and the fix is committed.")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except HamesError as error:
        print(f"demo: {error.message} {error.remedy}".rstrip(), file=sys.stderr)
        sys.exit(1)
