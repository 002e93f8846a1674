"""Set this pod's role as a label, by which a Kubernetes Service selects the lease holder.

Both pods of a pair are ready, so that a rollout continues. Readiness can therefore not select the lease holder. The pod that takes
over also sets the label of the other pod, since a pod that has died or restarts keeps its label.
"""

from __future__ import annotations

import json
import os
import ssl
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from http.client import HTTPException
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal
from urllib.error import HTTPError
from urllib.request import HTTPSHandler, ProxyHandler, Request, build_opener

import structlog

if TYPE_CHECKING:
    from collections.abc import Mapping

    Role = Literal["active", "standby"]

log = structlog.get_logger(__name__)

ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
AGAIN_SECONDS: Final = 5.0
TIMEOUT_SECONDS: Final = 5.0
OTHER_ORDINAL: Final = {"0": "1", "1": "0"}


@dataclass(slots=True)
class Pod:
    """The pod of this process.

    Args:
        label: name of the label.
        name: name of the pod.
        api: URL of the API server.
        account: folder of the service account's token.

    """

    label: str
    name: str
    api: str
    account: Path
    _wanted: Role | None = field(default=None, init=False)
    _patching: threading.Lock = field(default_factory=threading.Lock, init=False)

    @classmethod
    def of(cls, environ: Mapping[str, str] = os.environ, account: Path = ACCOUNT) -> Pod | None:
        """Return this pod if the chart has named a label for it, else None."""
        label, name = environ.get("POD_ROLE_LABEL"), environ.get("POD_NAME")
        host, port = environ.get("KUBERNETES_SERVICE_HOST"), environ.get("KUBERNETES_SERVICE_PORT", "443")
        if not (label and name and host):
            return None
        return cls(label, name, f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}", account)

    def become(self, role: Role) -> threading.Thread:
        """Set the label in a thread that retries, so that neither the lease nor a route waits for the API server."""
        self._wanted = role
        thread = threading.Thread(target=self._become, args=(role,), name="pod-role", daemon=True)
        thread.start()
        return thread

    def _become(self, role: Role) -> None:
        pause, warned = threading.Event(), False
        while True:
            try:
                with self._patching:  # serializes the requests, so that the last role remains
                    if self._wanted != role:
                        return
                    self._patch(self.name, role)
                    if role == "active":
                        self._demote_other_pod()
            except (OSError, HTTPException) as error:  # urllib's errors are subclasses of OSError
                if not warned:
                    log.warning("pod label not set, retrying", role=role, reason=str(error))
                warned = True
                pause.wait(AGAIN_SECONDS)
            else:
                log.info("pod label set", label=self.label, role=role)
                return

    def _demote_other_pod(self) -> None:
        name, _, ordinal = self.name.rpartition("-")
        if other := OTHER_ORDINAL.get(ordinal):
            try:
                self._patch(f"{name}-{other}", "standby")
            except HTTPError as error:
                # A new pod begins as a standby, by the template of the StatefulSet.
                if error.code != HTTPStatus.NOT_FOUND:
                    raise

    def _patch(self, pod: str, role: Role) -> None:
        namespace = (self.account / "namespace").read_text("utf-8").strip()
        token = (self.account / "token").read_text("utf-8").strip()
        request = Request(  # noqa: S310 - the API server's address
            f"{self.api}/api/v1/namespaces/{namespace}/pods/{pod}",
            data=json.dumps({"metadata": {"labels": {self.label: role}}}).encode(),
            headers={"Authorization": f"Bearer {token}", "Content-Type": "application/merge-patch+json"},
            method="PATCH",
        )
        context = ssl.create_default_context()
        with suppress(FileNotFoundError):
            context.load_verify_locations(self.account / "ca.crt")
        # The proxy of the environment may not reach the network of the cluster.
        direct = build_opener(ProxyHandler({}), HTTPSHandler(context=context))
        with direct.open(request, timeout=TIMEOUT_SECONDS):
            pass
