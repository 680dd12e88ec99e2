"""Names of profiles, ``<model>.<engine>``: what a preload may ask to be checked against at load. Pure.

There is one for each model of the catalog on each engine its backends have, sixteen in all (wire contract section 10).
A profile says which published figures hold; it is no part of the identity, which says what computes.
"""

from __future__ import annotations

from synapse_host.errors import InvalidRequest
from synapse_host.values import value_object


@value_object
class ProfileName:
    """``model`` names the figures in the fixtures, ``engine`` who is to come to them."""

    model: str
    engine: str

    def __str__(self) -> str:
        return f"{self.model}.{self.engine}"


def read_profile(text: str) -> ProfileName:
    """The parts of a profile's name. Ids of models may hold dots, names of engines hold none.

    Raises:
        InvalidRequest: it has not the two parts; details ``profile``.

    """
    model, _, engine = text.rpartition(".")
    if not model or not engine:
        raise InvalidRequest(
            f"profile {text[:200]!r} is not written <model>.<engine>, as gte-modernbert-base.owned-metal; correct it",
            details={"profile": text[:200]},
        )
    return ProfileName(model, engine)


def refuse_other_engine(profile: str, engine: str) -> None:
    """Raise ``InvalidRequest`` where ``profile`` is of another engine than the one that is to compute."""
    wanted = read_profile(profile)
    if wanted.engine != engine:
        raise InvalidRequest(
            f"profile {profile!r} is of engine {wanted.engine!r} and the model is loaded on {engine!r}; "
            "name the profile of that engine, or leave the profile out and probe the model",
            details={"profile": profile, "engine": engine},
        )
