"""Where the host keeps its files and how it is configured; the only reader of environment and TOML.

Every setting stands in ``synapse.toml`` as ``[section] key`` and can be overridden by ``SYNAPSE_<SECTION>_<KEY>``.
The reference page ``docs/reference/settings.md`` is checked against this module by a test. Defaults come from the
original facts, section 10, where the facts have them.
"""

from __future__ import annotations

import os
import tomllib
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, Field, SecretStr, ValidationError, model_validator

from synapse_host.errors import SettingsInvalid
from synapse_host.settings_of_backends import (
    BACKENDS_OF_SECTION,
    AneSettings,
    CudaSettings,
    MetalSettings,
    Section,
    Switch,
    VulkanSettings,
    told_of,
)
from synapse_host.socket_paths import host_socket_path
from synapse_host.user_directory import user_directory

ENVIRONMENT_PREFIX = "SYNAPSE_"
MIB = 1024 * 1024
#: Read by the worker's entry, not by the host, although it looks like a setting of the worker section.
_NOT_SETTINGS = frozenset({"SYNAPSE_WORKER_ID"})
_APPLICATION = "synapse-host"


class InlineSettings(Section):
    """What one inline embedding request may hold and how long it may take."""

    max_items: int = Field(64, ge=1, le=65_536, description="Items one inline embed.batch may hold.")
    max_tokens: int = Field(8192, ge=1, description="Tokens one inline embed.batch may hold.")
    max_text_chars: int = Field(2 * MIB, ge=1024, description="Characters one text may hold; it is tokenised whole.")
    byte_budget: int = Field(64 * MIB, ge=MIB, description="Bytes of text queued and running at once, host-wide.")
    max_queue_ms: int = Field(5000, ge=0, description="Longest predicted wait a request accepts when it names none.")
    deadline_ms: int = Field(30_000, ge=1, description="Time budget of a request that names none.")
    estimated_execution_ms: int = Field(25, ge=1, description="Predicted cost of an execution not measured yet.")


class JobSettings(Section):
    """Durable embed jobs: what an embed.batch too large for an inline answer becomes."""

    max_open: int = Field(4096, ge=1, description="Jobs queued, running or paused at once.")
    page_bytes: int = Field(
        512 * 1024, ge=1, description="Bytes of a page: when one is committed, and how much is read."
    )
    commit_s: float = Field(1.0, ge=0, description="Seconds after which computed rows are committed, page full or not.")
    execution_s: float = Field(86_400.0, gt=0, description="Seconds a job may take from its admission on.")
    retention_s: float = Field(86_400.0, gt=0, description="Seconds the results of an ended job are kept.")
    resume_s: float = Field(86_400.0, gt=0, description="Seconds a job waits for a new login before it fails.")
    sweep_s: float = Field(60.0, gt=0, description="Seconds between two looks for jobs whose time is up.")


class ServerSettings(Section):
    """Limits of the consumer socket."""

    max_connections: int = Field(64, ge=1, le=4096, description="Connections open at once.")
    max_in_flight: int = Field(64, ge=1, le=4096, description="Requests one connection may have unanswered.")
    max_frame: int = Field(64 * MIB, ge=4096, le=1024 * MIB, description="Largest frame in bytes, either way.")
    ingress_bytes: int = Field(256 * MIB, ge=4096, description="Bytes of half-received requests held, host-wide.")
    stall_s: float = Field(30.0, gt=0, description="Seconds a half-sent frame may stand still before its end closes.")
    drain_s: float = Field(10.0, ge=0, description="Seconds admitted work may take to finish after SIGTERM.")

    @model_validator(mode="after")
    def _one_frame_fits(self) -> ServerSettings:
        if self.ingress_bytes < self.max_frame:
            raise ValueError(
                f"ingress_bytes ({self.ingress_bytes}) is less than one frame ({self.max_frame}); raise it"
            )
        return self


class WorkerSettings(Section):
    """How workers run."""

    threads: int = Field(0, ge=0, le=1024, description="Threads a worker computes with; 0 leaves it to its library.")
    max_loads: int = Field(16, ge=1, le=4096, description="Jobs of model.load in progress at once.")
    ping_interval_s: float = Field(10.0, gt=0, le=3600, description="Seconds between two looks at a worker's health.")
    recycle_rss_mib: int = Field(0, ge=0, description="Resident MiB above which an idle worker is replaced; 0: never.")


