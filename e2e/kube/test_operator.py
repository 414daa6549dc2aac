import asyncio
import contextlib
import os
import signal

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from leadsman.curve import fingerprint
from leadsman.records import Learned
from leadsman_bench.envoy import running_envoy
from leadsman_bench.envoy_config import EnvoyConfig
from leadsman_engines.discovery import discover
from leadsman_engines.profile import EMPTY_PROFILE
from leadsman_operator.lease import LeaseTiming

from .conftest import OURS, PATIENCE, PODS, POOLS, budget, create, pool, profile
from .stage import Stage, blocks, following, until

EVENTS = "/api/v1/namespaces/{}/events"
OBJECTIVES = "/apis/{}/v1alpha2/namespaces/{}/inferenceobjectives"


@pytest.fixture
def stage(plane, namespace, running, tmp_path):
    return Stage(plane, namespace, running, tmp_path)


@pytest.fixture
def serving(stage):
    """A stage with a pool of one port."""
    create(stage.plane, POOLS.format(stage.namespace), pool("chat", {"app": "chat"}, stage.port))
    return stage


def chat(stage):
    return f"{stage.namespace}/chat"


def budgets(stage):
    return OURS.format(stage.namespace, "latencybudgets")


def conditions(said):
    return {one["type"]: one for one in said.get("status", {}).get("conditions", [])}


async def test_pods_become_workers_and_leave_with_their_pods(serving):
    first, second = serving.engine(), serving.engine()
    serving.pod("first", first)
    serving.pod("elsewhere", second, labels={"app": "other"})
    address = serving.operator()

    async with following(address, chat(serving)) as fleet:
        there = {f"{first}:{serving.port}": True}
        await until(lambda: fleet.readiness() == there, fleet.readiness)

        serving.pod("second", second)
        there |= {f"{second}:{serving.port}": True}
        await until(lambda: fleet.readiness() == there, fleet.readiness)

        serving.be("first", ready=False)
        there |= {f"{first}:{serving.port}": False}
        await until(lambda: fleet.readiness() == there, fleet.readiness)

        serving.delete(f"{PODS.format(serving.namespace)}/second")
        there |= {f"{second}:{serving.port}": False}
        await until(lambda: fleet.readiness() == there, fleet.readiness)

        serving.delete(f"{PODS.format(serving.namespace)}/second", grace=0)
        serving.delete(f"{PODS.format(serving.namespace)}/first", grace=0)
        await until(lambda: fleet.readiness() == {}, fleet.readiness)


async def test_every_target_port_of_a_pod_is_an_endpoint_of_its_own(stage):
    ports = [stage.port, stage.port + 1]
    ip = stage.engine(ports=ports)
    create(stage.plane, POOLS.format(stage.namespace), pool("chat", {"app": "chat"}, *ports))
    stage.pod("ranks", ip)
    address = stage.operator()

    async with following(address, chat(stage)) as fleet:
        there = {f"{ip}:{port}": True for port in ports}
        await until(lambda: fleet.readiness() == there, fleet.readiness)


async def test_budgets_are_declared_in_their_order_and_follow_an_edit(serving):
    one = {"tenants": ["acme"]}
    create(serving.plane, budgets(serving), budget("everyone", maxQueueWait="30s"))
    create(serving.plane, budgets(serving), budget("acme", match=one, maxQueueWait="10s"))
    create(serving.plane, budgets(serving), budget("late", match=one, maxQueueWait="20s"))
    address = serving.operator()

    async with following(address, chat(serving)) as fleet:
        await until(lambda: fleet.budgets == ["acme", "late", "everyone"], lambda: fleet.budgets)
        late = lambda: conditions(serving.get(f"{budgets(serving)}/late"))
        await until(lambda: "Effective" in late(), late)
        assert late()["Effective"]["reason"] == "Overridden"
        assert "acme goes before it" in late()["Effective"]["message"]
        status = serving.get(f"{budgets(serving)}/everyone")["status"]
        assert [(p["name"], p["precedence"], p["budgets"]) for p in status["pools"]] == [
            ("chat", 3, 3)
        ]

        serving.patch(f"{budgets(serving)}/acme", {"spec": {"maxQueueWait": "7s"}})
        wait = lambda: fleet.client.declared.budgets[0].budget.max_queue_wait
        await until(lambda: wait() == 7.0, wait)

        serving.delete(f"{budgets(serving)}/acme")
        await until(lambda: fleet.budgets == ["late", "everyone"], lambda: fleet.budgets)
        await until(lambda: late()["Effective"]["status"] == "True", late)


