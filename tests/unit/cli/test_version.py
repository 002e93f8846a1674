"""The version is written once in the package; what can't read it there says the same."""

import re
from pathlib import Path

import pytest
import yaml

from cdf_replicator import __version__

ROOT = Path(__file__).parents[3]


def test_the_image_is_of_this_version():
    assert re.findall(r"^ARG VERSION=(.+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE) == [__version__]


@pytest.mark.parametrize("field", ["version", "appVersion"])
def test_the_chart_is_of_this_version(field):
    assert yaml.safe_load((ROOT / "deploy/helm/cdf-replicator/Chart.yaml").read_text())[field] == __version__


def test_the_overlay_takes_the_image_of_this_version():
    (image,) = yaml.safe_load((ROOT / "deploy/kubernetes/overlays/example/kustomization.yaml").read_text())["images"]
    assert image["newTag"] == __version__
