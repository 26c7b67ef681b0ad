"""The parts of the lab that need neither root nor packages."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.labfleet import LabError, LabFleet, host, image, keeper


def test_the_mirror_is_the_one_in_etc_apt(tmp_path: Path) -> None:
    (tmp_path / "sources.list.d").mkdir()
    (tmp_path / "sources.list.d/a.sources").write_text(
        "Types: deb\nURIs: http://other.example/apt\nSuites: x\n"
    )
    (tmp_path / "sources.list.d/b.sources").write_text(
        "Types: deb\n# URIs: http://old.example/debian\nURIs: http://m.example/debian/\nSuites: x\n"
    )
    assert image.mirror(tmp_path) == "http://m.example/debian/"


def test_a_one_line_source_with_options_names_the_mirror_too(tmp_path: Path) -> None:
    (tmp_path / "sources.list").write_text(
        "# deb http://old.example/debian bookworm main\n"
        "deb [signed-by=/k.gpg arch=amd64] https://m.example/debian bookworm main\n"
    )
    assert image.mirror(tmp_path) == "https://m.example/debian"


def test_a_machine_without_a_debian_mirror_is_told_so(tmp_path: Path) -> None:
    with pytest.raises(LabError, match="names no Debian mirror"):
        image.mirror(tmp_path)


def test_another_recipe_is_another_image(tmp_path: Path) -> None:
    plain = image.path(tmp_path, "bookworm", ())
    assert image.path(tmp_path, "bookworm", ["fish"]) != plain
    assert image.path(tmp_path, "trixie", ()) != plain
    assert image.path(tmp_path, "bookworm", ()) == plain


@pytest.mark.parametrize("name", ["", "Lab", "a-b", "../x", "ninechars", "1"])
def test_a_name_that_makes_no_interface_or_folder_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(LabError, match="must match"):
        LabFleet.create(1, name=name, cache=tmp_path)
    with pytest.raises(LabError, match="is not there"):
        LabFleet.open(name, cache=tmp_path)


def test_a_program_that_hangs_or_fails_is_an_error_that_says_what_it_said() -> None:
    with pytest.raises(LabError, match=r"sleep: did not end within 0\.1 s"):
        host.run(["sleep", "9"], timeout_s=0.1)
    with pytest.raises(LabError, match="ended with 2 and said: ls: cannot access"):
        host.run(["ls", "/absent"])
    with pytest.raises(LabError, match="is not installed"):
        host.run(["no-such-program"])


@pytest.mark.parametrize(
    ("statuses", "uptime_s", "boots"),
    [
        ([133, 133, 0], 60.0, 3),
        ([137], 60.0, 1),
        ([133] * 99, 0.1, keeper.MAX_SHORT_BOOTS),
        ([133] * 98 + [0], 60.0, 99),
    ],
    ids=[
        "it boots until it is off",
        "a power cut is no reboot",
        "a reboot loop is given up",
        "many reboots are no loop",
    ],
)
def test_the_keeper_boots_again_exactly_after_a_reboot(
    statuses: list[int], uptime_s: float, boots: int
) -> None:
    left, clock = list(statuses), [0.0]

    def boot() -> int:
        clock[0] += uptime_s
        return left.pop(0)

    assert keeper.keep(boot, lambda: clock[0]) == statuses[boots - 1]
    assert len(statuses) - len(left) == boots