async def test_an_engine_in_trouble_is_told_with_its_pod_and_the_cause(serving):
    mute = serving.engine("--dev-mode", "off")
    serving.pod("mute", mute)
    create(serving.plane, budgets(serving), budget("everyone"))
    path = OURS.format(serving.namespace, "engineprofiles")
    create(serving.plane, path, profile("chat", selector={"matchLabels": {"app": "chat"}}))
    serving.operator()

    def discovered():
        return conditions(serving.get(f"{path}/chat")).get("Discovered", {})

    await until(lambda: discovered().get("reason") == "EngineUnreachable", discovered)
    assert "pod mute" in discovered()["message"]
    assert "max_num_batched_tokens is not known" in discovered()["message"]
    reachable = conditions(serving.get(f"{budgets(serving)}/everyone"))["EnginesReachable"]
    assert reachable["status"] == "False"
    events = lambda: serving.get(EVENTS.format(serving.namespace))["items"]
    await until(events)
    [event] = events()
    assert event["involvedObject"]["name"] == "mute"
    assert event["reason"] == "EngineUnreachable"
    assert "max_num_batched_tokens is not known" in event["message"]

    stated = {"maxNumBatchedTokens": 2048, "maxNumSeqs": 64}
    serving.patch(f"{path}/chat", {"spec": {"settings": stated}})

    await until(lambda: discovered().get("status") == "True", discovered)
    status = serving.get(f"{path}/chat")["status"]
    assert (status["pods"], status["workers"]) == (1, 1)
    [found] = status["discovered"]
    assert (found["pod"], found["maxNumSeqs"], found["ready"]) == ("mute", 64, True)
    reachable = lambda: conditions(serving.get(f"{budgets(serving)}/everyone"))["EnginesReachable"]
    await until(lambda: reachable()["status"] == "True", reachable)


async def test_a_store_that_pods_share_is_read_and_its_profile_says_how_that_goes(serving):
    answers = [{"total": 0, "keys": []}]

    async def listed(_):
        return web.json_response(answers[0]) if answers else web.Response(status=503)

    app = web.Application()
    app.router.add_get("/directory/keys", listed)
    async with TestServer(app) as coordinator:
        serving.pod("a", serving.engine())
        shared = {"lmcache": str(coordinator.make_url("/"))}
        path = OURS.format(serving.namespace, "engineprofiles")
        selector = {"matchLabels": {"app": "chat"}}
        create(serving.plane, path, profile("chat", selector=selector, sharedStore=shared))
        serving.operator()
        readable = lambda: conditions(serving.get(f"{path}/chat")).get("StoreReadable", {})
        await until(lambda: readable().get("status") == "True", readable)

        answers.clear()

        await until(lambda: readable().get("reason") == "DirectoryUnreadable", readable)
        assert f"{shared['lmcache']}: 503" in readable()["message"]


async def test_a_budget_that_cannot_be_applied_as_it_is_written_is_told_with_the_cause(serving):
    wrong = {"policy": "queue_cap", "parameters": {"limt": 2.0}}
    create(serving.plane, budgets(serving), budget("wrong", **wrong))
    serving.operator()

    accepted = lambda: conditions(serving.get(f"{budgets(serving)}/wrong")).get("Accepted", {})
    await until(lambda: accepted().get("reason") == "InvalidPolicy", accepted)
    events = lambda: serving.get(EVENTS.format(serving.namespace))["items"]
    await until(events)

    [event] = events()
    assert (event["involvedObject"]["kind"], event["involvedObject"]["name"]) == (
        "LatencyBudget",
        "wrong",
    )
    assert "limt" in event["message"]
    assert "limt" in accepted()["message"]


async def test_an_operator_serves_the_namespaces_that_it_is_told_and_no_other(
    stage, plane, running, tmp_path
):
    names = [stage.namespace, *(f"{stage.namespace}-{name}" for name in ("also", "not"))]
    stages = [stage, *(Stage(plane, name, running, tmp_path) for name in names[1:])]
    for one in stages:
        if one is not stage:
            create(plane, "/api/v1/namespaces", {"metadata": {"name": one.namespace}})
        one.pod("first", one.engine())
        create(plane, POOLS.format(one.namespace), pool("chat", {"app": "chat"}, one.port))
    address = stage.operator("operator", "--namespace", names[1])

    async with contextlib.AsyncExitStack() as stack:
        fleets = [await stack.enter_async_context(following(address, chat(one))) for one in stages]
        await until(lambda: all(one.readiness() for one in fleets[:2]))

        assert [len(one.readiness()) for one in fleets] == [1, 1, 0]


