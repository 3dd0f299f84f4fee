"""Asking people: who is asked, in which order, and what comes of it."""

from __future__ import annotations

import asyncio

import pytest

from hames.agents import AGENTS, AgentSpec
from hames.budget import Limits
from hames.kernel import plugin
from hames.policy import POLICY, Decision
from hames.tools import TOOLS, Approval, tool


@tool("network")
async def fetch(url: str) -> str:
    """Fetch."""
    return url


@tool("read")
async def look(at: str) -> str:
    """Look."""
    return at


@plugin(needs=(TOOLS,))
def both(ctx, config):
    for each in (fetch, look):
        ctx.use(TOOLS).register(ctx, each)


@pytest.fixture
def agent(host, agents, script, calling, tmp_path):
    """Makes an agent that calls ``fetch`` with each of these addresses, one after the other."""
    host.mount(both)

    async def make(*urls, **more):
        answers = [calling(("fetch", {"url": url})) for url in urls]
        return await agents.create(AgentSpec(str(tmp_path), script(*answers, {"text": "done"}), **more))

    return make


@pytest.fixture
def queue(host):
    """What waits to be answered; nothing is left at the end."""
    approvals = host.get(TOOLS).approvals
    yield approvals.waiting
    assert approvals.waiting == [] and not approvals._turn.locked()


class Person:
    """Answers when told to."""

    def __init__(self, host):
        self.asked = asyncio.Queue()
        self.open = 0
        host.ctx.on(Approval, self.answer)

    async def answer(self, question):
        self.open += 1
        assert self.open == 1, "two questions at once"
        reply = asyncio.get_running_loop().create_future()
        self.asked.put_nowait((question, reply))
        try:
            return await reply
        finally:
            self.open -= 1

    async def next(self):
        return await asyncio.wait_for(self.asked.get(), 10)


async def until(condition):
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0)


def results(agent):
    return [block for _, message in agent.session.messages if message.source == "tool" for block in message.blocks]


def events(host, agent):
    sessions = host.get(AGENTS)._sessions
    return [(event.type, event.data) for event in sessions.read(agent.id) if event.type in ("asked", "decided", "call")]


async def test_where_nobody_answers_the_call_is_denied_and_says_so(host, agent, queue):
    one = await agent("https://a/")
    assert (await one.run("go")).reason == "completed"
    (result,) = results(one)
    assert result.code == "DENIED" and "nobody is there to allow it" in result.text and "network" in result.text
    kinds = events(host, one)
    assert [kind for kind, _ in kinds] == ["asked", "decided"]  # and no call
    assert kinds[1][1]["answer"] == "nobody answered"


async def test_a_refusal_says_that_it_was_one(host, agent, queue):
    async def no(question):
        return "denied"

    host.ctx.on(Approval, no)
    one = await agent("https://a/")
    await one.run("go")
    assert "the user refused it" in results(one)[0].text
    assert events(host, one)[1][1]["answer"] == "denied"


@pytest.mark.parametrize("answer", ["once", "session", "always"])
async def test_question_and_answer_stand_in_the_log_before_the_call(host, agent, queue, answer):
    async def yes(question):
        return answer

    host.ctx.on(Approval, yes)
    one = await agent("https://a/")
    await one.run("go")
    found = events(host, one)
    assert [kind for kind, _ in found] == ["asked", "decided", "call"]
    assert len({data["id"] for _, data in found}) == 1
    assert found[0][1]["name"] == "fetch" and found[0][1]["reason"]
    assert found[1][1]["answer"] == answer


@pytest.mark.parametrize("answer", [False, True, 0, "", "yes", "ok", "nope", "DENIED", ("once",)], ids=repr)
async def test_what_is_no_answer_allows_nothing(host, agent, queue, answer):
    async def odd(question):
        return answer

    host.ctx.on(Approval, odd)
    one = await agent("https://a/")
    await one.run("go")
    assert [result.code for result in results(one)] == ["DENIED"]


async def test_a_listener_that_fails_leaves_the_question_to_the_next(host, agent, queue):
    async def broken(question):
        raise RuntimeError("face")

    async def silent(question):
        return None

    async def yes(question):
        return "once"

    for listener in (broken, silent, yes):
        host.ctx.on(Approval, listener)
    one = await agent("https://a/")
    await one.run("go")
    assert results(one)[0].text == "https://a/"


async def test_two_agents_are_asked_about_one_after_the_other(host, agent, queue):
    person = Person(host)
    one, two = await agent("https://a/1"), await agent("https://b/2")
    runs = [asyncio.create_task(each.run("go")) for each in (one, two)]
    await until(lambda: len(queue) == 2)
    (first, reply), order = await person.next(), [each.request.session for each in queue]
    assert order[0] == first.request.session and person.asked.empty()
    reply.set_result("once")
    second, reply = await person.next()
    reply.set_result("denied")
    assert [first.request.session, second.request.session] == order
    await asyncio.gather(*runs)
    codes = {each.id: results(each)[0].code for each in (one, two)}
    assert codes == {order[0]: "", order[1]: "DENIED"}


