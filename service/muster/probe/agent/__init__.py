"""The agent: one process per node and job that reads what the recorders wrote and serves it to the gateway."""

from muster.probe.agent.serve import running_agent, serve
from muster.probe.agent.settings import AgentSettings

__all__ = ["AgentSettings", "running_agent", "serve"]
