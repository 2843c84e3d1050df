"""The token ids of a prepared corpus as arrays on its mapped file: nothing is copied but what a batch takes."""

import datasets
import numpy as np


class TokenColumn:
    """A list column of a `datasets.Dataset` as views on its Arrow buffers: no copy and no Python object per token."""

    def __init__(self, dataset: datasets.Dataset, name: str) -> None:
        self._chunks: list[tuple[np.ndarray, np.ndarray]] = []
        for chunk in dataset.data.column(name).chunks:
            if len(chunk):
                self._chunks.append((chunk.offsets.to_numpy(), chunk.values.to_numpy(zero_copy_only=True)))
        self._first_rows = np.cumsum([0, *(len(offsets) - 1 for offsets, _ in self._chunks)])
        lengths = [np.diff(offsets) for offsets, _ in self._chunks]
        self.lengths = np.concatenate(lengths) if lengths else np.zeros(0, dtype=np.int32)

    def padded(self, rows: np.ndarray, fill: int) -> np.ndarray:
        """The given rows as one int64 array (rows, longest), filled up on the right."""
        lengths = self.lengths[rows]
        columns = np.arange(lengths.max(initial=0))
        filled = columns < lengths[:, None]
        result = np.empty(filled.shape, dtype=np.int64)
        chunk_of_row = np.searchsorted(self._first_rows, rows, side="right") - 1
        by_chunk = np.argsort(chunk_of_row, kind="stable")
        groups = np.split(by_chunk, np.flatnonzero(np.diff(chunk_of_row[by_chunk])) + 1)
        for group in groups:
            offsets, values = self._chunks[chunk_of_row[group[0]]]
            begin = offsets[rows[group] - self._first_rows[chunk_of_row[group[0]]]].astype(np.int64)
            # Positions past the end of a row belong to other rows; they are overwritten below.
            result[group] = values.take(begin[:, None] + columns, mode="clip")
        result[~filled] = fill
        return result


def pair_lengths(dataset: datasets.Dataset) -> tuple[np.ndarray, np.ndarray]:
    """Source and target length of every row in tokens, the end token included."""
    dataset = without_indices(dataset)
    return TokenColumn(dataset, "source_ids").lengths, TokenColumn(dataset, "target_ids").lengths


def without_indices(dataset: datasets.Dataset) -> datasets.Dataset:
    """The data set with its rows where its table has them."""
    # `select` and `shuffle` leave the table as it was and keep a list of rows beside it.
    return dataset if dataset._indices is None else dataset.flatten_indices()
