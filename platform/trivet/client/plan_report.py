"""The answers of `engine.capacity` as the API sends them and the command line prints them."""

from __future__ import annotations

from collections.abc import Sequence

from trivet.client.results import Plan, PlanChange, PlanDevice, PlanPart, PlanSpeed
from trivet.contract import DeviceInfo
from trivet.engine.capacity import DeviceAnswer, Speed, num_kv_tokens, num_sequences


def plan_report(backend: str, device: str | None, answers: Sequence[DeviceAnswer]) -> Plan:
    """The best device's answer in full, and all of them in short.

    `backend` and `device` are as they were asked for, and stand where nothing fits.
    """
    devices = tuple(_device(answer) for answer in answers)
    best = _best(answers)
    if best is None or best.plan is None:
        reasons = [answer.reason for answer in answers if answer.devices and answer.reason]
        reasons = reasons or [answer.reason or "" for answer in answers]
        changes = next((one.changes for one in devices if one.changes), ())
        reason = "; ".join(dict.fromkeys(reasons)) or "no backend is installed"
        return Plan(
            backend=backend, device=device, fits=False, reason=reason, changes=changes, devices=devices
        )
    plan, speed = best.plan, best.speed
    return Plan(
        backend=best.backend,
        device=_uids(best.devices),
        parts=tuple(PlanPart(name=part.name, size_bytes=part.size_bytes) for part in plan.parts),
        num_blocks=plan.num_blocks,
        block_size=plan.kv.block_size,
        max_model_len=plan.max_model_len,
        max_num_batched_tokens=plan.max_num_batched_tokens,
        host_bytes=plan.host_bytes,
        kv_dtype=plan.kv.groups[0].dtype,
        kv_token_bytes=sum(group.token_bytes for group in plan.kv.groups),
        num_kv_tokens=num_kv_tokens(plan),
        num_sequences=num_sequences(plan),
        speed=_speed(speed) if speed else None,
        devices=devices,
    )


def _best(answers: Sequence[DeviceAnswer]) -> DeviceAnswer | None:
    """Of the first backend on which it fits, the device with the most room."""
    fitting = [answer for answer in answers if answer.fits]
    same = [answer for answer in fitting if answer.backend == fitting[0].backend]
    return max(same, key=lambda answer: answer.left_bytes, default=None)


def _device(answer: DeviceAnswer) -> PlanDevice:
    first = answer.devices[0] if answer.devices else None
    return PlanDevice(
        backend=answer.backend,
        device=_uids(answer.devices),
        fits=answer.fits,
        reason=answer.reason,
        total_bytes=first.total_bytes if first else 0,
        ours_bytes=answer.ours_bytes,
        others_bytes=answer.others_bytes,
        left_bytes=answer.left_bytes,
        needed_bytes=answer.plan.total_bytes if answer.plan else None,
        changes=tuple(
            PlanChange(text=change.text, setting=change.setting, value=change.value)
            for change in answer.changes
        ),
    )


def _speed(speed: Speed) -> PlanSpeed:
    return PlanSpeed(
        bandwidth_bytes_per_s=speed.bandwidth_bytes_per_s,
        one_stream=speed.one_stream,
        one_stream_full=speed.one_stream_full,
        all_streams_full=speed.all_streams_full,
    )


def _uids(devices: Sequence[DeviceInfo]) -> str:
    return ",".join(device.uid for device in devices)
