"""The Grafana dashboard, as data: `python -m deploy.grafana.dashboard` writes `cdf-replicator.json` beside it.

Written for schema 36, which every Grafana from 8.4 on reads and newer versions upgrade.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("cdf-replicator.json")
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
SCOPE = 'job=~"$job", instance=~"$instance"'
ROUTES = f'{SCOPE}, table=~"$table", sink=~"$sink"'
SINKS = f'{SCOPE}, sink=~"$sink"'
WIDTH = 24
GOOD, BUSY, WARN, BAD, IDLE = "green", "blue", "orange", "red", "text"


@dataclass(frozen=True)
class Panel:
    """One panel. ``queries``: PromQL by legend. ``steps``: colours from a value on."""

    title: str
    description: str
    queries: dict[str, str]
    unit: str = "short"
    kind: str = "timeseries"
    width: int = 8
    height: int = 7
    stacked: bool = False
    steps: tuple[tuple[float | None, str], ...] = ((None, GOOD),)


@dataclass(frozen=True)
class Row:
    title: str
    panels: tuple[Panel, ...] = field(default_factory=tuple)


def _stat(title: str, description: str, query: str, *, unit: str = "short", bad_from: float | None = None) -> Panel:
    steps = ((None, IDLE),) if bad_from is None else ((None, GOOD), (bad_from, BAD))
    return Panel(title, description, {"": query}, unit, "stat", width=4, height=4, steps=steps)


ROWS = (
    Row(
        "Overview",
        (
            _stat("Instances up", "Instances that Prometheus can scrape.", f"sum(up{{{SCOPE}}})"),
            _stat(
                "Routes in trouble",
                "Routes that are halted, stalled or trying again. Their last error, with the next step, is on the status page.",
                f'sum(cdf_route_state{{{ROUTES}, state=~"halted|stalled|retrying"}})',
                bad_from=1,
            ),
            _stat("Sinks down", "Sinks that did not answer last time.", f"sum(1 - cdf_sink_up{{{SINKS}}})", bad_from=1),
            _stat(
                "Worst lag",
                "Age of the oldest commit that is not delivered, of the route that is furthest behind.",
                f"max(cdf_lag_seconds{{{ROUTES}}})",
                unit="s",
            ),
            _stat(
                "Changes per second",
                "Changes that sinks took.",
                f"sum(rate(cdf_changes_applied_total{{{ROUTES}}}[$__rate_interval]))",
                unit="cps",
            ),
            _stat("Dead letters", "Refused rows that are open.", f"sum(cdf_dead_letters{{{ROUTES}}})", bad_from=1),
        ),
    ),
    Row(
        "Lag",
        (
            Panel(
                "Lag by route",
                "Age of the oldest commit of the source table that is not delivered; 0 if all are.",
                {"{{route}}": f"cdf_lag_seconds{{{ROUTES}}}"},
                "s",
            ),
            Panel(
                "Versions behind",
                "Newest commit version of the source table, less the last delivered one.",
                {"{{route}}": f"cdf_lag_versions{{{ROUTES}}}"},
            ),
            Panel(
                "Headroom",
                "Time until files that a route still needs may be removed by VACUUM or log cleanup. At 0 only a resync helps.",
                {"{{route}}": f"cdf_headroom_seconds{{{ROUTES}}} < +Inf"},
                "s",
            ),
        ),
    ),
    Row(
        "Throughput",
        (
            Panel(
                "Changes read, by type",
                "Rows read from the change feeds, repeated reads included.",
                {
                    "{{change_type}}": f"sum by (change_type) (rate(cdf_changes_received_total{{{ROUTES}}}[$__rate_interval]))"
                },
                "cps",
                stacked=True,
            ),
            Panel(
                "Changes taken, by route",
                "Changes that the sink took.",
                {"{{route}}": f"sum by (route) (rate(cdf_changes_applied_total{{{ROUTES}}}[$__rate_interval]))"},
                "cps",
                stacked=True,
            ),
            Panel(
                "Stale, without effect, refused",
                "Older than what the sink held, or nothing to change: successes. Refused: dead letters.",
                {
                    "stale": f"sum(rate(cdf_changes_stale_total{{{ROUTES}}}[$__rate_interval]))",
                    "without effect": f"sum(rate(cdf_changes_noop_total{{{ROUTES}}}[$__rate_interval]))",
                    "refused: {{reason}}": f"sum by (reason) (rate(cdf_changes_rejected_total{{{ROUTES}}}[$__rate_interval]))",
                },
                "cps",
            ),
        ),
    ),
    Row(
        "Micro-batches",
        (
            Panel(
                "Time of a micro-batch",
                "Median and 95th percentile of the whole micro-batch, by route.",
                {
                    f"{{{{route}}}} p{share}": f"histogram_quantile(0.{share}, sum by (route, le) "
                    f'(rate(cdf_batch_duration_seconds_bucket{{{ROUTES}, phase="total"}}[$__rate_interval])))'
                    for share in (50, 95)
                },
                "s",
            ),
            Panel(
                "Where the time goes",
                "Seconds of work a second, by phase.",
                {
                    "{{phase}}": "sum by (phase) "
                    f'(rate(cdf_batch_duration_seconds_sum{{{ROUTES}, phase!="total"}}[$__rate_interval]))'
                },
                "s",
                stacked=True,
            ),
            Panel(
                "Micro-batches that failed, restarts",
                "Micro-batches that did not end well, and restarts of routes' queries by reason.",
                {
                    "{{route}} {{outcome}}": "sum by (route, outcome) "
                    f'(increase(cdf_batches_total{{{ROUTES}, outcome!="delivered"}}[$__rate_interval]))',
                    "{{route}} restarted: {{reason}}": "sum by (route, reason) "
                    f"(increase(cdf_restarts_total{{{ROUTES}}}[$__rate_interval]))",
                },
            ),
        ),
    ),
    Row(
        "Sinks",
        (
            Panel(
                "Requests",
                "Median and 95th percentile of the time of one request.",
                {
                    f"{{{{sink}}}} p{share}": f"histogram_quantile(0.{share}, sum by (sink, le) "
                    f"(rate(cdf_sink_request_duration_seconds_bucket{{{SINKS}}}[$__rate_interval])))"
                    for share in (50, 95)
                },
                "s",
            ),
            Panel(
                "Bytes sent",
                "What sinks were sent.",
                {"{{sink}}": f"sum by (sink) (rate(cdf_sink_bytes_total{{{SINKS}}}[$__rate_interval]))"},
                "Bps",
            ),
            Panel(
                "Sent again",
                "Writes that were sent again, by reason: the sink did not answer, or requested a retry.",
                {
                    "{{sink}}: {{reason}}": "sum by (sink, reason) "
                    f"(rate(cdf_retries_total{{{ROUTES}}}[$__rate_interval])) > 0"
                },
                "cps",
            ),
        ),
    ),
    Row(
        "Process",
        (
            Panel(
                "Memory",
                "Resident memory of the service's Python and of Spark's JVM.",
                {
                    "{{instance}} Python": f"process_resident_memory_bytes{{{SCOPE}}}",
                    "{{instance}} JVM": f"cdf_jvm_process_resident_memory_bytes{{{SCOPE}}}",
                },
                "bytes",
            ),
            Panel(
                "Processor",
                "Cores in use.",
                {
                    "{{instance}} Python": f"rate(process_cpu_seconds_total{{{SCOPE}}}[$__rate_interval])",
                    "{{instance}} JVM": f"rate(cdf_jvm_process_cpu_seconds_total{{{SCOPE}}}[$__rate_interval])",
                },
            ),
            Panel(
                "Versions that run",
                "Of the service, Spark, Delta and Java.",
                {"{{version}}, Spark {{spark_version}}, Delta {{delta_version}}": f"cdf_build_info{{{SCOPE}}}"},
                kind="stat",
                steps=((None, IDLE),),
            ),
        ),
    ),
)


def dashboard() -> dict[str, Any]:
    return {
        "uid": "cdf-replicator",
        "title": "cdf-replicator",
        "description": "Change feeds of Delta tables on their way into other systems: who is behind, and why.",
        "tags": ["cdf-replicator", "delta"],
        "schemaVersion": 36,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "timezone": "",
        "links": [],
        "annotations": {"list": []},
        "templating": {"list": _variables()},
        "panels": _panels(),
    }


def _variables() -> list[dict[str, Any]]:
    chosen = {"type": "datasource", "name": "datasource", "label": "Data source", "query": "prometheus"}
    names = (("job", "up"), ("instance", 'up{job=~"$job"}'), ("table", "cdf_route_state"), ("sink", "cdf_route_state"))
    return [
        {**chosen, "current": {}, "hide": 0, "options": [], "refresh": 1, "regex": ""},
        *(
            {
                "type": "query",
                "name": name,
                "label": name.capitalize(),
                "datasource": DATASOURCE,
                "query": {"query": f"label_values({_of(name, metric)}, {name})", "refId": name},
                "definition": f"label_values({_of(name, metric)}, {name})",
                "includeAll": True,
                "multi": True,
                "allValue": ".+",
                "current": {"text": "All", "value": "$__all"},
                "refresh": 2,
                "sort": 1,
                "hide": 0,
                "options": [],
                "regex": "",
            }
            for name, metric in names
        ),
    ]


def _of(name: str, metric: str) -> str:
    """Jobs are those that have the service's metrics, not all that are up."""
    return "cdf_build_info" if name in ("job", "instance") else metric


