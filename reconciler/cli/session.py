"""What a command works with: repo, nodes and owner, opened when first used and closed once."""

from __future__ import annotations

import os
import time
from contextlib import ExitStack
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import click

from reconciler.cli.output import say
from reconciler.errors import GitError, SettingsError
from reconciler.settings import Settings

if TYPE_CHECKING:
    from reconciler.cli.owner import Owner
    from reconciler.core.model import Desired, Revision
    from reconciler.core.observed import Observed
    from reconciler.fleet.signatures import Signers
    from reconciler.fleet.source import Source
    from reconciler.loop.seams import Edges, PublisherLike
    from reconciler.nodes.pool import NodePool, PoolSettings
    from reconciler.nodes.secretstore import SecretStore

_SUFFIX_LETTERS = "abcdefghijkmnpqrstuvwxyz23456789"
"""32 of them: each is as likely as any other."""


def launch_suffix() -> str:
    """Five letters and digits; those that are easily taken for others are left out."""
    return "".join(_SUFFIX_LETTERS[byte % len(_SUFFIX_LETTERS)] for byte in os.urandom(5))


def utc_now() -> str:
    """RFC 3339, for people."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _location(given: str | None) -> str:
    """The fleet that is meant: what was given; else the working directory, or the fleet around it.

    SettingsError where a folder inside a fleet was given as if it were one.
    """
    from reconciler.fleet.root import fleet_of

    folder = Path(given or ".").resolve() if "://" not in (given or "") else None
    if folder is None or not folder.is_dir():
        return given or "."
    root = fleet_of(folder)
    if root is None or root == folder:
        return given or "."
    if given is not None:
        raise SettingsError(
            f"repo {given}", f"it is a folder of the fleet {root}, not a fleet", f"give {root}"
        )
    say(f"The fleet is {root}.")
    return str(root)


class Session:
    """One run of one command."""

    def __init__(self, settings: Settings, repo: str | None, ref: str | None) -> None:
        self.settings = settings
        self.location = repo or "."
        self.ref = ref
        self.secrets_dir = settings.secrets_dir
        self._stack = ExitStack()

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self._stack.close()

    @classmethod
    def of(cls, ctx: click.Context, repo: str | None, ref: str | None) -> Session:
        """With what was given before the subcommand where the subcommand says nothing."""
        shared = ctx.find_root().obj or {}
        settings = Settings.read()
        if not settings.color:
            ctx.color = False
        session = cls(settings, _location(repo or shared.get("repo")), ref or shared.get("ref"))
        session.secrets_dir = shared.get("secrets") or session.secrets_dir
        return session

    @cached_property
    def source(self) -> Source:
        """The fleet repo."""
        from reconciler.fleet.source import Source

        opened = Source.open(
            self.location,
            cache_dir=self.settings.cache_dir / "git",
            timeout_s=self.settings.fetch_timeout_s,
        )
        self._stack.callback(opened.close)
        return opened

    @cached_property
    def owner(self) -> Owner:
        """The name under which leases are taken."""
        from reconciler.cli.owner import claim

        location = self.location if "://" in self.location else str(Path(self.location).resolve())
        owner = claim(self.settings, location)
        self._stack.callback(owner.close)
        return owner

    @cached_property
    def pool(self) -> NodePool:
        """The nodes."""
        from reconciler.nodes.pool import NodePool

        settings = self.pool_settings(self.owner.cache_file)
        pool = NodePool(owner=self.owner.name, settings=settings)
        self._stack.callback(pool.close)
        return pool

    def pool_settings(self, cache_file: Path | None = None) -> PoolSettings:
        """How this machine and account reach nodes."""
        from reconciler.nodes.pool import PoolSettings

        s = self.settings
        return PoolSettings(
            home=s.home,
            ssh_config=s.ssh_config,
            known_hosts=(s.known_hosts,) if s.known_hosts else (),
            cache_file=cache_file,
        )

    def secret_store(self, folder: Path | None) -> SecretStore:
        """The reconciler's own secrets: as the option says, else the environment."""
        from reconciler.nodes.secretstore import SecretStore

        return SecretStore((folder or self.secrets_dir).absolute())

    def edges(
        self,
        pool: Any = None,
        *,
        publisher: PublisherLike | None = None,
        secrets_dir: Path | None = None,
    ) -> Edges:
        """All that a pass touches; `pool` stands in for the nodes (a saved observation)."""
        from reconciler.loop.seams import Edges

        def act(*args: Any, **fields: Any) -> Any:
            # Imported late: a dry run does not come here.
            from reconciler.nodes.apply import apply

            return apply(*args, **fields, secrets=self.secret_store(secrets_dir))

        def ask(plan: Any, desired: Any, nodes: Any) -> Any:
            from reconciler.nodes.asking import ask
            from reconciler.nodes.secretstore import Snapshot

            store = self.secret_store(secrets_dir)
            has_secrets = store.folder is not None and store.folder.is_dir()
            return ask(plan, desired, nodes, Snapshot(store) if has_secrets else None)

        return Edges(
            source=self.source,
            pool=pool if pool is not None else self.pool,
            owner=pool.owner if pool is not None else self.owner.name,
            apply=act,
            ids=launch_suffix,
            clock_s=time.monotonic,
            now=utc_now,
            publisher=publisher,
            signers=self.signers,
            ask=ask if pool is None else None,
        )

    @cached_property
    def signers(self) -> Signers | None:
        """Whom to obey; None: everybody who can push. SettingsError."""
        from reconciler.fleet.signatures import Signers

        s = self.settings
        for name, file in (
            ("RECONCILE_ALLOWED_SIGNERS", s.allowed_signers),
            ("RECONCILE_REVOKED_SIGNERS", s.revoked_signers),
            ("RECONCILE_OPENPGP_KEYS", s.openpgp_keys),
        ):
            if file is not None and self.source.holds(file):
                raise SettingsError(
                    name,
                    f"{file} lies in the fleet repo, where a pull request can change it",
                    "keep the keys outside the repo that they protect",
                )
        if s.revoked_signers and not s.allowed_signers:
            raise SettingsError(
                "RECONCILE_REVOKED_SIGNERS",
                "is given without RECONCILE_ALLOWED_SIGNERS, so no signature is asked for",
                "name the keys that are obeyed, too",
            )
        return Signers(s.allowed_signers, s.revoked_signers, s.openpgp_keys) or None

    def inventory(self, *, worktree: bool = False) -> Desired:
        """The newest revision that tells which nodes there are. For commands that ask nodes.

        `worktree`: what is not committed yet, where there is a working tree and no --ref. Raises
        InvalidFleet or GitError where not even an older revision does.
        """
        from reconciler.loop.head import inventory, read_head
        from reconciler.loop.trust import Trust

        if worktree and self.ref is None and self.source.has_worktree:
            head = read_head(self.source, None, worktree=True)
            if head.desired is not None:
                return head.desired
        trust = Trust(self.signers, self.source, self.ref)
        head = trust.judge(read_head(self.source, self.ref))
        found = head.desired or inventory(self.source, head, self.ref, trust.vouches)
        if found is not None:
            return found
        message = head.error.message if head.error else "no revision"
        raise GitError(f"repo {self.location}", message, "`reconcile validate` has the findings")

    def revision(self) -> Revision:
        """The commit that is asked for, fetched first."""
        self.source.fetch()
        return self.source.resolve(self.ref)

    def look(self, desired: Desired) -> Observed:
        """One look that changes nothing of what is remembered."""
        return self.pool.look(desired, remember=False)
