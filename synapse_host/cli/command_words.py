"""The host speaks of methods and their parameters; who typed a command is told of commands and options. Pure.

A refusal's message is the same for every client. Only what a command prints is put into its words.
"""

from __future__ import annotations

import re

#: Method -> the command that does the same.
COMMANDS = {
    "embed.batch": "synapse-host embed",
    "job.cancel": "synapse-host jobs cancel",
    "job.resume": "synapse-host jobs resume",
    "model.load": "synapse-host load",
    "model.status": "synapse-opctl model-status",
    "model.unload": "synapse-opctl unload",
    "models.list": "synapse-host list",
    "models.catalog": "synapse-host models catalog",
    "models.download": "synapse-host models download",
    "models.download.cancel": "synapse-host models cancel",
    "models.remove": "synapse-host models remove",
    "probe.start": "synapse-host probe",
    "probe.report": "synapse-opctl probe-report",
    "lanes.pause": "synapse-opctl lanes pause",
    "lanes.resume": "synapse-opctl lanes resume",
    "lanes.status": "synapse-opctl lanes status",
    "aliases.check_index": "synapse-opctl aliases check",
    "alias.declare": "synapse-opctl aliases declare",
    "alias.retract": "synapse-opctl aliases retract",
    "admission.status": "synapse-opctl admission status",
    "cache.pin": "synapse-opctl cache pin",
    "cache.gc": "synapse-opctl cache gc",
}
#: Parameter, as a message names it -> the option or argument that sets it.
OPTIONS = {
    "expected_digest": "--digest",
    "index_fingerprint": "INDEX",
    "provenance_set": "PROVENANCE",
    "request_key": "--key",
    "source_url": "CONTENT",
    "max_tokens": "--max-tokens",
    "model_id": "the model's id",
}
#: A method that stands alone, and not as a part of a file's name or of another word.
_METHOD = re.compile(
    r"(?<![\w./'\"-])(" + "|".join(sorted(map(re.escape, COMMANDS), key=len, reverse=True)) + r")(?![\w/'\"]|\.\w)"
)
_PARAMETER = re.compile(r"(?<![\w.])params\.(" + "|".join(OPTIONS) + r")\b")


def in_commands_words(message: str) -> str:
    """``message`` of a refusal with methods as commands and parameters as options."""
    named = _METHOD.sub(lambda found: COMMANDS[found[1]], message)
    return _PARAMETER.sub(lambda found: OPTIONS[found[1]], named)


def lost_to_a_command(message: str) -> str:
    """What a lost connection means for who typed a command: there is no client to open again, but a host to start."""
    what, _, remedy = message.partition("; ")
    if not remedy.startswith("open a new"):
        return message
    return f"{what}; start the host if it has ended (synapse-host serve), then run the command again"


def operation_as_command(operation: object) -> object:
    """The command for the method a detail names; anything else as it is."""
    return COMMANDS.get(operation, operation) if isinstance(operation, str) else operation
