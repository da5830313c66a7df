"""An engine is asked something that it answers between two steps."""

from __future__ import annotations

from collections.abc import Collection

from trivet.errors import Conflict, Unavailable
from trivet.messages import Look, Piece, ResetPrefixCache
from trivet_registry.instance_state import InstanceState
from trivet_registry.instances_store import get_instance
from trivet_web.engines.mailbox import Loss, Mailbox
from trivet_web.web_process import web_process


def ask(
    instance_id: str, request: ResetPrefixCache | Look, states: Collection[InstanceState], timeout_s: float
) -> Piece:
    """Its answer. Raises: NotFound; Conflict in another state; EngineLost; Unavailable where it refuses."""
    process, mailbox = web_process(), Mailbox()
    with process.database.reading() as session:
        state = get_instance(session, instance_id).state
    if state not in states:
        raise Conflict(
            f"instance {instance_id} is {state}; only one that is {' or '.join(states)} can answer"
        )
    process.relay.submit(instance_id, request, mailbox, 0)
    items = mailbox.read(timeout_s)
    if not items:
        process.relay.abort(instance_id, request.request_id)
        raise Unavailable(
            f"instance {instance_id} did not answer within {timeout_s:.0f} s: a step takes long; try again"
        )
    if isinstance(items[0], Loss):
        raise items[0].error
    piece = items[0].piece
    if piece.failure is not None:
        raise Unavailable(piece.failure.message)
    return piece
