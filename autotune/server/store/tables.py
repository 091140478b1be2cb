"""The tables of the service. `migrations/` brings an older database here."""

from sqlalchemy import Boolean, Float, ForeignKey, Index, Integer, LargeBinary, String, Text
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column


class Table(DeclarativeBase):
    """A table of the service. Times are seconds since 1970, UTC."""


class WorkRow(Table):
    """A plan or a run that was asked for."""

    __tablename__ = "service_work"

    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    kind: Mapped[str] = mapped_column(String(8))
    """`plan` or `run`."""
    state: Mapped[str] = mapped_column(String(16))
    """`queued`, `running`, `done`, `failed`, `cancelled`."""
    submitter: Mapped[str] = mapped_column(String(64), default="")
    """The name of the token that it came with."""
    job: Mapped[str] = mapped_column(Text)
    """The job file."""
    model_config_json: Mapped[str | None] = mapped_column(Text)
    """A config.json that came with the job, which names it as its model."""
    arguments: Mapped[str] = mapped_column(Text, default="[]")
    """Of the command, besides the job: a JSON list."""
    method: Mapped[str] = mapped_column(String(16), default="")
    model: Mapped[str] = mapped_column(String(256), default="")
    device: Mapped[str] = mapped_column(String(128), default="")
    """The device that was asked for, then the one it ran on."""
    device_kind: Mapped[str] = mapped_column(String(8), default="auto")
    device_count: Mapped[int] = mapped_column(Integer, default=1)
    parent: Mapped[str | None] = mapped_column(String(32))
    """The work that this is a variation of."""
    created: Mapped[float] = mapped_column(Float)
    started: Mapped[float | None] = mapped_column(Float)
    ended: Mapped[float | None] = mapped_column(Float)
    attempt: Mapped[int] = mapped_column(Integer, default=0)
    """How often a worker has taken it."""
    deaths: Mapped[int] = mapped_column(Integer, default=0)
    """How often its worker has died since it was asked for."""
    worker: Mapped[str | None] = mapped_column(String(128))
    lease_until: Mapped[float | None] = mapped_column(Float)
    stop_wanted: Mapped[bool] = mapped_column(Boolean, default=False)
    """Whether it was cancelled while it ran."""
    exit_code: Mapped[int | None] = mapped_column(Integer)
    outcome: Mapped[str] = mapped_column(String(32), default="")
    """In a word, of what is done: `fits`, `nothing_fits`, `recommended` ..."""
    tokens_per_s: Mapped[float | None] = mapped_column(Float)
    peak_memory_bytes: Mapped[int | None] = mapped_column(Float)
    result: Mapped[str | None] = mapped_column(Text)
    """What `--json` prints."""
    text: Mapped[str | None] = mapped_column(Text)
    """What the command printed."""
    error: Mapped[str | None] = mapped_column(Text)
    """The command's error."""
    events: Mapped[int] = mapped_column(Integer, default=0)
    """The number of its events."""

    __table_args__ = (
        Index("service_work_by_state", "state", "kind", "created"),
        Index("service_work_by_time", "created"),
    )


class DeletedRow(Table):
    """A work that was deleted: workers that have a folder of it learn of it."""

    __tablename__ = "service_deleted"

    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    time: Mapped[float] = mapped_column(Float)


class EventRow(Table):
    """An event of a work. Numbers of a work begin at 1 and have no gaps."""

    __tablename__ = "service_events"

    work: Mapped[str] = mapped_column(
        String(32), ForeignKey("service_work.id", ondelete="CASCADE"), primary_key=True
    )
    number: Mapped[int] = mapped_column(Integer, primary_key=True)
    utc: Mapped[float] = mapped_column(Float)
    kind: Mapped[str] = mapped_column(String(32))
    data: Mapped[str] = mapped_column(Text)


class SourceRow(Table):
    """The lines that were taken of an attempt's file: they are sent again after a loss."""

    __tablename__ = "service_sources"

    work: Mapped[str] = mapped_column(
        String(32), ForeignKey("service_work.id", ondelete="CASCADE"), primary_key=True
    )
    attempt: Mapped[int] = mapped_column(Integer, primary_key=True)
    name: Mapped[str] = mapped_column(String(32), primary_key=True)
    lines: Mapped[int] = mapped_column(Integer)


class FileRow(Table):
    """A file of a work."""

    __tablename__ = "service_files"

    work: Mapped[str] = mapped_column(
        String(32), ForeignKey("service_work.id", ondelete="CASCADE"), primary_key=True
    )
    name: Mapped[str] = mapped_column(String(64), primary_key=True)
    content: Mapped[bytes] = mapped_column(LargeBinary)


class WorkerRow(Table):
    """A worker that has registered."""

    __tablename__ = "service_workers"

    name: Mapped[str] = mapped_column(String(128), primary_key=True)
    device_kind: Mapped[str] = mapped_column(String(8))
    devices: Mapped[int] = mapped_column(Integer)
    """The most that a run may have there."""
    device_name: Mapped[str] = mapped_column(String(128))
    seen: Mapped[float] = mapped_column(Float)


class TokenRow(Table):
    """A token, or a browser's session after sign-in, by its hash."""

    __tablename__ = "service_tokens"

    digest: Mapped[str] = mapped_column(String(64), primary_key=True)
    name: Mapped[str] = mapped_column(String(64))
    role: Mapped[str] = mapped_column(String(16))
    """`user`, `worker` or `session`."""
    created: Mapped[float] = mapped_column(Float)
    expires: Mapped[float | None] = mapped_column(Float)
