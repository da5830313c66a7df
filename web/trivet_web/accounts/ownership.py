"""Whose a stored file, batch or response is."""

from __future__ import annotations

from msgspec import UNSET, UnsetType

from trivet_registry.account_tables import User
from trivet_registry.usage_store import NOBODY
from trivet_web.accounts.principal import (
    STRANGER,
    TOKEN,
    Principal,
    principal_of_request,
    principal_of_user,
)
from trivet_web.accounts.site_accounts import SiteAccounts


def owner_of_request() -> str | UnsetType:
    """Unset: the site's, of a time or a secret without users."""
    return principal_of_request().owner or UNSET


def is_ones_own(owner: str | UnsetType) -> bool:
    """Another's is as one that does not exist; the run token has all."""
    principal = principal_of_request()
    return principal is TOKEN or (owner or "") == principal.owner


def principal_behind(accounts: SiteAccounts, owner: str | UnsetType, key_id: int | UnsetType) -> Principal:
    """For whom stored work goes on now; a stranger, who may nothing, where their key or account has ended.

    Raises: Unavailable where the registry cannot be read.
    """
    if owner is UNSET:
        return TOKEN
    if key_id is not UNSET and key_id != NOBODY:
        return accounts.credentials.of_key(key_id) or STRANGER
    with accounts.database.reading() as session:
        user = session.get(User, int(str(owner).removeprefix("user-")))
        return STRANGER if user is None or user.disabled_at is not None else principal_of_user(user)
