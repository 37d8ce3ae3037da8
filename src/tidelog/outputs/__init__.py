"""Destinations of the pipeline: adapters of `tidelog.ports.Output`."""

from tidelog.outputs.base.writer import Writer as Writer
