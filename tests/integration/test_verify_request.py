"""An operator's comparison beside a live stream: over HTTP and by the form, with its result on the page of the route."""

from __future__ import annotations

import httpx
import pytest

from cdf_replicator.server import Control, server
from cdf_replicator.state import command_queue
from cdf_replicator.state.command_queue import Command
from cdf_replicator.verification import BackgroundVerifier, VerifierThread
from tests.integration.test_verify import Target, sinks
from tests.support.waiting import until

WITHIN = 120
TOKEN = "a-token-of-eighteen"


class Operator:
    """A client with the token of a service whose comparisons run as ``RoutePool`` starts them."""

    def __init__(self, world):
        self.world, self.thread = world, VerifierThread()
        routes = tuple(world.settings.routes)
        self.control = Control(TOKEN, routes, world.board)
        self.control.comparisons = self.thread.requests
        self.control.open_to(world.state_path)
        self.server = server.start(world.board, world.metrics, "127.0.0.1", 0, lambda: None, self.control)
        headers = {"Authorization": f"Bearer {TOKEN}"}
        address = f"http://127.0.0.1:{self.server.port}"
        self.client = httpx.Client(base_url=address, headers=headers, trust_env=False)
        self.start()

    def start(self):
        world, settings = self.world, self.world.settings
        given = world.spark, settings, world.state_path, world.board, settings.routes.values()
        self.thread.start(BackgroundVerifier(*given, self.thread.requests))

    def stop(self):
        self.thread.stop()
        self.thread.join(30)
        self.client.close()
        self.server.stop()

    def press(self, route):
        return self.client.post(f"/routes/{route}/verify")

    def answer(self, accepted):
        return self.client.get(accepted.json()["follow"]).json()

    def answered(self, accepted):
        assert accepted.status_code == 202, accepted.text
        until(lambda: self.answer(accepted)["state"] != "running", WITHIN)
        return self.answer(accepted)

    def page(self, route):
        return " ".join(self.client.get(f"/routes/{route}").text.split())


@pytest.fixture
def operator(world):
    """Return a function that starts the HTTP port beside the routes, which must run before it is called."""
    started = []

    def start():
        started.append(Operator(world))
        return started[-1]

    yield start
    for each in started:
        each.stop()


def differences(world):
    (family,) = (each for each in world.metrics.registry.collect() if each.name == "cdf_verify_differences")
    return {sample.labels["kind"]: sample.value for sample in family.samples}


def test_pressed_comparison_of_redis_is_shown_with_its_numbers(world, live, operator, elasticsearch, redis_server):
    sinks(world, "redis", elasticsearch, redis_server)
    Target(world, "redis", elasticsearch, redis_server).redis.flushall()
    world.create(rows=["(1, 'a')", "(2, 'b')", "(3, 'c')"])
    (runner,) = live("orders_target")
    until(lambda: world.board.snapshot().routes[0].is_undisturbed, WITHIN)
    someone = operator()
    equal = someone.answered(someone.press("orders_target"))
    assert equal["message"].startswith("equal to version 1 of the table; 3 rows and 3 entries compared; ")

    Target(world, "redis", elasticsearch, redis_server).drop(2)
    Target(world, "redis", elasticsearch, redis_server).redis.set("orders:9", "{}")
    until(lambda: world.sample("cdf_verified_version") == 1, WITHIN)
    form = {"token": TOKEN}
    pressed = someone.client.post("/routes/orders_target/actions/verify", data=form)
    assert pressed.status_code == 303
    until(lambda: "differs from version 1 of the table" in someone.page("orders_target"), WITHIN)
    shown = someone.page("orders_target")
    assert "missing 1, foreign 1: differs from version 1 of the table; 3 rows and 3 entries compared" in shown
    assert "Target compared with version 1" in shown
    assert 'verify <span class="quiet">by http_token</span>' in shown
    assert differences(world) == {"missing": 1, "extra": 0, "different": 0, "foreign": 1}
    assert world.sample("cdf_verify_deadline_timestamp_seconds") == float("inf"), "no period makes it due"
    assert (world.board.snapshot().routes[0].state, world.board.snapshot().routes[0].restarts) == ("running", 0)

    resync = Command("resync", "orders_target", max_removed_share=1.0)
    command_queue.accept(world.state_path.requests, resync)
    runner.submit(resync)
    until(lambda: differences(world)["missing"] == 0, WITHIN, lambda: someone.page("orders_target"))


