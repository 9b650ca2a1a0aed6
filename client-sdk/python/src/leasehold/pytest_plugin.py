"""Plugin for pytest with the fixture ``fake_broker``, a broker in memory."""

from __future__ import annotations

import pytest

from leasehold.testing import FakeBroker


@pytest.fixture
def fake_broker() -> FakeBroker:
    """Returns a broker in memory whose locks are all free."""
    return FakeBroker()