async def test_what_was_learned_outlives_everybody_who_learned_it(serving):
    first, second = serving.engine(), serving.engine()
    serving.pod("first", first)
    lessons = ["--lessons", f"{serving.namespace}/lessons"]
    samples = tuple((tokens, tokens / 1000) for tokens in range(100, 6000, 100))
    address = serving.operator("first-operator", *lessons)
    async with (
        following(address, chat(serving), "teacher") as teacher,
        following(address, chat(serving), "learner") as learner,
    ):
        await until(teacher.readiness)
        [worker] = teacher.workers.values()
        known = fingerprint(worker.settings)
        teacher.client.report(Learned(worker=worker.worker, fingerprint=known, samples=samples))
        await until(lambda: learner.lessons)
    serving.running.end("first-operator")
    serving.running.end(f"engine-{first}-{serving.port}")
    serving.delete(f"{PODS.format(serving.namespace)}/first", grace=0)

    serving.pod("second", second)
    async with following(serving.operator("second-operator", *lessons), chat(serving)) as fleet:
        await until(lambda: fleet.lessons, lambda: fleet.workers)

        [lesson] = fleet.lessons.values()
        assert (lesson.worker, lesson.samples) == (f"{second}:{serving.port}", samples)


async def test_what_is_not_ours_is_never_written(serving):
    serving.pod("first", serving.engine())
    create(serving.plane, budgets(serving), budget("everyone"))
    paths = [
        f"{POOLS.format(serving.namespace)}/chat",
        f"{PODS.format(serving.namespace)}/first",
    ]
    before = [serving.get(path)["metadata"]["resourceVersion"] for path in paths]
    address = serving.operator()

    async with following(address, chat(serving)) as fleet:
        await until(fleet.readiness)
        settled = lambda: conditions(serving.get(f"{budgets(serving)}/everyone"))
        await until(settled)

    assert [serving.get(path)["metadata"]["resourceVersion"] for path in paths] == before
    about = serving.get(f"{budgets(serving)}/everyone")["metadata"]
    assert "finalizers" not in about
    assert "annotations" not in about


async def test_a_status_is_written_only_when_it_changes(serving):
    serving.pod("first", serving.engine())
    create(serving.plane, budgets(serving), budget("everyone"))
    serving.operator()
    pools = lambda: serving.get(f"{budgets(serving)}/everyone").get("status", {}).get("pools")
    await until(lambda: pools() and pools()[0]["readyWorkers"] == 1, pools)
    before = serving.get(f"{budgets(serving)}/everyone")["metadata"]["resourceVersion"]

    create(serving.plane, budgets(serving), budget("another", match={"models": ["m"]}))
    another = lambda: conditions(serving.get(f"{budgets(serving)}/another"))
    await until(another)
    first = lambda: serving.get(f"{budgets(serving)}/everyone")["status"]["pools"][0]
    await until(lambda: first()["precedence"] == 2, first)
    between = serving.get(f"{budgets(serving)}/everyone")["metadata"]["resourceVersion"]
    serving.patch(f"{budgets(serving)}/another", {"spec": {"ttft": "1s"}})
    generation = lambda: another()["Accepted"]["observedGeneration"]
    await until(lambda: generation() == 2, generation)

    assert between != before
    after = serving.get(f"{budgets(serving)}/everyone")["metadata"]["resourceVersion"]
    assert after == between


@pytest.mark.parametrize("group", ["llm-d.ai", "inference.networking.x-k8s.io"])
async def test_an_objective_that_a_budget_names_is_looked_for(serving, group):
    create(serving.plane, budgets(serving), budget("gold", match={"objectives": ["gold"]}))
    serving.operator()
    resolved = lambda: conditions(serving.get(f"{budgets(serving)}/gold")).get("ResolvedRefs", {})
    await until(lambda: resolved().get("reason") == "ObjectiveNotFound", resolved)

    create(
        serving.plane,
        OBJECTIVES.format(group, serving.namespace),
        {
            "apiVersion": f"{group}/v1alpha2",
            "kind": "InferenceObjective",
            "metadata": {"name": "gold"},
            "spec": {"priority": 1, "poolRef": {"name": "chat"}},
        },
    )

    await until(lambda: resolved().get("status") == "True", resolved)


async def test_a_pool_that_is_deleted_loses_its_workers_and_gets_them_back_with_itself(serving):
    ip = serving.engine()
    serving.pod("first", ip)
    there = {f"{ip}:{serving.port}": True}
    address = serving.operator()

    async with following(address, chat(serving)) as fleet:
        await until(lambda: fleet.readiness() == there, fleet.readiness)

        serving.delete(f"{POOLS.format(serving.namespace)}/chat")
        await until(lambda: fleet.readiness() == {}, fleet.readiness)

        one = pool("chat", {"app": "chat"}, serving.port)
        create(serving.plane, POOLS.format(serving.namespace), one)
        await until(lambda: fleet.readiness() == there, fleet.readiness)


