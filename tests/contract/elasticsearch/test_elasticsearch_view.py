"""The point in time that ``verify`` reads: it is kept alive, and its pages are bounded in bytes."""

import time

from connectors.elasticsearch import view
from connectors.testing import SCHEMA, upsert
from tests.support.waiting import until


def test_point_in_time_is_renewed_while_only_the_table_is_read(sink, es, route, write, monkeypatch):
    """Elasticsearch checks once a minute which points in time have ended, so that the test counts the searches that renew it."""

    def searches():
        return es("GET", f"/{route.table}/_stats/search")["_all"]["primaries"]["search"]["query_total"]

    monkeypatch.setattr(view, "RENEW_SECONDS", 0.1)
    sink.prepare(SCHEMA, route)
    write(route, upsert("a", 1))
    before = searches()
    with sink.view(route):
        until(lambda: searches() >= before + 3)
    after = searches()
    time.sleep(0.5)
    assert searches() <= after + 1


def test_page_has_as_many_documents_as_its_bytes_allow(sink, route, write, monkeypatch):
    sizes = []
    search = view._search

    def measured(*given):
        reply = search(*given)
        sizes.append(len(reply.body))
        return reply

    monkeypatch.setattr(view, "_search", measured)
    monkeypatch.setattr(view, "FIRST_PAGE", 2)
    monkeypatch.setattr("connectors.view.PAGE_BYTES", 200_000)
    sink.prepare(SCHEMA, route)
    write(route, *(upsert(str(number), 1, "x" * 50_000) for number in range(40)))
    with sink.view(route) as held:
        identities = [
            name for part in range(held.parts) for batch in held.scan(part) for name in batch["identity"].to_pylist()
        ]
    assert sorted(identities, key=int) == [str(number) for number in range(40)]
    assert 150_000 < max(sizes) < 250_000, "a part has about ten documents of 50,000 bytes"
