"""Provide a handler of queries with given answers, in place of Spark."""

from __future__ import annotations

import threading

from cdf_replicator.queries.query import QueryRefusedError


class Running:
    """A query with the given events; with ``endless`` it repeats the last one until it is cancelled."""

    def __init__(self, *events, endless=False):
        self.given = events
        self.endless = endless
        self.cancelled = threading.Event()

    def events(self):
        yield from self.given
        while self.endless and not self.cancelled.wait(0.01):
            yield self.given[-1]

    def cancel(self, seconds=0.0):
        self.cancelled.set()


class Handler:
    """Answers every query with ``answer``, or refuses it."""

    def __init__(self, answer):
        self.answer = answer
        self.got = []

    def start(self, query):
        self.got.append(query)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def close(self):
        self.answer = QueryRefusedError("the service is stopping", for_now=True)
