from __future__ import annotations

import pytest

from synapse_host.errors import QueueFull
from synapse_host.server.ingress import IngressBudget


def test_budget_is_shared_and_freed() -> None:
    budget = IngressBudget(100)
    budget.hold(1, 60)
    with pytest.raises(QueueFull, match="110 bytes"):
        budget.hold(2, 50)
    assert budget.held == 60
    budget.release(1)
    budget.hold(2, 100)
    assert budget.held == 100


def test_holding_replaces_what_the_connection_held() -> None:
    budget = IngressBudget(100)
    budget.hold(1, 90)
    budget.hold(1, 95)
    budget.hold(1, 0)
    budget.release(1)
    assert budget.held == 0
