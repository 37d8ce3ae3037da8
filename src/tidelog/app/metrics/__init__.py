"""The metrics of a capture process, for Prometheus and OpenTelemetry, and its health."""