async def test_many_questions_are_all_asked_and_none_twice(host, agent, queue):
    seen = []

    async def yes(question):
        seen.append((question.request.session, question.request.arguments["url"]))
        await asyncio.sleep(0)
        return "once"

    host.ctx.on(Approval, yes)
    many = [await agent(*(f"https://h{n}-{k}/" for k in range(3))) for n in range(8)]
    await asyncio.gather(*(each.run("go") for each in many))
    assert len(seen) == len(set(seen)) == 24
    assert all([result.code for result in results(each)] == ["", "", ""] for each in many)


async def test_cancelling_one_that_waits_leaves_the_queue_sound(host, agent, queue):
    person = Person(host)
    three = [await agent(f"https://h{n}/") for n in range(3)]
    runs = []
    for number, each in enumerate(three):
        runs.append(asyncio.create_task(each.run("go")))
        await until(lambda number=number: len(queue) == number + 1)
    _, reply = await person.next()
    three[1].cancel("user")
    assert (await runs[1]).reason == "aborted"
    assert [each.request.session for each in queue] == [three[0].id, three[2].id]
    reply.set_result("once")
    question, reply = await person.next()
    assert question.request.session == three[2].id
    reply.set_result("once")
    assert [(await each).reason for each in (runs[0], runs[2])] == ["completed", "completed"]
    assert [data["answer"] for kind, data in events(host, three[1]) if kind == "decided"] == ["nobody answered"]


async def test_cancelling_the_one_that_is_asked_goes_on_to_the_next(host, agent, queue):
    person = Person(host)
    two = [await agent(f"https://h{n}/") for n in range(2)]
    runs = []
    for number, each in enumerate(two):
        runs.append(asyncio.create_task(each.run("go")))
        await until(lambda number=number: len(queue) == number + 1)
    await person.next()
    two[0].cancel("user")
    assert (await runs[0]).reason == "aborted"
    question, reply = await person.next()
    assert question.request.session == two[1].id
    reply.set_result("once")
    assert (await runs[1]).reason == "completed"
    assert all(result.code in ("NOT_STARTED", "ABORTED") for result in results(two[0]))


async def test_an_answer_for_always_settles_an_equal_question_that_waits(host, agent, queue):
    person = Person(host)
    two = [await agent("https://same/") for _ in range(2)]
    runs = [asyncio.create_task(each.run("go")) for each in two]
    await until(lambda: len(queue) == 2)
    _, reply = await person.next()
    reply.set_result("always")
    await asyncio.gather(*runs)
    assert person.asked.empty()
    assert [results(each)[0].code for each in two] == ["", ""]


async def test_an_answer_for_a_session_settles_its_own_later_calls_alone(host, agent, queue):
    person = Person(host)
    two = [await agent("https://same/", "https://same/other") for _ in range(2)]
    runs = [asyncio.create_task(each.run("go")) for each in two]
    await until(lambda: len(queue) == 2)
    asked = []
    for _ in range(2):
        question, reply = await person.next()
        asked.append(question.request.session)
        reply.set_result("session")
    await asyncio.gather(*runs)
    assert sorted(asked) == sorted(each.id for each in two) and person.asked.empty()


async def test_an_answer_for_a_session_settles_a_queued_equal_question_of_it(host, queue, script, calling, tmp_path, agents):
    """Two calls of one session at once, as agents that share one would have."""
    host.mount(both)
    person = Person(host)
    policy, tools = host.get(POLICY), host.get(TOOLS)
    one = await agents.create(AgentSpec(str(tmp_path), script({"text": "x"})))
    from hames.content.messages import ToolCall
    from hames.tools import Invocation
    from hames.tools.pipeline import prepare

    def ask(id):
        invocation = Invocation(id, one.scope, tmp_path, {}, lambda data, suffix: tmp_path, session="shared")
        prepared = prepare(tools.registry.get(one.scope, "fetch"), ToolCall(id, "fetch", '{"url": "https://same/"}'), invocation)
        decision = policy.decide(prepared.request)
        return tools.approvals.ask(prepared.request, decision, invocation, lambda: policy.decide(prepared.request).verdict == "allow")

    first, second = asyncio.create_task(ask("1")), asyncio.create_task(ask("2"))
    question, reply = await person.next()
    policy.remember(question.request, "session")
    reply.set_result("session")
    assert (await first, await second) == ("session", "once")
    assert person.asked.empty()


async def test_an_idle_limit_does_not_run_while_a_person_is_asked(host, agent, queue):
    async def slow(question):
        await asyncio.sleep(0.5)  # longer than the limit below
        return "once"

    host.ctx.on(Approval, slow)
    one = await agent("https://a/", limits=Limits(idle=0.2))
    assert (await one.run("go")).reason == "completed"


async def test_an_idle_limit_does_not_run_while_it_waits_behind_another_question(host, agent, queue):
    async def slow(question):
        await asyncio.sleep(0.3)
        return "once"

    host.ctx.on(Approval, slow)
    two = [await agent(f"https://h{n}/", limits=Limits(idle=0.2)) for n in range(2)]
    assert [end.reason for end in await asyncio.gather(*(each.run("go") for each in two))] == ["completed", "completed"]


