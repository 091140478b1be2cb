"""The parts of a service, made once."""

from dataclasses import dataclass
from pathlib import Path

from autotune.server.access.tokens import Tokens
from autotune.server.live import Live
from autotune.server.settings import Settings
from autotune.server.store.database import Database, open_database, sqlite_url, study_url
from autotune.server.store.events import Events
from autotune.server.store.queue import Queue
from autotune.server.store.works import Works

DATABASE = "service.db"


@dataclass(frozen=True, kw_only=True)
class Service:
    """The parts that every request works with.

    Attributes:
        folder: where run folders and, by default, the database lie.
        local_csrf: the secret that forms of pages send along where no token is needed.
    """

    settings: Settings
    folder: Path
    database: Database
    works: Works
    queue: Queue
    events: Events
    tokens: Tokens
    live: Live
    local_csrf: str

    @property
    def needs_token(self) -> bool:
        """True if users have to show a token."""
        return not self.settings.is_local or self.tokens.has_users()


def open_service(settings: Settings, folder: Path, local_csrf: str) -> Service:
    """Return the service of a folder.

    Raises:
        MachineError: its database cannot be used.
    """
    url = settings.database
    if url is None:
        (folder / DATABASE).touch(mode=0o600)  # what SQLite writes beside it has the same mode
        url = sqlite_url(folder / DATABASE)
    database = open_database(url)
    works, events = Works(database), Events(database)
    return Service(
        settings=settings,
        folder=folder,
        database=database,
        works=works,
        queue=Queue(database, study=study_url(url)),
        events=events,
        tokens=Tokens(database),
        live=Live(events, works, settings.limits.live),
        local_csrf=local_csrf,
    )