class ProbeSettings(Section):
    """What a lane must reach to be certified."""

    max_jobs: int = Field(8, ge=1, le=4096, description="Jobs of probe.start in progress at once.")
    embed_cosine: float = Field(0.999, gt=0, le=1, description="Mean cosine to the reference an embed lane needs.")
    decile_overlap: float = Field(0.9, ge=0, le=1, description="Worst-decile rank overlap an embed lane needs.")
    placement_share: float = Field(
        0.9, ge=0, le=1, description="Share of operations on the Neural Engine a lane there needs at every shape."
    )


class MicrollmSettings(Section):
    """What one request for generated text may ask for."""

    max_tokens: int = Field(512, ge=1, le=65_536, description="Most tokens one request may ask a model to generate.")
    grammar_enabled: Switch = Field(
        False, description="Admit grammars where a certified lane obeys them; none does yet."
    )


def _web_address(text: str) -> str:
    parts = urlsplit(text)
    strange = parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment
    # A port that is none is a ValueError of its own.
    if text and (strange or parts.port == 0):
        raise ValueError(
            "must be an http or https address such as https://hub.example (HF_ENDPOINT is one for downloads.endpoint); "
            "python -m http.server makes one of a directory"
        )
    return text


WebAddress = Annotated[str, AfterValidator(_web_address)]


class DownloadSettings(Section):
    """Where models are downloaded from."""

    endpoint: WebAddress = Field("https://huggingface.co", min_length=1, description="Hub that models come from.")
    mirror: WebAddress = Field("", description="Asked before the hub, for the same paths; empty: none.")


class CacheSettings(Section):
    """Where downloaded models are kept; several hosts of a user may share one directory."""

    directory: str = Field("", description="Absolute path of the model cache; empty: `models` below the cache files.")
    max_bytes: int = Field(32 * 1024 * MIB, ge=0, description="Bytes past which what nothing needs is given up.")

    @model_validator(mode="after")
    def _is_absolute(self) -> CacheSettings:
        if self.directory and not Path(self.directory).is_absolute():
            raise ValueError(f"directory ({self.directory!r}) is not an absolute path; give the whole path")
        return self


class AliasSettings(Section):
    """Who may say which numeric identities are equivalent."""

    admin_enabled: Switch = Field(False, description="Serve alias.declare and alias.retract.")


class CatalogSettings(Section):
    """Which of the catalog's lanes this host has."""

    backends: tuple[Literal["metal", "ane", "cuda", "vulkan"], ...] = Field(
        (), strict=False, description="Backends whose lanes are switched on beside those that ship."
    )


class PreloadSettings(Section):
    """Models to load when the host starts."""

    models: tuple[dict[str, Any], ...] = Field(
        (), strict=False, description="Parameters of model.load, one table for each model."
    )


class LogSettings(Section):
    """What the host writes to standard error."""

    level: Literal["debug", "info", "warning", "error"] = Field("info", description="Least severe level written.")
    worker_lines_per_s: int = Field(50, ge=0, description="Lines a second that workers' output may add; 0: none.")


@dataclass(frozen=True, slots=True)
class Paths:
    """Where the files of one host are; nothing here creates them."""

    config_file: Path
    data_dir: Path
    cache_dir: Path
    runtime_dir: Path
    #: The tests' own catalog, and their own place for locks of hardware; named by the environment alone.
    test_catalog: Path | None = None
    test_hardware_dir: Path | None = None

    @property
    def host_socket(self) -> Path:
        """The consumer socket; in the runtime directory unless its path would not fit a socket address."""
        return host_socket_path(self.runtime_dir)

    @property
    def store_file(self) -> Path:
        """The store."""
        return self.data_dir / "synapse.sqlite3"

    @property
    def lock_file(self) -> Path:
        """The file whose lock makes the host the only one of its runtime directory."""
        return self.runtime_dir / "synapse" / "host.lock"

    @property
    def neural_engine_lock(self) -> Path:
        """The lock of the Neural Engine: one for all hosts of a user, whatever directories they were given."""
        return (self.test_hardware_dir or user_directory()) / "neural-engine.lock"


