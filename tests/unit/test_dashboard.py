"""Check that the dashboard queries existing metrics and follows Grafana's rules for dashboards."""

from __future__ import annotations

import json
import re

import pytest
import yaml

from cdf_replicator.monitoring.metrics import all_metrics
from docs.generate.readme import DASHBOARD, RULES

BOARD = json.loads(DASHBOARD.read_text())
PANELS = [panel for panel in BOARD["panels"] if panel["type"] != "row"]
QUERIES = [target["expr"] for panel in PANELS for target in panel["targets"]]
RECORDED = {
    rule["record"]
    for group in yaml.safe_load(RULES.read_text())["groups"]
    for rule in group["rules"]
    if "record" in rule
}
PROCESS = {"up", "process_resident_memory_bytes", "process_cpu_seconds_total"}


def test_dashboard_has_a_name_and_variables():
    assert (BOARD["uid"], BOARD["schemaVersion"], BOARD["editable"]) == ("cdf-replicator", 36, True)
    names = [variable["name"] for variable in BOARD["templating"]["list"]]
    assert names == ["datasource", "job", "instance", "table", "sink"]
    assert "__inputs" not in BOARD
    assert len({panel["id"] for panel in BOARD["panels"]}) == len(BOARD["panels"])


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel["title"])
def test_every_panel_has_a_description_and_a_unit(panel):
    assert panel["title"]
    assert panel["description"].endswith(".")
    assert panel["fieldConfig"]["defaults"]["unit"]
    assert panel["datasource"]["uid"] == "${datasource}"
    assert {target["datasource"]["uid"] for target in panel["targets"]} == {"${datasource}"}


@pytest.mark.parametrize("query", QUERIES)
def test_queries_use_existing_metrics_of_the_selected_jobs(query):
    series = {
        suffix
        for metric in all_metrics()
        for suffix in (
            (f"{metric.name}_bucket", f"{metric.name}_sum")
            if metric.type in {"histogram", "summary"}
            else (metric.name,)
        )
    }
    selected = re.findall(r"\b([\w:]+)\{([^}]*)\}", query)
    assert selected
    for name, labels in selected:
        assert name in series | PROCESS | RECORDED
        assert 'job=~"$job", instance=~"$instance"' in labels
    assert all("[$__rate_interval]" in part for part in re.findall(r"\b(?:rate|increase)\((.*?\])", query))


def test_queries_of_metrics_that_others_have_too_are_of_this_service():
    """By default a query selects all jobs, and every process has these metrics."""
    shared = [query for query in QUERIES if PROCESS & set(re.findall(r"\b([\w:]+)\{", query))]
    assert len(shared) == len(PROCESS)
    assert [query for query in shared if not re.search(r" and on \(job, instance\) .*\bcdf_build_info\b", query)] == []


def test_no_query_adds_values_that_may_be_unknown():
    unknown = [metric.name for metric in all_metrics() if "NaN" in metric.help]
    assert "cdf_sink_up" in unknown
    sums = [query for query in QUERIES if re.match(r"(?:sum|avg)\b", query)]
    assert sums
    assert not [query for query in sums if any(name in query for name in unknown)]


def test_panels_do_not_overlap():
    taken = set()
    for panel in BOARD["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & taken, panel["title"]
        taken |= cells
