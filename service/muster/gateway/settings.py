"""Settings of the gateway: from flags, environment (MUSTER_GATEWAY_…) and a TOML or YAML file, in this order."""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr, StringConstraints, ValidationError, model_validator
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
    YamlConfigSettingsSource,
)

from muster.errors import ConfigError
from muster.listening import is_loopback, is_unspecified, parse
from muster.protocol import JobId
from muster.registry.addresses import LOOPBACK, AllowList

Scope = Literal["read", "query", "register"]
DEFAULT_PORT = 8700
MIN_SECRET = 16


class TokenSetting(BaseModel):
    """A bearer token, kept as its SHA-256 only. `muster token` makes one and prints both. `secret` in place of `sha256` is
    for environments that hand secrets over in plain; it is hashed at once."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._-]{1,64}$")]
    sha256: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
    scopes: frozenset[Scope] = Field(min_length=1)
    jobs: frozenset[JobId] | None = None

    @model_validator(mode="before")
    @classmethod
    def _hashed(cls, value: Any) -> Any:
        if not isinstance(value, dict) or "secret" not in value:
            return value
        secret = str(value["secret"])
        if len(secret) < MIN_SECRET or "sha256" in value:
            raise ValueError(f"give a token either sha256, or a secret of at least {MIN_SECRET} characters")
        rest = {k: v for k, v in value.items() if k != "secret"}
        return rest | {"sha256": hashlib.sha256(secret.encode()).hexdigest()}


class GatewaySettings(BaseSettings):
    """Each setting is a key of the file that MUSTER_GATEWAY_FILE names, `MUSTER_GATEWAY_<NAME>` in the environment, or a
    flag of `muster gateway`."""

    model_config = SettingsConfigDict(env_prefix="MUSTER_GATEWAY_", env_nested_delimiter="__", extra="forbid")

    listen: str = Field(default=f"127.0.0.1:{DEFAULT_PORT}", description="host:port to listen on; port 0 takes a free one.")
    hosts: tuple[str, ...] = Field(
        default=(),
        description="Further host names, networks and .domains that requests may be addressed to (their Host header).",
    )
    state: Path | None = Field(
        default=None,
        description="SQLite file for the roster and the last verdicts; none: they are lost with the process.",
    )
    queries: tuple[Path, ...] = Field(default=(), description="Directories of diagnoses, laid over the built-in ones.")
    tokens: tuple[TokenSetting, ...] = Field(
        default=(), description="Bearer tokens (name, sha256, scopes, jobs). Needed beyond loopback."
    )
    probe_token: SecretStr | None = Field(default=None, description="Bearer token that agents want from the gateway.")
    probe_addresses: tuple[str, ...] = Field(
        default=LOOPBACK, description="Networks, host names and .domains whose probes may be called."
    )
    heartbeat_s: float = Field(default=10.0, gt=0, le=3600, description="How often agents are asked to report.")
    expires_s: float = Field(default=30.0, gt=0, le=86400, description="Silence after which an agent counts as stale.")
    forget_s: float = Field(default=7 * 86_400.0, gt=0, description="Silence after which a job is forgotten.")
    evaluate_s: float = Field(default=15.0, ge=0, le=3600, description="How often running jobs are evaluated; 0: never.")
    deadline_s: float = Field(default=10.0, gt=0, le=300, description="Deadline of a request that names none.")
    max_deadline_s: float = Field(default=60.0, gt=0, le=600, description="Longest deadline that a request may name.")
    min_coverage: float = Field(
        default=1.0, ge=0, le=1, description="Share of ranks that must answer for a verdict other than unknown."
    )
    memory_limit: str = Field(default="2GB", pattern=r"^[0-9]+(MB|GB)$", description="Memory for diagnoses in DuckDB.")
    adhoc_memory_limit: str = Field(default="1GB", pattern=r"^[0-9]+(MB|GB)$", description="Memory for ad-hoc SQL.")
    threads: int = Field(default=2, ge=1, le=256, description="Threads of each DuckDB.")
    diagnoses_at_once: int = Field(default=8, ge=1, le=1024, description="Evaluations that run at once; more wait.")
    queries_at_once: int = Field(default=4, ge=1, le=1024, description="Ad-hoc queries that run at once; more wait.")
    max_rows: int = Field(default=10_000, ge=1, le=1_000_000, description="Rows of an ad-hoc answer that names no cap.")
    max_answer_bytes: int = Field(
        default=16 << 20, ge=1024, le=1 << 30, description="Largest ad-hoc answer, as Arrow bytes before it is encoded."
    )
    max_body_bytes: int = Field(default=4 << 20, ge=1024, le=256 << 20, description="Largest request body.")
    max_jobs: int = Field(default=1_000, ge=1, description="Jobs that are kept.")
    max_nodes_per_job: int = Field(default=20_000, ge=1, description="Nodes of a job.")
    max_ranks_per_job: int = Field(default=1 << 17, ge=1, le=1 << 20, description="Ranks of a job.")
    log_format: Literal["auto", "json", "console"] = Field(default="auto", description="auto: console on a terminal.")
    log_level: Literal["debug", "info", "warning", "error"] = Field(default="info", description="Least level logged.")

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        sources: tuple[PydanticBaseSettingsSource, ...] = (init_settings, env_settings)
        name = os.environ.get("MUSTER_GATEWAY_FILE")
        if not name:
            return sources
        kind = YamlConfigSettingsSource if name.endswith((".yaml", ".yml")) else TomlConfigSettingsSource
        return (*sources, kind(settings_cls, Path(name)))

    @model_validator(mode="after")
    def _fits(self) -> GatewaySettings:
        host, _ = parse(self.listen)
        if not is_loopback(host) and not self.tokens:
            raise ValueError(
                f"listening on {host} needs tokens: make one with `muster token` and put it under tokens,"
                " or listen on 127.0.0.1"
            )
        names = [t.name for t in self.tokens]
        if len(set(names)) != len(names):
            raise ValueError("two tokens have the same name")
        try:
            AllowList(self.probe_addresses)
        except ValueError as error:
            raise ValueError(f"probe_addresses: {error}") from None
        try:
            self.addressed_as()
        except ValueError as error:
            raise ValueError(f"hosts: {error}") from None
        if self.deadline_s > self.max_deadline_s:
            raise ValueError("deadline_s is longer than max_deadline_s")
        return self

    def addressed_as(self) -> AllowList | None:
        """What the Host header of a request may name: on loopback its names and the listen address, and everywhere what
        `hosts` adds. None: anything, which is so beyond loopback while `hosts` is empty, since tokens are needed there.
        Raises ValueError for an entry that is no host."""
        host, _ = parse(self.listen)
        if not self.hosts and not is_loopback(host):
            return None
        own = () if is_unspecified(host) else (host,)
        return AllowList((*LOOPBACK, *own, *self.hosts))


def load_settings(**flags: Any) -> GatewaySettings:
    """Settings from all sources; flags that are None are left out. Raises ConfigError naming the setting."""
    name = os.environ.get("MUSTER_GATEWAY_FILE")
    if name and not Path(name).is_file():
        raise ConfigError(f"MUSTER_GATEWAY_FILE names {name}, which is not a file.")
    try:
        return GatewaySettings(**{k: v for k, v in flags.items() if v is not None})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(p) for p in first["loc"])
        text = re.sub(r"^Value error, ", "", first["msg"])
        raise ConfigError(f"{where + ': ' if where else ''}{text}", hint="See docs/settings.md.") from None
    except ValueError as error:  # a file that is no TOML or YAML
        raise ConfigError(f"{name or 'settings'}: {error}", hint="See docs/settings.md.") from None
