"""Tells people, by webhook or command, what the overview's problems are, once each."""

from tidelog.app.alerts.watching import Alerts, open_alerts

__all__ = ["Alerts", "open_alerts"]
