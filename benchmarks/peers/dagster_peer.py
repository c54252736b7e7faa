"""Dagster with its default storage (SQLite and files): one job, a mapped op a step, all in one process.

Its other executors start a process for each op: an op of no work is quickest without.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from importlib.metadata import version

import dagster

from benchmarks.peers.protocol import answer, asked


def main() -> None:
    """An op a step."""
    given = asked()
    os.environ["DAGSTER_HOME"] = str(given.folder)
    (given.folder / "dagster.yaml").write_text("telemetry:\n  enabled: false\n")

    @dagster.op(out=dagster.DynamicOut(int), config_schema={"steps": int})
    def numbers(context) -> Iterator[dagster.DynamicOutput[int]]:
        for n in range(context.op_config["steps"]):
            yield dagster.DynamicOutput(n, mapping_key=str(n))

    @dagster.op
    def body(n: int) -> int:
        return n

    @dagster.job(resource_defs={"io_manager": dagster.FilesystemIOManager(base_dir=str(given.folder / "results"))})
    def work() -> None:
        numbers().map(body)

    with dagster.DagsterInstance.get() as instance:

        def seconds_of(steps: int) -> float:
            quiet = {"console": {"config": {"log_level": "ERROR"}}}
            config = {"ops": {"numbers": {"config": {"steps": steps}}}, "loggers": quiet}
            began = time.perf_counter()
            done = work.execute_in_process(run_config=config, instance=instance)
            seconds = time.perf_counter() - began
            assert done.success
            assert len(done.output_for_node("body")) == steps
            return seconds

        seconds_of(3)
        seconds = seconds_of(given.steps)
    answer(seconds, dagster=version("dagster"), storage="SQLite, FilesystemIOManager", executor="in process")


if __name__ == "__main__":
    main()
