"""`trivet users`, `keys`, `audit`, `usage`: who may do what, who did, and how much."""

from __future__ import annotations

import argparse
import getpass
import sys
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING

import msgspec

from trivet.commands.connecting import add_server_options, connect_or_open
from trivet.commands.output import add_json_option, age_text, note, print_json, print_table
from trivet.counted import counted
from trivet.errors import ConfigError, Conflict, NotFound
from trivet.plugins import Command

if TYPE_CHECKING:
    from trivet.client import Client
    from trivet.client.account_results import ApiKey
    from trivet.client.accounts import KeyChanges, UserChanges

AUDIT_PAGE = 500
NUM_LISTED = 50  # entries of the audit log
ROLES = ("admin", "operator", "user", "viewer")


def _actions(
    parser: argparse.ArgumentParser, lists: object, **defaults: object
) -> argparse._SubParsersAction[argparse.ArgumentParser]:
    """Without an action it lists, as `trivet models` does."""
    parser.set_defaults(action=lists, json=False, url=None, ca_file=None, api_key_file=None, **defaults)
    return parser.add_subparsers(metavar="ACTION", help="default: list")


def _action(
    actions: argparse._SubParsersAction[argparse.ArgumentParser], name: str, text: str, run: object
) -> argparse.ArgumentParser:
    parser = actions.add_parser(name, help=text)
    parser.set_defaults(action=run)
    add_json_option(parser)
    add_server_options(parser)
    return parser


def _run(given: argparse.Namespace) -> int:
    code: int = given.action(given)
    return code


# ---- users ---------------------------------------------------------------------------------------


def _add_users(parser: argparse.ArgumentParser) -> None:
    actions = _actions(parser, _list_users)
    _action(actions, "list", "list users", _list_users)
    add = _action(actions, "add", "add a user; the password is asked for, or read from a pipe", _add_user)
    add.add_argument("name", metavar="NAME")
    add.add_argument("--role", choices=ROLES, default="user", help="what it may do (default: user)")
    for name, text in (
        ("passwd", "set a user's password; its sessions end"),
        ("disable", "keep a user and its keys out"),
        ("enable", "let a user in again"),
        ("remove", "remove a user with its keys"),
    ):
        _action(actions, name, text, _change_user).add_argument("name", metavar="NAME")
        actions.choices[name].set_defaults(what=name)
    role = _action(actions, "role", "change what a user may do; its sessions end", _change_user)
    role.add_argument("name", metavar="NAME")
    role.add_argument("role", choices=ROLES)
    role.set_defaults(what="role")


def _list_users(given: argparse.Namespace) -> int:
    with connect_or_open(given) as client:
        users = client.users.list()
    if given.json:
        print_json(users)
    else:
        rows = [
            (u.name, u.role, "disabled" if u.is_disabled else "", age_text(u.last_login_at)) for u in users
        ]
        print_table(("NAME", "ROLE", "STATE", "LAST LOGIN"), rows)
    return 0


def _add_user(given: argparse.Namespace) -> int:
    with connect_or_open(given) as client:
        user = client.users.create(given.name, _password(), given.role)
    _tell(given, user, f"{user.name} can log in, as {user.role}")
    return 0


def _change_user(given: argparse.Namespace) -> int:
    with connect_or_open(given) as client:
        if given.what == "remove":
            client.users.remove(given.name)
            _tell(given, {"removed": given.name}, f"{given.name} is removed, with its keys")
            return 0
        changes: UserChanges = {}
        if given.what == "role":
            changes["role"] = given.role
        elif given.what == "passwd":
            client.users.get(given.name)  # nobody types a password for a user who does not exist
            changes["password"] = _password()
        else:
            changes["is_disabled"] = given.what == "disable"
        user = client.users.update(given.name, changes)
    state = "is disabled" if user.is_disabled else f"is {user.role}"
    change = "has a new password" if given.what == "passwd" else f"{state} now"
    _tell(given, user, f"{user.name} {change}; its sessions have ended")
    return 0


def _password() -> str:
    """Never an argument: every account of a host sees the command lines of its processes."""
    if not sys.stdin.isatty():
        if line := sys.stdin.readline():
            return line.rstrip("\n")
        raise ConfigError(
            "no password came on standard input; write it there, or type the command at a terminal"
        )
    password = getpass.getpass("Password: ")
    if password != getpass.getpass("Again: "):
        raise ConfigError("the two passwords are not the same; nothing was changed")
    return password


# ---- keys ----------------------------------------------------------------------------------------


