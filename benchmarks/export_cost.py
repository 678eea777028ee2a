"""The cost of the SavedModels of a run: `python -m benchmarks.export_cost RUN`.

Prints the seconds of CPU time and the bytes of each form, the median of three exports.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

from twml_ops import export
from twml_ops.training.run_folder import OUTPUT_NAME
from twml_ops.training.trained_run import TrainedRun


def main() -> None:
    """Exports the model of a run in all forms."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path, help="folder of a finished run")
    trained = TrainedRun(parser.parse_args().run)
    print("| SavedModel | CPU s | bytes |\n|---|---:|---:|")
    for form, write in (("to_tf", export.to_tf), ("to_stock_tf", export.to_stock_tf)):
        for raw in (False, True):
            seconds, size = [], 0
            for _ in range(3):
                with tempfile.TemporaryDirectory() as folder:
                    begin = time.process_time()
                    write(
                        trained.model,
                        folder,
                        output_names=[OUTPUT_NAME],
                        schema=trained.schema if raw else None,
                    )
                    seconds.append(time.process_time() - begin)
                    size = sum(f.stat().st_size for f in Path(folder).rglob("*") if f.is_file())
            name = f"{form}{', raw columns' if raw else ''}"
            print(f"| {name} | {statistics.median(seconds):.2f} | {size:,} |", flush=True)


if __name__ == "__main__":
    main()
