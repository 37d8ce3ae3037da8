"""Alerts: each problem of the overview is reported once, by webhook or command."""

from tidelog.app.alerts.watcher import Alerts, open_alerts

__all__ = ["Alerts", "open_alerts"]