def _panels() -> list[dict[str, Any]]:
    panels: list[dict[str, Any]] = []
    y = 0
    for row in ROWS:
        place = {"x": 0, "y": y, "w": WIDTH, "h": 1}
        panels.append({"type": "row", "title": row.title, "collapsed": False, "gridPos": place, "panels": []})
        x, y = 0, y + 1
        for panel in row.panels:
            panels.append(_panel(panel, {"x": x, "y": y, "w": panel.width, "h": panel.height}))
            x += panel.width
        y += max(panel.height for panel in row.panels)
    return [{"id": number, **panel} for number, panel in enumerate(panels, start=1)]


def _panel(panel: Panel, place: dict[str, int]) -> dict[str, Any]:
    shared = {
        "type": panel.kind,
        "title": panel.title,
        "description": panel.description,
        "datasource": DATASOURCE,
        "gridPos": place,
        "targets": [
            {"refId": chr(ord("A") + number), "expr": query, "legendFormat": legend, "datasource": DATASOURCE}
            for number, (legend, query) in enumerate(panel.queries.items())
        ],
    }
    defaults: dict[str, Any] = {
        "unit": panel.unit,
        "min": 0,
        "thresholds": {
            "mode": "absolute",
            "steps": [{"value": value, "color": colour} for value, colour in panel.steps],
        },
    }
    if panel.kind == "stat":
        named = "name" if next(iter(panel.queries)) else "value"
        options = {
            "colorMode": "value",
            "graphMode": "none",
            "textMode": named,
            "reduceOptions": {"calcs": ["lastNotNull"]},
        }
        return {**shared, "fieldConfig": {"defaults": defaults, "overrides": []}, "options": options}
    stacking = {"mode": "normal" if panel.stacked else "none", "group": "A"}
    defaults["custom"] = {"fillOpacity": 20 if panel.stacked else 0, "lineWidth": 1, "stacking": stacking}
    legend = {"displayMode": "list", "placement": "bottom", "showLegend": True}
    options = {"legend": legend, "tooltip": {"mode": "multi", "sort": "desc"}}
    return {**shared, "fieldConfig": {"defaults": defaults, "overrides": []}, "options": options}


def text() -> str:
    return json.dumps(dashboard(), indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    FILE.write_text(text())
