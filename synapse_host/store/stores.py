"""What the store keeps, each kind by its own door, over one file."""

from __future__ import annotations

from synapse_host.store.alias_store import AliasStore
from synapse_host.store.certification_store import CertificationStore
from synapse_host.store.database import Store
from synapse_host.store.model_store import ModelStore
from synapse_host.store.module_store import ModuleStore
from synapse_host.store.self_check_store import SelfCheckStore
from synapse_host.values import value_object


@value_object
class Stores:
    """The doors of one open store; made by ``of``."""

    store: Store
    modules: ModuleStore
    models: ModelStore
    certifications: CertificationStore
    aliases: AliasStore
    checks: SelfCheckStore

    @classmethod
    def of(cls, store: Store) -> Stores:
        """The doors of ``store``."""
        return cls(
            store,
            ModuleStore(store),
            ModelStore(store),
            CertificationStore(store),
            AliasStore(store),
            SelfCheckStore(store),
        )