@pytest.fixture
def endless(world, live):
    """A live route whose comparison has no end."""
    world.environ |= {"CDF_SINKS__FILES__TYPE": "endless"}
    world.create(rows=["(1, 'a')"])
    (runner,) = live("orders_files")
    until(lambda: world.board.snapshot().routes[0].is_undisturbed, WITHIN)
    return runner


def test_second_press_is_refused_while_a_comparison_runs(world, endless, operator):
    someone = operator()
    first = someone.press("orders_files")
    until((world.files / "viewed").exists, WITHIN)
    second = someone.press("orders_files")
    assert (second.status_code, "A comparison of route orders_files is running." in second.text) == (409, True)
    form = someone.client.post("/routes/orders_files/actions/verify", data={"token": TOKEN})
    assert (form.status_code, "A comparison of route orders_files is running." in form.text) == (409, True)
    until(lambda: "rows and entries read" in someone.answer(first)["message"], WITHIN)
    assert "rows and entries read" in someone.page("orders_files")
    world.insert("(2, 'b')")
    until(lambda: world.delivered() == world.expected(), WITHIN)

    endless.submit(Command("pause", "orders_files"))
    ended = someone.answered(first)
    assert (ended["state"], "The route stopped or restarted" in ended["message"]) == ("failed", True)
    until((world.files / "closed").exists, WITHIN)
    paused = someone.answered(someone.press("orders_files"))
    assert "while the route runs" in paused["message"]


def test_comparison_ends_with_the_service_and_a_reload(world, endless, operator):
    someone = operator()
    pressed = someone.press("orders_files")
    until((world.files / "viewed").exists, WITHIN)
    someone.thread.stop()
    assert "A reload or the end of the service" in someone.answer(pressed)["message"]
    assert someone.press("orders_files").status_code == 409
    until((world.files / "closed").exists, WITHIN)
    (world.files / "viewed").unlink()
    someone.start()
    assert someone.press("orders_files").status_code == 202
    until((world.files / "viewed").exists, WITHIN)
    assert endless.is_alive()


def test_periodic_comparison_is_paced_and_one_on_request_is_not(world, live, operator):
    world.environ |= {"CDF_SINKS__FILES__TYPE": "endless", "CDF_VERIFY__EVERY_HOURS": "24"}
    world.create(rows=["(1, 'a')"])
    live("orders_files")
    until(lambda: world.board.snapshot().routes[0].is_undisturbed, WITHIN)
    someone, viewed = operator(), world.files / "viewed"
    until(lambda: viewed.exists() and viewed.read_text() == "true", WITHIN)
    someone.press("orders_files")
    until(lambda: viewed.read_text() == "None", WITHIN)


def test_pressed_comparison_takes_the_place_of_a_periodic_one(world, live, operator):
    """The endless comparison by the period begins first, and begins again after that of the operator."""
    sinks = {"CDF_TABLES__ORDERS__SINKS": "files,audit", "CDF_SINKS__FILES__TYPE": "endless"}
    audit = {"CDF_SINKS__AUDIT__TYPE": "delta_audit", "CDF_SINKS__AUDIT__PATH": str(world.folder / "audit")}
    world.environ |= {**sinks, **audit, "CDF_VERIFY__EVERY_HOURS": "24"}
    world.create(rows=["(1, 'a')"])
    live("orders_audit")
    until(lambda: world.board.snapshot().routes[0].is_undisturbed, WITHIN)
    audit_board, audit_metrics = world.board, world.metrics
    live("orders_files")
    until(lambda: world.board.snapshot().routes[0].is_undisturbed, WITHIN)
    (found,) = audit_board.snapshot().routes
    world.board.add_route(found.route, found.table, found.sink)  # each runner of the tests has a board of its own
    world.board.update(found.route, state="running", delivered_version=found.delivered_version)
    someone = operator()
    until((world.files / "viewed").exists, WITHIN)
    (world.files / "viewed").unlink()
    answer = someone.answered(someone.press("orders_audit"))
    assert answer["message"].startswith("equal to version 1 of the table; 1 rows and 1 entries compared"), answer
    until((world.files / "viewed").exists, WITHIN)
    rows = {route.route: route for route in world.board.snapshot().routes}
    assert rows["orders_audit"].verify_deadline is None, "audits are compared on request alone"
    assert rows["orders_files"].verify_deadline is not None
    del audit_metrics
