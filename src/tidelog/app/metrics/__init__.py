"""What Prometheus scrapes of a capture process, and its health."""
