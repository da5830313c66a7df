"""Which nodes of a Ray cluster are hosts."""

from __future__ import annotations

from trivet_supervisor.hosts.over_ray.cluster import told_apart


def node(name: str, number: int, is_alive: bool = True) -> dict[str, object]:
    return {"NodeName": name, "NodeID": f"{number:08}", "Alive": is_alive}


def test_a_host_that_was_started_anew_is_known_once_the_node_before_is_dead() -> None:
    before, after, other = node("a", 1), node("a", 2), node("b", 3)
    named, left_out = told_apart([before, after, other])
    assert named == {"b": other}
    assert "2 living nodes of this name" in left_out["a"].trouble
    assert told_apart([{**before, "Alive": False}, after, other]) == ({"a": after, "b": other}, {})


def test_a_name_that_is_no_folder_is_told() -> None:
    named, left_out = told_apart([node("rack/1", 1), node(".hidden", 2), node("10.0.0.2", 3)])
    assert list(named) == ["10.0.0.2"]
    assert left_out.keys() == {"rack/1", ".hidden"}
    assert all("another --node-name" in host.trouble for host in left_out.values())
