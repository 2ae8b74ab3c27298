"""Who is taken in while the disk runs short."""

from __future__ import annotations

from agent.base.files import Room
from agent.config import Size, StreamClass
from agent.leaf.link.disk_quota import DiskQuota

MIB = 2**20
CLASSES = {
    "critical": StreamClass(name="critical", max_bytes=Size(10 * MIB), priority=1),
    "normal": StreamClass(name="normal", max_bytes=Size(20 * MIB)),
    "other": StreamClass(name="other", max_bytes=Size(20 * MIB)),
    "bulk": StreamClass(name="bulk", max_bytes=Size(100 * MIB), priority=50),
}


class Disk:
    """A disk with a reserve of 5 MiB, and what the streams on it hold."""

    def __init__(self) -> None:
        self.room: Room | None = None
        self.held = dict.fromkeys(CLASSES, 0.0)
        self.quotas = DiskQuota(CLASSES, self.held.__getitem__, lambda: self.room)

    def refused(self, free: int) -> set[str]:
        """The classes that are held back with so many MiB free."""
        self.room = Room(free * MIB, 5 * MIB)
        return {name for name in CLASSES if self.quotas.refusal(name) is not None}


def test_each_class_leaves_what_those_before_it_may_still_need() -> None:
    disk = Disk()
    assert disk.refused(60) == set()
    assert disk.refused(59) == {"bulk"}
    assert disk.refused(19) == {"bulk", "normal", "other"}
    assert disk.refused(1) == {"bulk", "normal", "other"}, "critical is refused by the reserve alone"


def test_what_a_stream_holds_already_needs_no_room_any_more() -> None:
    disk = Disk()
    disk.held |= {"critical": 9.0 * MIB, "normal": 25.0 * MIB, "other": 10.0 * MIB}
    assert disk.refused(21) == set()
    assert disk.refused(20) == {"bulk"}


def test_a_class_that_was_held_back_begins_again_with_a_reserve_to_spare() -> None:
    disk = Disk()
    assert disk.refused(50) == {"bulk"}
    assert disk.refused(62) == {"bulk"}
    assert disk.refused(65) == set()
    assert disk.refused(62) == set()


def test_nobody_is_held_back_while_nothing_is_known_of_the_disk() -> None:
    disk = Disk()
    assert disk.quotas.refusal("bulk") is None
    disk.refused(1)
    disk.room = None
    assert disk.quotas.refusal("bulk") is None


def test_the_sentence_names_who_the_room_is_for_and_what_to_do() -> None:
    disk = Disk()
    disk.refused(20)
    said = disk.quotas.refusal("bulk") or ""
    assert "the 50 MiB that class critical, normal, other may still need are reserved for it" in said
    assert "class bulk is stored again when there is more room: free some" in said
