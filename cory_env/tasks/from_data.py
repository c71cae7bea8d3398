"""Tasks whose queries are the user's data, in any of the formats of `cory_env.data_files`."""

from __future__ import annotations

import abc
from functools import cached_property
from typing import ClassVar

from cory_env.data_files import DataSet, Row, check_split, load_data
from cory_env.records import Query
from cory_env.tasks.base import Task


class DataTask(Task):
    """A task that has no queries of its own.

    Attributes:
        formats: what `data` may be, for the error when it is missing.
        usable: what a row has to be to become a query, for the error when none is.
        names: that the column of queries may have, the usual one first.
        subset: which configuration of a hub's data set, and which folder of a copy of it.
    """

    takes_hub_data = True
    formats: ClassVar[str] = "a file, a folder or a hub name"
    usable: ClassVar[str] = "usable"
    names: tuple[str, ...]
    subset: str | None = None

    def queries(self, split: str) -> tuple[Query, ...]:
        """Return the queries of a split in the order of the data; see `Task.queries`.

        Raises:
            ValueError: one sentence if there is no data, or it cannot be read.
        """
        check_split(split)
        return self._data_set.queries(split)

    @abc.abstractmethod
    def query_of(self, row: Row) -> Query | None:
        """Make a query of a row; None leaves the row out.

        Raises:
            ValueError: naming the row, if it is broken.
        """

    @cached_property
    def _data_set(self) -> DataSet:
        if self.data is None:
            raise ValueError(
                f"task {self.name!r} has no queries of its own: give data (--data), {self.formats}"
            )
        return load_data(
            self.data,
            self.names,
            self.query_of,
            usable=self.usable,
            hub=self.takes_hub_data,
            subset=self.subset,
        )
