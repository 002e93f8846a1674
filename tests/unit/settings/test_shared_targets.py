"""Two sinks that reach one place by other words: found at validation, with both routes, the target and the remedy."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from cdf_replicator.settings import ConfigurationError, load
from connectors.names import folder, server

if TYPE_CHECKING:
    from pathlib import Path

ES, REDIS, AUDIT, REPLICA = "elasticsearch", "redis", "delta_audit", "delta_replica"


def configured(
    one: dict[str, str], other: dict[str, str], first: dict[str, str], second: dict[str, str]
) -> dict[str, str]:
    """Two routes of one table, through two sinks; then the options of each route."""
    environ = {
        "CDF_STATE_PATH": "/state",
        "CDF_TABLES__ORDERS__PATH": "/orders",
        "CDF_TABLES__ORDERS__KEYS": "id",
        "CDF_TABLES__ORDERS__SINKS": "a,b",
    }
    for sink, settings, options in (("A", one, first), ("B", other, second)):
        environ |= {f"CDF_SINKS__{sink}__{name}": value for name, value in settings.items()}
        environ |= {f"CDF_ROUTES__ORDERS_{sink}__{name}": value for name, value in options.items()}
    return environ


def elasticsearch(hosts: str, **more: str) -> dict[str, str]:
    return {"TYPE": ES, "HOSTS": hosts, **more}


def redis(url: str, **more: str) -> dict[str, str]:
    return {"TYPE": REDIS, "URL": url, **more}


def delta(path: str, kind: str = AUDIT, **more: str) -> dict[str, str]:
    return {"TYPE": kind, "PATH": path, **more}


SAME = [
    (elasticsearch("http://es:9200"), elasticsearch("http://es:9200", API_KEY="k", REQUEST_TIMEOUT="5"), {}, {}),
    (elasticsearch("http://es:9200"), elasticsearch("http://es:9200", CHUNK_ROWS="7"), {}, {"INDEX": "orders"}),
    (elasticsearch("http://es:9200"), elasticsearch("https://ES.:9200/"), {}, {}),
    (elasticsearch("http://a:9200,http://b:9200"), elasticsearch("http://b:9200,http://a:9200"), {}, {}),
    (elasticsearch("http://a:9200,http://b:9200"), elasticsearch("http://c:9200,http://b:9200"), {}, {}),
    (elasticsearch("http://localhost:9200"), elasticsearch("http://127.0.0.1:9200"), {}, {}),
    (elasticsearch("http://os:9200", TYPE="opensearch"), elasticsearch("http://OS:9200", TYPE="opensearch"), {}, {}),
    (redis("redis://h:6379/0"), redis("redis://h/0", LAYOUT="hash"), {}, {}),
    (redis("redis://h"), redis("rediss://user:pass@H:6379?db=0"), {}, {}),
    (redis("unix:///run/redis.sock"), redis("unix:///run/../run/redis.sock?db=0"), {}, {}),
    (redis("redis://h"), redis("redis://h", TIMEOUT_SECONDS="3"), {}, {"KEY_TEMPLATE": "orders:new:{id}"}),
    (redis("redis://h"), redis("redis://h/0"), {"KEY_TEMPLATE": "o{id}"}, {"KEY_TEMPLATE": "orders:{id}"}),
    (delta("/lake/audit"), delta("/lake/audit/"), {}, {}),
    (delta("/lake/audit"), delta("/lake/audit", OPTIMIZE_HOURS="24"), {}, {}),
    (delta("/lake/audit"), delta("file:///lake/x/../audit"), {}, {}),
    (delta("/lake", REPLICA), delta("/lake/", REPLICA, SOFT_DELETE="true"), {}, {}),
    (delta("s3a://lake/audit"), delta("s3://Lake//audit/"), {}, {}),
    (delta("/lake"), delta("/lake", REPLICA), {}, {}),
]
DIFFERENT = [
    (elasticsearch("http://es:9200"), elasticsearch("http://es:9201"), {}, {}),
    (elasticsearch("http://es:80/one"), elasticsearch("http://es:80/two"), {}, {}),
    (elasticsearch("http://es:9200"), elasticsearch("http://es:9200", API_KEY="k"), {}, {"INDEX": "orders_2"}),
    (redis("redis://h/0"), redis("redis://h/1"), {}, {}),
    (redis("redis://h"), redis("redis://h:6380"), {}, {}),
    (redis("redis://h"), redis("redis://h", LAYOUT="hash"), {}, {"KEY_TEMPLATE": "orders2:{id}"}),
    (delta("/lake/audit"), delta("/lake/audit2"), {}, {}),
    (delta("s3a://lake/audit"), delta("gs://lake/audit"), {}, {}),
    (delta("/lake/Audit"), delta("/lake/audit"), {}, {}),
]


@pytest.mark.parametrize(("one", "other", "first", "second"), SAME)
def test_two_routes_of_one_target_are_refused_despite_other_sink_settings(
    one: dict[str, str], other: dict[str, str], first: dict[str, str], second: dict[str, str]
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        load(configured(one, other, first, second))
    (problem,) = caught.value.problems
    assert problem.variable == "CDF_ROUTES__ORDERS_B"
    assert "orders" in str(problem.given)
    assert "route 'orders_a' already writes to" in problem.expected
    assert "or point sink 'b' at another place than sink 'a'" in problem.expected
    assert "pass" not in f"{problem.given} {problem.expected}"


@pytest.mark.parametrize(("one", "other", "first", "second"), DIFFERENT)
def test_different_addresses_are_different_targets(
    one: dict[str, str], other: dict[str, str], first: dict[str, str], second: dict[str, str]
) -> None:
    assert sorted(load(configured(one, other, first, second)).routes) == ["orders_a", "orders_b"]


def test_relative_path_and_link_are_the_folder_they_resolve_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "lake")
    monkeypatch.chdir(tmp_path)
    assert {folder(path) for path in ("lake", "./lake/", "link", f"file:{tmp_path}/lake", str(tmp_path / "lake"))} == {
        f"file:{os.path.realpath(tmp_path / 'lake')}"
    }


def test_a_server_has_one_spelling() -> None:
    assert {server("ES.example.", 1), server("es.example", 1)} == {"es.example:1"}
    assert {server(host, 1) for host in (None, "localhost", "127.0.0.1", "::1")} == {"localhost:1"}
