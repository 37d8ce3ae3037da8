"""Destinations of the pipeline: adapters of `tidelog.ports.Output`."""

from tidelog.outputs.base.executors.writer import Writer as Writer
