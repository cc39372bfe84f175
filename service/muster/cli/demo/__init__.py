"""`muster demo`: the main job in one command, on real processes that really wait for each other."""

from muster.cli.demo.command import add_to

__all__ = ["add_to"]