def _add_keys(parser: argparse.ArgumentParser) -> None:
    actions = _actions(parser, _list_keys, all=False)
    listing = _action(actions, "list", "list keys", _list_keys)
    listing.add_argument("--all", action="store_true", help="everybody's, for admins")
    create = _action(actions, "create", "make a key, which is shown once", _create_key)
    create.add_argument("name", metavar="NAME", help="what it is for")
    create.add_argument("--scope", action="append", help="infer (default), read, operate, admin (repeatable)")
    create.add_argument("--user", help="whose (default: one's own, or the site's)")
    change = _action(actions, "update", "change a key's limits", _update_key)
    change.add_argument("key", metavar="ID", help="its number, or its name where only one has it")
    for action in (create, change):
        action.add_argument("--model", action="append", help="a deployment that it may use (repeatable)")
        action.add_argument("--priority", type=int, help="the best that its requests may have (0 to 9)")
        action.add_argument("--max-concurrency", type=int, metavar="N", help="requests at once")
        action.add_argument("--requests-per-minute", type=int, metavar="N")
        action.add_argument("--expires", metavar="WHEN", help="a day such as 2027-01-31, or days as 90d")
    revoke = _action(actions, "revoke", "revoke a key for good", _revoke_key)
    revoke.add_argument("key", metavar="ID", help="its number, or its name where only one has it")


def _list_keys(given: argparse.Namespace) -> int:
    with connect_or_open(given) as client:
        keys = client.keys.list(everybody=given.all)
    if given.json:
        print_json(keys)
        return 0
    headers = ("ID", "PREFIX", "NAME", "USER", "SCOPES", "MODELS", "PRIORITY", "AT ONCE", "A MINUTE", "STATE")
    print_table(headers, [_key_row(key) for key in keys])
    return 0


def _key_row(key: ApiKey) -> list[object]:
    return [
        key.id,
        key.prefix,
        key.name,
        key.user,
        ",".join(key.scopes),
        "all" if key.models is None else ",".join(key.models),
        key.priority,
        key.max_concurrency,
        key.requests_per_minute,
        _key_state(key),
    ]


def _key_state(key: ApiKey) -> str:
    if key.revoked_at is not None:
        return "revoked"
    if key.expires_at is not None and key.expires_at <= datetime.now(UTC):
        return "expired"
    return f"used {age_text(key.last_used_at)} ago" if key.last_used_at else "never used"


def _create_key(given: argparse.Namespace) -> int:
    with connect_or_open(given) as client:
        made = client.keys.create(
            given.name,
            scopes=given.scope or ["infer"],
            models=given.model,
            priority=given.priority or 0,
            max_concurrency=given.max_concurrency,
            requests_per_minute=given.requests_per_minute,
            expires_at=_moment(given.expires),
            user=given.user,
        )
    if given.json:
        print_json(made)
        return 0
    for notice in made.notices:
        note(notice)
    note(f"key {made.id} ({made.prefix}...), {', '.join(made.scopes)}: it is not shown again")
    print(made.key)
    return 0


def _update_key(given: argparse.Namespace) -> int:
    asked: dict[str, object] = {
        "models": given.model,
        "priority": given.priority,
        "max_concurrency": given.max_concurrency,
        "requests_per_minute": given.requests_per_minute,
        "expires_at": _moment(given.expires),
    }
    changes: KeyChanges = {name: value for name, value in asked.items() if value is not None}  # type: ignore[assignment]
    with connect_or_open(given) as client:
        key = client.keys.update(_key_id(client, given.key), changes)
    for notice in key.notices:
        note(notice)
    _tell(given, key, f"key {key.id} is changed")
    return 0


def _revoke_key(given: argparse.Namespace) -> int:
    with connect_or_open(given) as client:
        key = client.keys.revoke(_key_id(client, given.key))
    _tell(given, key, f"key {key.id} ({key.prefix}...) is revoked")
    return 0


def _key_id(client: Client, key: str) -> int:
    """Raises: NotFound where no key that works has the name, Conflict where several have."""
    if key.isdecimal() and len(key) < 20:
        return int(key)
    ids = sorted(one.id for one in client.keys.list() if one.name == key and one.revoked_at is None)
    if len(ids) > 1:
        raise Conflict(f"keys {', '.join(map(str, ids))} are named {key!r}; give one of these numbers")
    if not ids:
        raise NotFound(f"no key that works is named {key!r}; `trivet keys list --all` has their numbers")
    return ids[0]


def _moment(text: str | None) -> datetime | None:
    """The end of a day in UTC. Raises: ConfigError."""
    if text is None:
        return None
    if text.endswith("d") and text[:-1].isdecimal():
        try:
            return datetime.now(UTC) + timedelta(days=int(text[:-1]))
        except (OverflowError, ValueError):  # ValueError: more digits than Python reads
            raise ConfigError(f"--expires {text[:20]} is beyond the year 9999; give fewer days") from None
    return datetime.combine(_date(text, "--expires"), datetime.max.time(), UTC)


