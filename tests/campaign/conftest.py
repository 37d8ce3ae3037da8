"""Servers of the campaign."""

from __future__ import annotations

from tests.e2e.conftest import oracle16, oracle18, oracle_mariadb1011, oracle_mysql80

__all__ = ["oracle16", "oracle18", "oracle_mariadb1011", "oracle_mysql80"]
