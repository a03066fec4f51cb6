"""SQLAlchemy, on any database: an update that compares; an insert where there is nothing yet."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import BigInteger, String, insert, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from examples.fenced_writes import StaleError

if TYPE_CHECKING:
    from sqlalchemy import Engine


class Base(DeclarativeBase):
    """The tables."""


class Result(Base):
    """The value of a job that its newest holder has written."""

    __tablename__ = "sqlalchemy_results"
    job: Mapped[str] = mapped_column(String(200), primary_key=True)
    token: Mapped[int] = mapped_column(BigInteger)
    value: Mapped[str]


def write(engine: Engine, job: str, token: int, value: str) -> None:
    """Write *value*; raise ``StaleError`` if a newer holder has written."""
    if _update(engine, job, token, value):
        return
    try:
        with engine.begin() as connection:
            connection.execute(insert(Result).values(job=job, token=token, value=value))
    except IntegrityError:  # a row exists: a newer one, or one inserted since the update
        if not _update(engine, job, token, value):
            raise StaleError(job, token) from None


def _update(engine: Engine, job: str, token: int, value: str) -> bool:
    mine = update(Result).where(Result.job == job, Result.token <= token)
    with engine.begin() as connection:
        return connection.execute(mine.values(token=token, value=value)).rowcount > 0
