"""Destinations of the pipeline: adapters of `tidelog.ports.Output`."""

from tidelog.outputs.writer import Writer as Writer
