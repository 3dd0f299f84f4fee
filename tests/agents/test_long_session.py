"""Two thousand requests in one turn: nothing grows, and every one of them can be rebuilt."""

from __future__ import annotations

import asyncio
import gc
import json
import statistics
import sys
import time
import tracemalloc
from hashlib import sha256
from itertools import pairwise

import pytest

from hames.agents import AGENTS, AgentSpec, Answered
from hames.sessions import SESSIONS

STEPS = 2000
MARK = 400  # answers between two looks
WINDOW = 16_000  # tokens
PATCH = f"""
- id: models
  set:
    config:
      providers:
        openai:
          dialect: openai-chat
          base_url: http://127.0.0.1:9
          base_url_env: OPENAI_BASE_URL
          key_env: OPENAI_API_KEY
          windows: {{"steps=*": {WINDOW}}}
"""

ELSEWHERE = """
import asyncio, json, sys
from hashlib import sha256
from pathlib import Path
from hames.content.clock import Clock
from hames.sessions.plugin import Sessions
from hames.store import Store

async def main(state, name, sent):
    store = Store(Path(state))
    try:
        rebuilt = [sha256(request.body()).hexdigest() for _, request in Sessions(store, Clock()).rebuild(name)]
    finally:
        await store.close()
    known = Path(sent).read_text().split()
    different = [n for n, (one, other) in enumerate(zip(rebuilt, known)) if one != other]
    print(json.dumps({"sent": len(known), "rebuilt": len(rebuilt), "different": different}))

asyncio.run(main(*sys.argv[1:]))
"""


class Digests:
    """What a stub server received, as digests: bodies of that many requests would be all that a look at the memory sees."""

    maxlen = 1

    def __init__(self):
        self.found = []
        self.longest = 0

    def append(self, received):
        self.found.append(sha256(received.body).hexdigest())
        self.longest = max(self.longest, len(received.body))


@pytest.fixture
def traced():
    yield
    tracemalloc.stop()


@pytest.mark.slow
@pytest.mark.usefixtures("traced")
async def test_two_thousand_requests_cost_what_two_hundred_cost(opened, wired, tmp_path):
    patch = tmp_path / "patch.yaml"
    patch.write_text(PATCH)
    sent = wired.received = Digests()
    marks = []  # answers so far, seconds of processor time, bytes in use

    async with opened(patch) as host:
        answered = 0

        def look(notice):
            nonlocal answered
            answered += 1
            if answered % MARK == 0:
                spent = time.process_time()
                gc.collect()
                tracemalloc.start()  # from the first look on; more often does nothing
                marks.append((answered, spent, time.process_time(), tracemalloc.get_traced_memory()[0], len(gc.get_objects())))

        host.ctx.on(Answered, look)
        words = "word " * 60
        arguments = json.dumps({"items": [{"content": f"# {words}"}]})
        model = f"openai:steps={STEPS};count=requests;window={WINDOW};tool=todo_write;args={arguments}"
        agent = await host.get(AGENTS).create(AgentSpec(str(tmp_path), model))
        end = await agent.run("go")
        assert (end.reason, end.steps, end.text) == ("completed", STEPS + 1, "All is done.")
        events = host.get(SESSIONS).read(agent.id)
        compacted = [event for event in events if event.type == "compacted"]
        assert len(compacted) >= 5
        assert not [event for event in events if event.type in ("failed", "not-compacted", "retry")]
        assert len([event for event in events if event.type == "call"]) == STEPS
        assert len(agent.session.messages) < 400
    assert sent.longest < 4 * WINDOW * 2

    # Time: a block of answers costs at the end what it costs at the beginning.
    blocks = [after[1] - before[2] for before, after in pairwise(marks)]
    assert len(blocks) == STEPS // MARK - 1
    assert blocks[-1] <= 2 * statistics.median(blocks[:2]), blocks
    # Memory: what is traced since the first look stays small beside what has been sent, and the number of objects stays.
    grown = marks[-1][3] - marks[1][3]
    assert grown < 4 * 1024 * 1024, [mark[3] for mark in marks]
    objects = [mark[4] for mark in marks]
    assert objects[-1] - objects[1] < 20_000, objects

    known = tmp_path / "sent.txt"
    known.write_text("\n".join(sent.found))
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", ELSEWHERE, str(tmp_path / "state"), agent.id, str(known), stdout=asyncio.subprocess.PIPE
    )
    out, _ = await child.communicate()
    assert child.returncode == 0
    number = STEPS + 1 + len(compacted)
    assert json.loads(out) == {"sent": number, "rebuilt": number, "different": []}
