"""/platform/v1/usage: tokens by key, user, model and day, with their cost; JSON or CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from datetime import date, timedelta

from flask import Blueprint, Response, request
from sqlalchemy import select
from sqlalchemy.orm import Session

from trivet.config import PriceSettings, Settings
from trivet.errors import RequestError
from trivet_registry.account_tables import ApiKey, Usage, User
from trivet_registry.tables import utc_now
from trivet_registry.usage_store import list_usage
from trivet_web.accounts.principal import principal_of_request
from trivet_web.accounts.rights import Right, requires
from trivet_web.accounts.site_accounts import site_accounts
from trivet_web.api.documented import documented
from trivet_web.api.management.account_objects import UsageListing, UsageObject
from trivet_web.json_response import json_response

blueprint = Blueprint("usage", __name__, url_prefix="/platform/v1")
DEFAULT_DAYS = 30
MILLION = 1_000_000
ANY = "*"  # the price of models that have none of their own


QUERY = {"first": str, "last": str, "key": int, "all": int}


@blueprint.get("/usage")
@requires(Right.ACCOUNT)
@documented(UsageListing, query=QUERY)
def usage() -> Response:
    """One's own; `all`: everybody's, for admins. Raises: RequestError."""
    rows = _asked()
    costs = [row.cost for row in rows if row.cost is not None]
    listing = UsageListing(
        data=rows,
        currency=site_accounts().settings.currency,
        cost=sum(costs) if costs else None,
        unpriced_models=sorted({row.model for row in rows if row.cost is None}),
    )
    return json_response(listing)


@blueprint.get("/usage.csv")
@requires(Right.ACCOUNT)
@documented(media_type="text/csv", query=QUERY)
def table() -> Response:
    """The same for spreadsheets. Raises: RequestError."""
    return _csv(_asked(), site_accounts().settings.currency)


def _asked() -> list[UsageObject]:
    """Raises: RequestError."""
    principal, settings = principal_of_request(), site_accounts().settings
    last = _day("last") or utc_now().date()
    first = _day("first") or last - timedelta(days=DEFAULT_DAYS - 1)
    sees_all = principal.is_admin and (request.args.get("all") == "1" or not principal.user_id)
    key_id = _key_id()
    with site_accounts().database.reading() as session:
        rows = list_usage(session, first, last, None if sees_all else principal.user_id, key_id)
        return _objects(session, rows, settings)


def _key_id() -> int | None:
    """Raises: RequestError."""
    text = request.args.get("key")
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal()) or len(text) > 9:
        raise RequestError(
            f"key is {text[:40]!r}; it must be the number of a key, as in `trivet keys list`", param="key"
        )
    return int(text)


def cost_of(row: Usage, prices: Mapping[str, PriceSettings]) -> float | None:
    """None: no price is set. Tokens found in the prefix cache have a price of their own, if one is set."""
    price = prices.get(row.model) or prices.get(ANY)
    if price is None:
        return None
    cached = price.prompt if price.cached is None else price.cached
    fresh_tokens = row.prompt_tokens - row.cached_tokens
    cost = fresh_tokens * price.prompt + row.cached_tokens * cached
    return (cost + row.completion_tokens * price.completion) / MILLION


def _objects(session: Session, rows: Sequence[Usage], settings: Settings) -> list[UsageObject]:
    users = {row.id: row.name for row in session.execute(select(User.id, User.name))}
    keys = {row.id: row for row in session.execute(select(ApiKey.id, ApiKey.name, ApiKey.prefix))}
    return [
        UsageObject(
            day=row.day,
            user=users.get(row.user_id, f"removed user {row.user_id}") if row.user_id else None,
            key_id=row.key_id or None,
            key=f"{keys[row.key_id].prefix} {keys[row.key_id].name}" if row.key_id in keys else None,
            model=row.model,
            requests=row.requests,
            prompt_tokens=row.prompt_tokens,
            cached_tokens=row.cached_tokens,
            completion_tokens=row.completion_tokens,
            cost=cost_of(row, settings.price),
        )
        for row in rows
    ]


def _csv(rows: Sequence[UsageObject], currency: str) -> Response:
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\r\n")
    names = UsageObject.__struct_fields__
    table.writerow([f"cost_{currency}" if currency and name == "cost" else name for name in names])
    for row in rows:
        table.writerow([_cell(getattr(row, name)) for name in names])
    response = Response(text.getvalue(), mimetype="text/csv")
    response.headers["Content-Disposition"] = 'attachment; filename="usage.csv"'
    response.headers["Cache-Control"] = "no-store"
    return response


def _cell(value: object) -> object:
    """A name that a spreadsheet would take for a formula is text."""
    if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r"):
        return f"'{value}"
    return "" if value is None else value


def _day(name: str) -> date | None:
    """Raises: RequestError."""
    text = request.args.get(name)
    if text is None:
        return None
    try:
        if (day := date.fromisoformat(text)).year > 1:  # before the first there is none to count back to
            return day
        raise ValueError
    except ValueError:
        raise RequestError(
            f"{name} is {text[:40]!r}; it must be a day such as 2026-11-30", param=name
        ) from None