def _date(text: str, option: str) -> date:
    """Raises: ConfigError."""
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise ConfigError(f"{option} is {text!r}; it must be a day such as 2027-01-31") from None


# ---- audit and usage -----------------------------------------------------------------------------


def _add_audit(parser: argparse.ArgumentParser) -> None:
    actions = _actions(parser, _list_audit, limit=NUM_LISTED, act=None)
    listing = _action(actions, "list", "who did what, the newest first", _list_audit)
    listing.add_argument("--limit", type=int, default=NUM_LISTED, metavar="N")
    listing.add_argument("--action", dest="act", help="such as deployment.launch")
    _action(actions, "export", "print every entry, the newest first, as lines of JSON", _export_audit)
    verify = _action(actions, "verify", "name the first entry that was edited or removed", _verify)
    verify.add_argument("--anchor", metavar="ID:HASH", help="what an earlier run printed")


def _list_audit(given: argparse.Namespace) -> int:
    with connect_or_open(given) as client:
        entries = client.audit.list(given.limit, action=given.act)
    if given.json:
        print_json(entries)
        return 0
    rows = [
        (e.id, f"{e.at:%Y-%m-%d %H:%M:%S}", e.actor, e.action, e.target, e.outcome, _diff(e.before, e.after))
        for e in entries
    ]
    print_table(("ID", "TIME (UTC)", "ACTOR", "ACTION", "TARGET", "OUTCOME", "CHANGED"), rows)
    return 0


def _export_audit(given: argparse.Namespace) -> int:
    before = None
    with connect_or_open(given) as client:
        while page := client.audit.list(AUDIT_PAGE, before=before):
            for entry in page:
                print(msgspec.json.encode(entry).decode())
            before = page[-1].id
    return 0


def _diff(before: object, after: object) -> str:
    """Fields that differ."""
    old, new = (value if isinstance(value, dict) else {} for value in (before, after))
    names = [name for name in {**old, **new} if old.get(name) != new.get(name)]
    return " ".join(f"{name}={msgspec.json.encode(new.get(name)).decode()}" for name in names)


def _verify(given: argparse.Namespace) -> int:
    """Exit status 1 where the log is not what was written."""
    with connect_or_open(given) as client:
        verdict = client.audit.verify(given.anchor)
    if given.json:
        print_json(verdict)
    elif verdict.is_whole:
        print(f"{counted(verdict.entries, 'entry', 'entries')}, whole\nanchor {verdict.anchor}")
    else:
        print(f"the audit log is not what was written: {verdict.fault}", file=sys.stderr)
    return 0 if verdict.is_whole else 1


def _add_usage(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--first", metavar="DAY", help="such as 2026-11-01 (default: 30 days ago)")
    parser.add_argument("--last", metavar="DAY", help="(default: today)")
    parser.add_argument("--key", type=int, metavar="ID", help="of one key")
    parser.add_argument("--all", action="store_true", help="everybody's, for admins")
    parser.add_argument("--csv", action="store_true", help="as a table for spreadsheets")
    add_json_option(parser)
    add_server_options(parser)


def _usage(given: argparse.Namespace) -> int:
    first = None if given.first is None else _date(given.first, "--first")
    last = None if given.last is None else _date(given.last, "--last")
    with connect_or_open(given) as client:
        if given.csv:
            print(client.usage.csv(first, last, key=given.key, everybody=given.all), end="")
            return 0
        report = client.usage.report(first, last, key=given.key, everybody=given.all)
    if given.json:
        print_json(report)
        return 0
    rows = [
        (
            u.day,
            u.user,
            u.key,
            u.model,
            u.requests,
            u.prompt_tokens,
            u.cached_tokens,
            u.completion_tokens,
            None if u.cost is None else f"{u.cost:.4f}",
        )
        for u in report.data
    ]
    headers = ("DAY (UTC)", "USER", "KEY", "MODEL", "REQUESTS", "PROMPT", "CACHED", "COMPLETION")
    print_table((*headers, f"COST {report.currency}".strip()), rows)
    if report.cost is not None:
        note(f"in all {report.cost:.4f} {report.currency}".rstrip())
        if report.unpriced_models:
            note(f"without {', '.join(report.unpriced_models)}: no price is set there ([price.NAME])")
    return 0


def _tell(given: argparse.Namespace, value: object, text: str) -> None:
    if given.json:
        print_json(value)
    else:
        print(text)


COMMANDS = (
    Command("users", "list, add, change and remove who can log in", _add_users, _run),
    Command("keys", "make, list, limit and revoke API keys", _add_keys, _run),
    Command("audit", "who did what, and whether the log is what was written", _add_audit, _run),
    Command("usage", "tokens and cost by key, user, model and day", _add_usage, _usage),
)
