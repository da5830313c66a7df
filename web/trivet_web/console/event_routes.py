"""GET /console/events: the one event stream of a tab, as server-sent events that can be taken up again."""

from __future__ import annotations

from typing import cast

from flask import Blueprint, Response, current_app, request

from trivet.errors import RequestError, Unavailable
from trivet_web.accounts.going_on import may_go_on
from trivet_web.accounts.rights import Right, requires
from trivet_web.api.documented import EVENTS, documented
from trivet_web.api.inference import client_fd
from trivet_web.console.event_feed import EventFeed
from trivet_web.engines.mailbox import ClientGone
from trivet_web.stream_worker.handover import handover_of_request
from trivet_web.web_process import web_process

blueprint = Blueprint("console_events", __name__)
FEED = "trivet.console_feed"  # of the application


@blueprint.get("/console/events")
@requires(Right.READ)
@documented(media_type=EVENTS, query={"topics": str, "after": str})
def events() -> Response:
    """`topics` with commas; `after`, or Last-Event-ID, is the last event that the tab has.

    Events are named by their topic. `{"all": [...]}` is everything, `{"set": [...], "gone": [ids]}` a change.

    Raises: RequestError for a topic that is none; Unavailable while the server drains.
    """
    feed, process = cast("EventFeed", current_app.extensions[FEED]), web_process()
    wanted = frozenset(filter(None, request.args.get("topics", "").split(",")))
    if not wanted or not wanted <= feed.names:
        given, names = ",".join(sorted(wanted))[:80], ", ".join(sorted(feed.names))
        raise RequestError(f"topics is {given!r}; it must be some of {names}", param="topics")
    if process.is_draining:
        raise Unavailable("the web server is shutting down; connect again")
    last_id = request.args.get("after") or request.headers.get("Last-Event-ID", "")
    tab = feed.join(wanted, last_id, may_go_on(Right.READ))
    if (fd := client_fd()) is not None:
        process.hang_up.watch(fd, lambda: tab.mailbox.fail(ClientGone("the tab was closed")))
        tab.on_close = lambda: process.hang_up.forget(fd)
    if handover := handover_of_request():
        handover.stream = tab
    response = Response(tab, mimetype=EVENTS)
    response.headers["Cache-Control"] = "no-store"
    response.headers["X-Accel-Buffering"] = "no"
    return response
