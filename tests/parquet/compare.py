"""Compares the Parquet files in a folder with expected.json, which the store wrote beside them."""

import hashlib
import json
import pathlib
import sys

import pyarrow.parquet as parquet

folder = pathlib.Path(sys.argv[1])
expected = json.loads((folder / "expected.json").read_text())
assert len(expected) > 10, "the store wrote too few files"


def plain(name, value):
    if isinstance(value, bytes):
        return value.hex()
    return json.loads(value) if name == "metadata" and value is not None else value


for name, rows in expected.items():
    file = folder / name
    assert hashlib.sha256(file.read_bytes()).hexdigest() == file.stem, f"{name} is not named by its bytes"
    found = parquet.read_table(file).to_pylist()
    assert [{key: plain(key, value) for key, value in row.items()} for row in found] == rows, name
    metadata = parquet.read_metadata(file)
    assert metadata.created_by == "windlass" and metadata.num_row_groups <= 1, name

print(f"parquet: {len(expected)} files and {sum(map(len, expected.values()))} rows are what was written")
