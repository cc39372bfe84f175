"""Settings of the agent: from flags, environment and a file, in this order."""

from __future__ import annotations

import os
import re
import socket
from pathlib import Path
from typing import Annotated

from pydantic import AliasChoices, Field, SecretStr, StringConstraints, field_validator, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, TomlConfigSettingsSource

from muster.listening import is_loopback, is_unspecified, parse
from muster.probe.agent.retention import BYTES_PER_TABLE
from muster.probe.agent.sources import NAMES
from muster.protocol import JobId


def _aliases(name: str, *shared: str) -> AliasChoices:
    return AliasChoices(name, f"MUSTER_AGENT_{name.upper()}", *shared)


def default_node() -> str:
    """The scheduler's name for this node: Slurm's, Kubernetes' (by the downward API), else the host name."""
    name = os.environ.get("SLURMD_NODENAME") or os.environ.get("NODE_NAME") or socket.gethostname()
    return re.sub(r"[^A-Za-z0-9._-]", "-", name)[:253]


class AgentSettings(BaseSettings):
    """Each setting is a flag of `muster agent`, `MUSTER_AGENT_<NAME>` in the environment, or a key of the TOML file that
    MUSTER_AGENT_FILE names."""

    model_config = SettingsConfigDict(extra="ignore", populate_by_name=True)

    job: JobId = Field(validation_alias=_aliases("job", "MUSTER_JOB"), description="Job to serve.")
    dir: Path | None = Field(
        default=None,
        validation_alias=_aliases("dir", "MUSTER_DIR"),
        description="Directory of the recorders; default /dev/shm/muster-<uid>, then /tmp/muster-<uid>.",
    )
    gateway: str | None = Field(
        default=None,
        validation_alias=_aliases("gateway", "MUSTER_GATEWAY"),
        description="Gateway to register with; none: serve only.",
    )
    token: SecretStr | None = Field(
        default=None,
        validation_alias=_aliases("token", "MUSTER_TOKEN"),
        description="Bearer token for the gateway (scope register).",
    )
    serve_token: SecretStr | None = Field(
        default=None,
        validation_alias=_aliases("serve_token"),
        description="Bearer token that callers of this agent must bring; needed beyond loopback.",
    )
    node: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._-]{1,253}$")] = Field(
        default_factory=default_node,
        validation_alias=_aliases("node", "MUSTER_NODE"),
        description="Name of this node; default the scheduler's name for it.",
    )
    listen: str = Field(
        default="127.0.0.1:0",
        validation_alias=_aliases("listen"),
        description="host:port to listen on; port 0 takes a free one.",
    )
    advertise: str | None = Field(
        default=None,
        validation_alias=_aliases("advertise"),
        description="URL under which the gateway reaches this agent (port 0: the one that it listens on); default the"
        " address that it listens on.",
    )
    rows_per_table: int = Field(
        default=50_000,
        ge=100,
        le=5_000_000,
        validation_alias=_aliases("rows_per_table"),
        description="Rows kept per rank and table; older ones are dropped.",
    )
    bytes_per_table: int = Field(
        default=BYTES_PER_TABLE,
        ge=64 << 10,
        le=16 << 30,
        validation_alias=_aliases("bytes_per_table"),
        description="Bytes kept per rank and table; older rows are dropped.",
    )
    memory_limit: str = Field(
        default="1GB",
        pattern=r"^[0-9]+(MB|GB)$",
        validation_alias=_aliases("memory_limit"),
        description="Memory that DuckDB may take.",
    )
    poll_s: float = Field(
        default=1.0,
        gt=0,
        le=60,
        validation_alias=_aliases("poll_s"),
        description="How often rings and processes are looked at.",
    )
    sample_s: float = Field(
        default=5.0, ge=0, le=3600, validation_alias=_aliases("sample_s"), description="CPU sampling period; 0 is off."
    )
    sources: str = Field(
        default="all",
        validation_alias=_aliases("sources"),
        description="What else is looked at from outside: a comma list of names (docs/agent.md), all of them, or none."
        " One that cannot work here is left out, and the log says why.",
    )
    linger_s: float = Field(
        default=86_400.0,
        ge=0,
        validation_alias=_aliases("linger_s"),
        description="How long to go on serving after the last rank has ended.",
    )
    start_s: float = Field(
        default=3_600.0,
        gt=0,
        validation_alias=_aliases("start_s"),
        description="How long to wait for a first rank before giving up.",
    )

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        file = os.environ.get("MUSTER_AGENT_FILE")
        sources: tuple[PydanticBaseSettingsSource, ...] = (init_settings, env_settings)
        return (*sources, TomlConfigSettingsSource(settings_cls, Path(file))) if file else sources

    @property
    def source_names(self) -> tuple[str, ...]:
        """What `sources` stands for."""
        words = [w.strip() for w in self.sources.split(",") if w.strip()]
        return NAMES if words == ["all"] else () if words == ["none"] else tuple(dict.fromkeys(words))

    @field_validator("sources")
    @classmethod
    def _known_sources(cls, value: str) -> str:
        unknown = {w.strip() for w in value.split(",")} - {*NAMES, "all", "none", ""}
        if unknown:
            raise ValueError(f"no source is called {', '.join(sorted(unknown))}; known are {', '.join(NAMES)}, all, none")
        return value

    @field_validator("gateway", "advertise")
    @classmethod
    def _url(cls, value: str | None) -> str | None:
        if value is not None and not re.fullmatch(r"https?://[^\s/?#@]+(/[^\s?#]*)?", value):
            raise ValueError(f"{value!r} is not a URL such as http://gateway:8700")
        return value.rstrip("/") if value else None

    @model_validator(mode="after")
    def _guarded(self) -> AgentSettings:
        host, _ = parse(self.listen)
        if not is_loopback(host) and self.serve_token is None:
            raise ValueError(
                f"listening on {host} needs serve_token (MUSTER_AGENT_SERVE_TOKEN), so that only the gateway can ask"
            )
        if self.gateway and self.advertise is None and is_unspecified(host):
            raise ValueError(
                f"listening on {host} needs advertise (MUSTER_AGENT_ADVERTISE): the URL under which the gateway reaches"
                " this node, such as http://node1:0"
            )
        return self
