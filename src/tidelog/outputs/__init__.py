"""Destinations of the pipeline: adapters of `tidelog.ports.Output`."""
