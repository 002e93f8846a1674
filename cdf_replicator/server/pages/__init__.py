"""Render the pages of the HTTP port: each is one HTML document with its own stylesheet and script."""

from cdf_replicator.server.pages import actions, overview, route, settings
from cdf_replicator.server.pages.environment import PAGE_HEADERS

__all__ = ["PAGE_HEADERS", "actions", "overview", "route", "settings"]