async def test_an_idle_limit_runs_again_after_the_answer(host, agent, queue, script, calling, agents, tmp_path):
    @tool("network")
    async def hang(url: str) -> str:
        """Hang."""
        await asyncio.Event().wait()
        return url

    @plugin(needs=(TOOLS,))
    def hanging(ctx, config):
        ctx.use(TOOLS).register(ctx, hang)

    async def yes(question):
        return "once"

    host.mount(hanging)
    host.ctx.on(Approval, yes)
    one = await agents.create(AgentSpec(str(tmp_path), script(calling(("hang", {"url": "u"})), {"text": "x"}), limits=Limits(idle=0.2)))
    assert (await asyncio.wait_for(one.run("go"), 10)).reason == "budget"


async def test_a_total_limit_runs_while_a_person_is_asked(host, agent, queue):
    Person(host)
    one = await agent("https://a/", limits=Limits(seconds=0.2))
    assert (await asyncio.wait_for(one.run("go"), 10)).reason == "budget"


# policies and guards


class Fixed:
    def __init__(self, verdict, remember=None):
        self.verdict = verdict
        self.kept = []
        self._fail = remember

    def decide(self, request):
        if isinstance(self.verdict, Exception):
            raise self.verdict
        return Decision(self.verdict, "as the test says")

    def remember(self, request, answer):
        self.kept.append(answer)
        if self._fail is not None:
            raise self._fail


async def replaced(host, policy):
    @plugin()
    def other(ctx, config):
        ctx.provide(POLICY, policy)

    await host.root.children["policy"].replace(other)


async def test_a_policy_that_raises_denies_without_asking(host, agent, queue):
    Person(host)
    await replaced(host, Fixed(ValueError("broken")))
    one = await agent("https://a/")
    await one.run("go")
    assert results(one)[0].code == "DENIED" and "the policy failed" in results(one)[0].text


@pytest.mark.parametrize(
    "error", [UnicodeEncodeError("utf-8", "x", 0, 1, "surrogates"), RuntimeError("disk"), OSError(28, "full")], ids=repr
)
async def test_an_answer_that_cannot_be_kept_does_not_end_the_turn(host, agent, queue, error):
    async def yes(question):
        return "always"

    host.ctx.on(Approval, yes)
    await replaced(host, Fixed("ask", error))
    one = await agent("https://a/")
    assert (await one.run("go")).reason == "completed"
    assert len(results(one)) == 1


@pytest.mark.parametrize("verdict", ["deny", "ask", "allow"])
@pytest.mark.parametrize("said", [None, "", "no", True, False, 0], ids=repr)
async def test_a_guard_can_only_deny(host, agent, queue, verdict, said):
    await replaced(host, Fixed(verdict))
    host.get(TOOLS).guard(host.ctx, "g", lambda request: said)
    one = await agent("https://a/")
    await one.run("go")
    assert (results(one)[0].code == "") == (verdict == "allow" and said is None)


async def test_a_guard_denies_what_a_person_has_allowed(host, agent, queue):
    async def yes(question):
        return "once"

    host.ctx.on(Approval, yes)
    host.get(TOOLS).guard(host.ctx, "g", lambda request: "not this one" if "b" in request.arguments["url"] else None)
    one = await agent("https://a/", "https://b/")
    await one.run("go")
    assert [result.code for result in results(one)] == ["", "DENIED"]


async def test_what_is_free_asks_nobody(host, agents, queue, script, calling, tmp_path):
    host.mount(both)
    asked = []

    async def yes(question):
        asked.append(question)
        return "once"

    host.ctx.on(Approval, yes)
    one = await agents.create(AgentSpec(str(tmp_path), script(calling(("look", {"at": "x"})), {"text": "done"})))
    await one.run("go")
    assert asked == [] and results(one)[0].text == "x"


async def test_the_rest_of_an_answer_goes_on_after_a_refusal(host, agents, queue, script, calling, tmp_path):
    host.mount(both)
    answer = calling(("look", {"at": "1"}), ("fetch", {"url": "https://a/"}), ("look", {"at": "2"}))
    one = await agents.create(AgentSpec(str(tmp_path), script(answer, {"text": "done"})))
    await one.run("go")
    assert [result.code for result in results(one)] == ["", "DENIED", ""]


async def test_an_agent_that_is_resumed_elsewhere_has_no_answers_of_before(opened, script, calling, tmp_path):
    answers = [calling(("fetch", {"url": "https://a/"})), {"text": "one"}, calling(("fetch", {"url": "https://a/"})), {"text": "two"}]
    model = script(*answers)

    async def yes(question):
        return "session"

    async with opened() as host:
        host.mount(both)
        host.ctx.on(Approval, yes)
        one = await host.get(AGENTS).create(AgentSpec(str(tmp_path), model))
        await one.run("go")
        assert results(one)[0].code == ""
    async with opened() as host:
        host.mount(both)
        again = await host.get(AGENTS).create(AgentSpec(str(tmp_path), model, one.id))
        await again.run("go")
        assert [result.code for result in results(again)] == ["", "DENIED"]
