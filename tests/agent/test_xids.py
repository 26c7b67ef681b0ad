"""Xid errors out of the kernel's log: which are a GPU's end, for how long, and what is nobody's."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from reconciler.agent.kmsg import KernelLog
from reconciler.agent.xids import FATAL, NOTABLE, Log, address, in_words, judge

BUS = "0000:91:00"
R570 = "570.86.15"
OLD = "535.129.03"

FELL = (
    "4,1201,6781741548768,-;NVRM: GPU at PCI:0000:91:00: GPU-b6c3b2be-c55b-d076-fa0e-d464e4c7e08b",
    "4,1202,6781741548776,-;NVRM: GPU Board Serial Number: 1653723052734",
    "4,1203,6781741548779,-;NVRM: Xid (PCI:0000:91:00): 79, pid='<unknown>', name=<unknown>,"
    " GPU has fallen off the bus.",
    "4,1204,6781741548783,-;NVRM: GPU 0000:91:00.0: GPU has fallen off the bus.",
)
"""As a driver of branch 535 wrote it."""

OTHERS = {
    48: "4,7,1,-;NVRM: Xid (PCI:0000:91:00): 48, pid=1896, name=python3, An uncorrectable double"
    " bit error (DBE) has been detected on GPU in the framebuffer at physical address 0x1a2b.",
    63: "4,8,2,-;NVRM: Xid (PCI:0000:91:00): 63, pid=1896, Row Remapper: New row marked for"
    " remapping, reset gpu to activate.",
    64: "4,9,3,-;NVRM: Xid (PCI:0000:91:00): 64, pid=1896, Row Remapper: No spare rows",
    74: "4,10,4,-;NVRM: Xid (PCI:0000:91:00): 74, pid='<unknown>', name=<unknown>, NVLink: fatal"
    " error detected on link 3(0x0, 0x0, 0x10000, 0x0, 0x0, 0x0, 0x0)",
    94: "4,11,5,-;NVRM: Xid (PCI:0000:91:00): 94, pid=1896, name=python3, Contained: SM (0x1)."
    " RST: No, D-RST: No",
    95: "4,12,6,-;NVRM: Xid (PCI:0000:91:00): 95, pid=1896, Uncontained: LTC TAG (0x2,0x0)."
    " RST: Yes, D-RST: No",
    119: "3,13,7,-;NVRM: Xid (PCI:0000:91:00): 119, pid=1896, name=python3, Timeout after 6s of"
    " waiting for RPC response from GPU0 GSP! Expected function 76 (GSP_RM_CONTROL)",
    120: "3,14,8,-;NVRM: Xid (PCI:0000:91:00): 120, GSP task timeout @ pc:0x5f2ad8, task: 1",
}


def read(*lines: str) -> Log:
    log = Log()
    for line in lines:
        log.feed(line)
    return log


def asks(action: int) -> str:
    return (
        "4,99,99000000,-;NVRM: Xid (PCI:0000:91:00): 154, GPU recovery action changed from 0x0"
        f" (None) to 0x{action:x} (words)"
    )


def why(*lines: str, recovery: int | None = None, driver: str = OLD) -> str:
    return judge(read(*lines).told().get(BUS, []), recovery, driver)[0]


def test_a_gpu_that_fell_off_the_bus_is_named_by_address_and_uuid() -> None:
    log = read(*FELL)
    assert log.uuids == {BUS: "GPU-b6c3b2be-c55b-d076-fa0e-d464e4c7e08b"}
    (fault,) = log.told()[BUS]
    assert (fault["code"], fault["count"], fault["at_s"]) == (79, 1, 6781741.5)
    assert fault["text"] == "GPU has fallen off the bus."
    assert why(*FELL) == "Xid 79, GPU has fallen off the bus; reboot the node"


@pytest.mark.parametrize(("code", "line"), OTHERS.items(), ids=map(str, OTHERS))
def test_what_the_catalog_answers_with_a_reset_takes_the_gpu_out(code: int, line: str) -> None:
    (fault,) = read(line).told()[BUS]
    assert fault["code"] == code
    assert (code in FATAL) != (code in NOTABLE)
    assert bool(why(line)) == (code in FATAL)
    assert f"Xid {code}, " in in_words(fault)


@pytest.mark.parametrize(
    "line",
    [
        # A crash of the application.
        "4,1,1,-;NVRM: Xid (PCI:0000:91:00): 31, pid=77, name=python3, Ch 00000008, intr 10000000.",
        "4,1,1,-;NVRM: Xid (PCI:0000:91:00): 13, pid='<unknown>', name=<unknown>, Graphics SM Warp",
        "4,1,1,-;NVRM: Xid (PCI:0000:91:00): 45, pid=77, name=python3, Ch 00000010",
        # A process wrote it: its facility is not the kernel's.
        "12,1,1,-;NVRM: Xid (PCI:0000:91:00): 79, GPU has fallen off the bus.",
        # Words of a process in a line of the kernel's.
        '4,1,1,-;audit: comm="NVRM: Xid (PCI:0000:91:00): 79, GPU has fallen off the bus."',
        # A switch's, of no GPU.
        "3,1,1,-;nvidia-nvswitch1: SXid (PCI:0000:06:00.0): 20034, Fatal, Link 28 LTSSM Fault Up",
        " SUBSYSTEM=pci",
        "NVRM: Xid (PCI:0000:91:00): 79, GPU has fallen off the bus.",
        "4,1,1,-;NVRM: Xid (PCI:0000:91:00): seventy-nine, GPU has fallen off the bus.",
        "4,1,1,-;NVRM: Xid (PCI:): 79",
        "",
    ],
)
def test_other_lines_are_no_faults_of_a_gpu(line: str) -> None:
    assert read(line).told() == {}


def test_every_spelling_of_an_address_is_one_gpu() -> None:
    assert address("00000000:91:00.0") == address("0000:91:00") == address("0000:91:00.0") == BUS
    assert address("00010000:0A:00.0") == "10000:0a:00"
    assert address("nonsense") == "nonsense"
    short = "4,1,1,-;NVRM: Xid (0000:91:00): 79, GPU has fallen off the bus."
    partition = "4,1,1,-;NVRM: Xid (PCI:0000:91:00 GPU-I:01): 95, pid=1, Uncontained"
    assert [f["code"] for f in read(short, partition).told()[BUS]] == [79, 95]
    # A kernel that names the caller of each line (CONFIG_PRINTK_CALLER).
    called = "4,1,1,-,caller=T4242;NVRM: Xid (PCI:0000:91:00): 64, pid=1, No spare rows; gone"
    assert [f["text"] for f in read(called).told()[BUS]] == ["No spare rows; gone"]


def test_a_fault_that_repeats_is_one_with_its_count() -> None:
    log = read(*(OTHERS[63].replace(",2,-", f",{n}000000,-") for n in range(1, 6)))
    (fault,) = log.told()[BUS]
    assert (fault["count"], fault["at_s"]) == (5, 5.0)
    assert in_words(fault) == "Xid 63, memory remapping event, 5 times, last 5 s after boot"


def test_a_fault_lasts_until_the_driver_takes_it_back_or_is_loaded_anew() -> None:
    loading = "5,1,9,-;NVRM: loading NVIDIA UNIX x86_64 Kernel Module  535.129.03  Thu Oct 19 2023"
    assert why(*FELL, asks(0)) == ""
    assert why(*FELL, loading) == ""
    assert why(loading, *FELL) != ""
    assert why(*FELL, asks(0), OTHERS[95]).startswith("Xid 95")
    (cleared,) = judge(read(*FELL, asks(0)).told()[BUS], None, OLD)[1]
    assert (cleared["code"], cleared["fatal"]) == (79, False)


def test_a_driver_that_keeps_account_has_the_last_word_on_what_it_keeps_account_of() -> None:
    assert why(*FELL, recovery=0, driver=R570) == ""
    assert why(*FELL, recovery=None, driver=R570) != ""
    assert why(*FELL, recovery=2, driver=R570).startswith("Xid 79")
    # It does not keep account of a firmware that stopped answering; an older one not of 109.
    assert why(OTHERS[119], recovery=0, driver=R570).startswith("Xid 119")
    stuck = OTHERS[119].replace(": 119,", ": 109,")
    assert why(stuck, recovery=0, driver="565.57.01").startswith("Xid 109")
    assert why(stuck, recovery=0, driver=R570) == ""


def test_what_the_driver_asks_for_takes_the_gpu_out_whatever_came_before() -> None:
    assert why(recovery=1, driver=R570) == "the driver asks for a reset of the GPU"
    assert why(recovery=9, driver=R570) == "the driver asks for recovery action 9"
    assert why(OTHERS[94], asks(4)).startswith("Xid 154, GPU recovery action changed from 0x0")
    assert why(OTHERS[94], asks(4), recovery=0, driver=R570) == ""


def test_a_log_full_of_made_up_addresses_stays_small() -> None:
    log = Log()
    for n in range(10_000):
        log.feed(f"4,{n},1,-;NVRM: GPU at PCI:{n:04x}:91:00: GPU-{n:08x}")
        log.feed(f"4,{n},1,-;NVRM: Xid (PCI:{n:04x}:91:00): 79, {'x' * 5000}")
    assert len(log.told()) == len(log.uuids) == 64
    assert all(len(f["text"]) <= 160 for faults in log.told().values() for f in faults)


# --- Reading it -------------------------------------------------------------------------------


def test_what_is_written_later_is_read_later(tmp_path: Path) -> None:
    path, log = tmp_path / "kmsg", KernelLog()
    path.write_text("6,1,1,-;usb 1-1: new device\n" + OTHERS[63] + "\n")
    assert [f["code"] for f in log.look(str(path))["xids"][BUS]] == [63]
    with path.open("a") as file:
        file.write("\n".join(FELL) + "\n4,1,1,-;NVRM: Xid (PCI:0000:92:00): 7")
        file.flush()
        told = log.look(str(path))
        assert {f["code"] for f in told["xids"][BUS]} == {63, 79}
        assert "0000:92:00" not in told["xids"], "half a line was taken for a whole one"
        file.write("9, GPU has fallen off the bus.\n")
    assert [f["code"] for f in log.look(str(path))["xids"]["0000:92:00"]] == [79]
    log.close()


@pytest.mark.parametrize("kind", ["absent", "pipe", "folder", "zero"])
def test_a_log_that_cannot_be_read_is_not_an_empty_one(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "kmsg"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "zero":
        path = Path("/dev/zero")
    told = KernelLog().look(str(path))
    assert "xids" not in told
    assert told["error"].startswith(f"{path}: ")