class Settings(Section):
    """The whole configuration. ``paths`` follows the environment and is no key of the file."""

    inline: InlineSettings = Field(default_factory=lambda: InlineSettings())
    jobs: JobSettings = Field(default_factory=lambda: JobSettings())
    server: ServerSettings = Field(default_factory=lambda: ServerSettings())
    worker: WorkerSettings = Field(default_factory=lambda: WorkerSettings())
    probe: ProbeSettings = Field(default_factory=lambda: ProbeSettings())
    microllm: MicrollmSettings = Field(default_factory=lambda: MicrollmSettings())
    downloads: DownloadSettings = Field(default_factory=lambda: DownloadSettings())
    cache: CacheSettings = Field(default_factory=lambda: CacheSettings())
    metal: MetalSettings = Field(default_factory=lambda: MetalSettings())
    cuda: CudaSettings = Field(default_factory=lambda: CudaSettings())
    vulkan: VulkanSettings = Field(default_factory=lambda: VulkanSettings())
    ane: AneSettings = Field(default_factory=lambda: AneSettings())
    aliases: AliasSettings = Field(default_factory=lambda: AliasSettings())
    catalog: CatalogSettings = Field(default_factory=lambda: CatalogSettings())
    preload: PreloadSettings = Field(default_factory=lambda: PreloadSettings())
    log: LogSettings = Field(default_factory=lambda: LogSettings())
    paths: Paths = Field(exclude=True)
    #: ``HF_TOKEN``: never in a file of ours, in no log and in no message.
    hub_token: SecretStr | None = Field(None, exclude=True)

    @property
    def model_cache(self) -> Path:
        """The directory of the model cache."""
        return Path(self.cache.directory) if self.cache.directory else self.paths.cache_dir / "models"

    @property
    def of_backends(self) -> dict[str, dict[str, str]]:
        """What the processes of each backend are told: the keys of its section that were changed, as text."""
        told = {section: told_of(getattr(self, section)) for section in BACKENDS_OF_SECTION}
        return {backend: told[section] for section, backends in BACKENDS_OF_SECTION.items() for backend in backends}


#: section name -> its model, in the order of the reference page.
SECTIONS: Mapping[str, type[BaseModel]] = {
    "inline": InlineSettings,
    "jobs": JobSettings,
    "server": ServerSettings,
    "worker": WorkerSettings,
    "probe": ProbeSettings,
    "microllm": MicrollmSettings,
    "downloads": DownloadSettings,
    "cache": CacheSettings,
    "metal": MetalSettings,
    "cuda": CudaSettings,
    "vulkan": VulkanSettings,
    "ane": AneSettings,
    "aliases": AliasSettings,
    "catalog": CatalogSettings,
    "preload": PreloadSettings,
    "log": LogSettings,
}


def resolve_paths(environ: Mapping[str, str] | None = None) -> Paths:
    """Where everything is: below ``SYNAPSE_HOME``, else where the platform keeps such files.

    Raises:
        SettingsInvalid: ``SYNAPSE_HOME`` is not an absolute path.

    """
    environ = os.environ if environ is None else environ
    home = environ.get("SYNAPSE_HOME")
    paths = _paths_below(home) if home else _platform_paths()
    if test_catalog := environ.get("SYNAPSE_TEST_CATALOG"):
        paths = replace(paths, test_catalog=Path(test_catalog))
    if hardware_dir := environ.get("SYNAPSE_TEST_HARDWARE_DIR"):
        paths = replace(paths, test_hardware_dir=Path(hardware_dir))
    config_file = environ.get("SYNAPSE_CONFIG_FILE")
    return replace(paths, config_file=Path(config_file)) if config_file else paths


def load_settings(environ: Mapping[str, str] | None = None, config_file: Path | None = None) -> Settings:
    """Read the file, then the environment, which wins.

    ``config_file`` and ``SYNAPSE_CONFIG_FILE`` must exist; the default file may be absent.

    Raises:
        SettingsInvalid: an unknown key, a wrong value, a file that cannot be read; the message names it.

    """
    environ = os.environ if environ is None else environ
    paths = resolve_paths(environ)
    if config_file is not None:
        paths = replace(paths, config_file=config_file)
    explicit = config_file is not None or bool(environ.get("SYNAPSE_CONFIG_FILE"))
    values = _with_hub(_read_toml(paths.config_file, must_exist=explicit), environ)
    sections = {name: _section(name, values.pop(name, {}), environ, paths.config_file) for name in SECTIONS}
    if values:
        raise SettingsInvalid(
            f"{paths.config_file}: unknown section or key {next(iter(values))!r}; known sections: {', '.join(SECTIONS)}"
        )
    token = environ.get("HF_TOKEN", "").strip()
    return Settings.model_validate({**sections, "paths": paths, "hub_token": SecretStr(token) if token else None})


