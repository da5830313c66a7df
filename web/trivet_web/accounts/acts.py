"""Records acts: in the transaction of the act, with who and from where."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from flask import request
from sqlalchemy import event
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from trivet_registry.audit_log import DONE, REFUSED, Act, append
from trivet_web.accounts.principal import principal_of_request
from trivet_web.accounts.site_accounts import site_accounts
from trivet_web.request_name import request_id

logger = logging.getLogger(__name__)
_IS_RECORDED = "trivet.is_recorded"  # in the environment


def record(
    session: Session,
    action: str,
    target: str = "",
    before: Mapping[str, object] | None = None,
    after: Mapping[str, object] | None = None,
    *,
    actor: str | None = None,
    outcome: str = DONE,
) -> None:
    """Call it last in the transaction that does it: others who act wait from here to its end.

    Args:
        before, after: what has changed, without secrets.
        actor: of who is not logged in yet.
        outcome: FAILED of an act that began and could not be done.
    """
    _append(session, actor or principal_of_request().name, action, target, before, after, outcome)
    request.environ[_IS_RECORDED] = True
    forget_all = site_accounts().credentials.forget_all
    event.listen(session, "after_commit", lambda _: forget_all(), once=True)


def record_refusal(actor: str, action: str, reason: str) -> None:
    """What somebody tried who may not; it stays refused where it cannot be written down.

    Of many by one actor, some are entries, and these tell how many were left out before them.
    """
    left_out = site_accounts().refused_acts.admit(actor)
    if left_out is None:
        return
    after = {"reason": reason} | ({"left_out": left_out} if left_out else {})
    try:
        with site_accounts().database.session() as session:
            _append(session, actor, action, request.path, None, after, REFUSED)
    except SQLAlchemyError as error:
        logger.warning("action=%s refused and not recorded: %s", action, getattr(error, "orig", error))


def is_recorded() -> bool:
    """Whether this request has left an entry."""
    return request.environ.get(_IS_RECORDED, False) is True


def _append(
    session: Session,
    actor: str,
    action: str,
    target: str,
    before: Mapping[str, object] | None,
    after: Mapping[str, object] | None,
    outcome: str,
) -> None:
    address = request.remote_addr or ""
    append(session, Act(actor, action, target, before, after, outcome, address, request_id()))
