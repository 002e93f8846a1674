"""Run Debian's Prometheus with the project's rules; it scrapes the given targets every second."""

from __future__ import annotations

import http.client
import json
import re
import shutil
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import urlencode

from deploy.local.servers.server import Server
from docs.generate.readme import RULES

if TYPE_CHECKING:
    from collections.abc import Sequence


class Prometheus(Server):
    name: ClassVar[str] = "prometheus"

    def __init__(self, targets: Sequence[str]) -> None:
        super().__init__()
        self._targets = targets

    def _prepare(self) -> None:
        """Write the rules with a waiting time (`for`) of two seconds, and a memory of failed requests of four, instead of minutes."""
        rules = RULES.read_text().replace("cdf_sink_up[2m]", "cdf_sink_up[4s]")
        rules = re.sub(r"^( *for:) .*$", r"\1 2s", rules, flags=re.MULTILINE)
        (self.home / "rules.yml").write_text(rules)
        config = {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": ["rules.yml"],
            "scrape_configs": [{"job_name": "cdf-replicator", "static_configs": [{"targets": list(self._targets)}]}],
        }
        (self.home / "prometheus.yml").write_text(json.dumps(config))  # JSON is YAML

    def _command(self) -> list[str]:
        program = shutil.which("prometheus")
        assert program
        files = (f"--config.file={self.home / 'prometheus.yml'}", f"--storage.tsdb.path={self.home / 'data'}")
        return [program, *files, f"--web.listen-address=127.0.0.1:{self.port}"]

    def _ready(self) -> bool:
        return self._get("/-/ready")[0] == http.client.OK

    def value(self, query: str) -> float | None:
        """Return the value of the first series of a query."""
        found = json.loads(self._get(f"/api/v1/query?{urlencode({'query': query})}")[1])["data"]["result"]
        return float(found[0]["value"][1]) if found else None

    def firing(self) -> dict[str, dict[str, Any]]:
        """Labels of the alerts that fire, by name."""
        alerts = json.loads(self._get("/api/v1/alerts")[1])["data"]["alerts"]
        return {alert["labels"]["alertname"]: alert["labels"] for alert in alerts if alert["state"] == "firing"}

    def _get(self, path: str) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()