async def test_while_the_api_server_is_away_engines_are_heard_and_afterwards_all_is(serving):
    first, second = serving.engine(), serving.engine()
    serving.pod("first", first)
    there = {f"{first}:{serving.port}": True}
    engine = serving.running.pid(f"engine-{first}-{serving.port}")
    lease = ["--lease", f"{serving.namespace}/leadsman"]
    address = serving.operator("operator", *lease)

    async with following(address, chat(serving)) as fleet:
        await until(lambda: fleet.readiness() == there, fleet.readiness)
        epoch = fleet.client.epoch

        os.kill(serving.plane.pid, signal.SIGSTOP)
        try:
            await asyncio.sleep(2 * LeaseTiming().duration)
            os.kill(engine, signal.SIGSTOP)
            stuck = {f"{first}:{serving.port}": False}
            await until(lambda: fleet.readiness() == stuck, fleet.readiness)
        finally:
            os.kill(engine, signal.SIGCONT)
            os.kill(serving.plane.pid, signal.SIGCONT)
        serving.pod("second", second)

        there |= {f"{second}:{serving.port}": True}
        await until(lambda: fleet.readiness() == there, fleet.readiness)
        assert fleet.client.epoch == epoch
        assert fleet.gone == []


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
async def test_where_the_leader_ends_another_takes_over_and_no_worker_is_lost(serving, how):
    ip = serving.engine()
    serving.pod("first", ip)
    there = {f"{ip}:{serving.port}": True}
    lease = ["--lease", f"{serving.namespace}/leadsman"]
    first = serving.operator("first-operator", *lease)
    address = f"ipv4:{first},{serving.operator('second-operator', *lease)}"

    async with following(address, chat(serving)) as fleet:
        await until(lambda: fleet.readiness() == there, fleet.readiness)
        epoch = fleet.client.epoch

        os.kill(serving.running.pid("first-operator"), how)

        await until(lambda: fleet.client.epoch != epoch, serving_words(serving))
        await until(lambda: fleet.readiness() == there, fleet.readiness)
        assert fleet.gone == []


async def test_a_lone_operator_that_was_killed_hears_from_pickers_what_caches_hold(serving):
    ip = serving.engine("--speed", "50")
    serving.pod("first", ip)
    address = serving.operator("first-operator")
    async with aiohttp.ClientSession() as http, following(address, chat(serving)) as fleet:
        base = f"http://{ip}:{serving.port}"
        [rank] = (await discover(http, base, EMPTY_PROFILE)).ranks
        serving.picker(address, "chat", rank.settings.model)
        body = {"model": rank.settings.model, "prompt": "word " * 400, "max_tokens": 1}
        async with http.post(f"{base}/v1/completions", json=body) as answer:
            assert answer.status == 200
        await until(lambda: any(blocks(fleet.state).values()))
        await asyncio.sleep(1.0)
        held = blocks(fleet.state)

    engine = serving.running.pid(f"engine-{ip}-{serving.port}")
    os.kill(engine, signal.SIGSTOP)
    try:
        os.kill(serving.running.pid("first-operator"), signal.SIGKILL)
        serving.operator("second-operator", "--listen", address)
        async with following(address, chat(serving)) as fleet:
            await until(lambda: blocks(fleet.state) == held, serving_words(serving))
    finally:
        os.kill(engine, signal.SIGCONT)


def serving_words(stage):
    return lambda: stage.running.last_words("second-operator")


@pytest.mark.parametrize("lists", [True, False], ids=["engines-listed", "standalone"])
async def test_a_budget_edited_live_is_what_requests_through_envoy_fall_under(serving, lists):
    ip = serving.engine("--speed", "50")
    engine = f"{ip}:{serving.port}"
    serving.pod("first", ip)
    async with aiohttp.ClientSession() as http:
        [rank] = (await discover(http, f"http://{engine}", EMPTY_PROFILE)).ranks
        serving.remember(rank.settings)
        fleet = serving.operator("operator", "--lessons", f"{serving.namespace}/lessons")
        picker = serving.picker(fleet, "chat", rank.settings.model)
        body = {"model": rank.settings.model, "prompt": "word " * 400, "max_tokens": 1}

        config = EnvoyConfig(engines=[engine] if lists else None, picker=picker)
        with running_envoy(config) as envoy:

            async def status():
                async with http.post(f"{envoy.url}/v1/completions", json=body) as answer:
                    return answer.status, answer.headers.get("x-llm-d-request-dropped-reason")

            await until_answered(status, (200, None))

            create(serving.plane, budgets(serving), budget("hasty", ttft="1ms"))
            await until_answered(status, (429, "would_miss_ttft"))

            own = {"wouldMissTtft": 529}
            serving.patch(f"{budgets(serving)}/hasty", {"spec": {"statuses": own}})
            await until_answered(status, (529, "would_miss_ttft"))

            serving.patch(f"{budgets(serving)}/hasty", {"spec": {"mode": "Shadow"}})
            await until_answered(status, (200, None))


async def until_answered(status, wanted):
    said = []
    async with asyncio.timeout(PATIENCE):
        while not said or said[-1] != wanted:
            said.append(await status())
            await asyncio.sleep(0.1)
