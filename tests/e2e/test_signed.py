"""A daemon that obeys signed commits only, on real nodes, with keys by the real ssh-keygen."""

from __future__ import annotations

import signal
from pathlib import Path

from tests.e2e.test_heads import events, kill_one, repaired
from tests.e2e.world import World, until
from tests.fleet.signing import allowed, ssh_key


def sign_by(world: World, key: Path | None) -> None:
    """From now on commits are signed by `key`; None: by nobody."""
    world.git("config", "gpg.format", "ssh")
    world.git("config", "commit.gpgsign", "true" if key else "false")
    if key:
        world.git("config", "user.signingkey", str(key))


def test_of_an_unverifiable_head_nothing_is_done_and_what_was_verified_is_repaired(
    world: World,
) -> None:
    ada, mallory = ssh_key(world.folder, "ada"), ssh_key(world.folder, "mallory")
    world.env["RECONCILE_ALLOWED_SIGNERS"] = str(
        allowed(world.folder / "allowed_signers", ("ada@example.com", "", ada))
    )
    sign_by(world, ada)
    world.placement(replicas=2)
    good = world.commit("good")
    told = world.folder / "events.jsonl"
    with world.daemon("--events", str(told)) as daemon:
        until("2 ready", lambda: len(world.ready()) == 2)
        until("in force", lambda: world.commit_in_force() == good)
        sign_by(world, mallory)
        world.placement(replicas=4)
        world.profile(args=("--context", "512"))
        bad = world.commit("not by ada")

        def alarm() -> list[dict[str, object]]:
            return [e for e in events(told) if e["kind"] == "revision.error" and e["after"]]

        (error, *_) = until("the alarm", alarm)
        assert "SignatureInvalid" in str(error["after"])
        assert bad[:10] in str(error["after"])
        assert "SSH key SHA256:" in str(error["causes"])
        victim = kill_one(world)
        until("repaired", lambda: repaired(world, victim), 60)
        daemon.send_signal(signal.SIGKILL)
        daemon.wait(5)

    world.forget()
    with world.daemon("--events", str(told)):
        victim = kill_one(world)
        until("repaired after a restart on another machine", lambda: repaired(world, victim), 60)
        assert world.commit_in_force() == good
        shards = [s for e in world.living().values() for s in e["shards"].values()]
        assert not any("512" in str(s["spec"]["profile"]) for s in shards), "the bad head runs"
        sign_by(world, ada)
        fixed = world.commit("signed on top of it")
        until("what ada signed is followed", lambda: len(world.ready()) == 4, 90)
        until("in force", lambda: world.commit_in_force() == fixed)


def test_by_hand_an_unsigned_commit_is_refused_and_the_keys_cannot_come_from_the_repo(
    world: World,
) -> None:
    ada = ssh_key(world.folder, "ada")
    file = allowed(world.folder / "allowed_signers", ("ada@example.com", "", ada))
    world.placement()
    commit = world.commit("unsigned")
    world.env["RECONCILE_ALLOWED_SIGNERS"] = str(file)
    ran = world.reconcile(code=1)
    assert "SignatureInvalid" in ran.err
    assert commit[:10] in ran.err
    assert "it is not signed" in ran.err
    assert world.launches() == {}
    assert len(world.plan()["changes"]) == 1, "the working tree can be planned"

    inside = world.repo / "allowed_signers"
    inside.write_text(file.read_text())
    world.env["RECONCILE_ALLOWED_SIGNERS"] = str(inside)
    assert "a pull request can change it" in world.reconcile(code=1).err


def test_doctor_says_whether_signatures_are_asked_for_and_whether_head_has_one(
    world: World,
) -> None:
    ada, mallory = ssh_key(world.folder, "ada"), ssh_key(world.folder, "mallory")
    world.placement()
    unsigned = world.commit("unsigned")
    none = world.reconcile("doctor", "--output", "json", code=0).json()["signatures"]
    assert (none["asked_for"], none["keys"], none["findings"]) == (False, {}, [])
    assert none["head"] == {
        "revision": unsigned, "signature": "", "signed": None, "by": "", "why": ""
    }  # fmt: skip
    assert "signatures: not asked for" in world.reconcile("doctor", code=0).out

    file = allowed(world.folder / "allowed_signers", ("ada@example.com", "", ada))
    world.env["RECONCILE_ALLOWED_SIGNERS"] = str(file)
    asked = world.reconcile("doctor", "--output", "json", code=3).json()["signatures"]
    assert asked["keys"] == {"RECONCILE_ALLOWED_SIGNERS": str(file)}
    assert (asked["head"]["signed"], asked["head"]["why"]) == (False, "it is not signed")
    assert "it is not acted on" in asked["findings"][0]

    sign_by(world, mallory)
    world.profile(args=("--context", "512"))
    world.commit("not by ada")
    ran = world.reconcile("doctor", code=3)
    assert "has no good one" in ran.out
    assert "  signatures: head" in ran.out

    sign_by(world, ada)
    world.profile(args=("--context", "1024"))
    world.commit("by ada")
    good = world.reconcile("doctor", "--output", "json", code=0).json()["signatures"]
    assert (good["head"]["signed"], good["head"]["signature"]) == (True, "SSH")
    assert good["head"]["by"] == "ada@example.com"