def forget_secrets() -> None:
    """Take what is secret out of the environment once it was read, so that no worker and no probe inherits it."""
    os.environ.pop("HF_TOKEN", None)


def _with_hub(values: dict[str, Any], environ: Mapping[str, str]) -> dict[str, Any]:
    """The file's values, with ``HF_ENDPOINT`` as the hub where the file names none."""
    endpoint, given = environ.get("HF_ENDPOINT"), values.get("downloads", {})
    if not endpoint or not isinstance(given, dict):
        return values
    return {**values, "downloads": {"endpoint": endpoint, **given}}


def environment_name(section: str, key: str) -> str:
    """The variable that overrides one setting."""
    return f"{ENVIRONMENT_PREFIX}{section}_{key}".upper()


def _paths_below(home: str) -> Paths:
    root = Path(home)
    if not root.is_absolute():
        raise SettingsInvalid(f"SYNAPSE_HOME={home!r} is not an absolute path; give the whole path")
    return Paths(root / "synapse.toml", root / "data", root / "cache", root / "run")


def _platform_paths() -> Paths:
    import platformdirs

    with warnings.catch_warnings():
        # Without XDG_RUNTIME_DIR platformdirs warns and names a directory under /tmp, which is what we want.
        warnings.simplefilter("ignore")
        runtime_dir = platformdirs.user_runtime_path()
    return Paths(
        platformdirs.user_config_path(_APPLICATION, appauthor=False) / "synapse.toml",
        platformdirs.user_data_path(_APPLICATION, appauthor=False),
        platformdirs.user_cache_path(_APPLICATION, appauthor=False),
        runtime_dir,
    )


def _read_toml(path: Path, *, must_exist: bool) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        if must_exist:
            raise SettingsInvalid(f"{path}: no such file; create it or do not name it") from None
        return {}
    except (OSError, ValueError) as error:
        raise SettingsInvalid(f"{path}: cannot be read as TOML: {error}; correct the file") from error


def _section(name: str, given: object, environ: Mapping[str, str], path: Path) -> BaseModel:
    if not isinstance(given, dict):
        raise SettingsInvalid(f"{path}: {name!r} is {given!r} but must be a table; write [{name}]")
    model = SECTIONS[name]
    overrides = _overrides(name, model, environ)
    try:
        return model.model_validate({**given, **overrides})
    except ValidationError as fault:
        first = fault.errors(include_url=False, include_context=False)[0]
        if not first["loc"]:
            raise SettingsInvalid(f"{path}: section {name}: {first['msg'].removeprefix('Value error, ')}") from None
        key = str(first["loc"][0])
        source = environment_name(name, key) if key in overrides else f"{path}: {name}.{key}"
        if first["type"] == "extra_forbidden":
            raise SettingsInvalid(f"{source} is an unknown key; known: {', '.join(model.model_fields)}") from None
        raise SettingsInvalid(f"{source} = {first['input']!r}: {first['msg']}; correct the value") from None


def _overrides(section: str, model: type[BaseModel], environ: Mapping[str, str]) -> dict[str, Any]:
    known = {environment_name(section, key): key for key in model.model_fields}
    prefix = environment_name(section, "")
    overrides: dict[str, Any] = {}
    for name, text in environ.items():
        if not text:
            continue
        if name in known:
            overrides[known[name]] = _typed(text)
        elif name.startswith(prefix) and name not in _NOT_SETTINGS:
            raise SettingsInvalid(f"{name} is no setting; known: {', '.join(sorted(known))}")
    return overrides


def _typed(text: str) -> object:
    """The value a TOML file would hold, or the text itself: ``64`` is an int, ``debug`` a string."""
    try:
        parsed = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    return parsed["value"] if set(parsed) == {"value"} else text
