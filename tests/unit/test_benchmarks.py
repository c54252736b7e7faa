"""Are benchmarks told as they were measured? Nothing is measured here."""

from __future__ import annotations

import asyncio
import json
import struct
from pathlib import Path

import bson
import pytest

from benchmarks.__main__ import NAMES, benchmark_of
from benchmarks.cpu_seconds import OTHERS, kind_of
from benchmarks.findings import Finding, at_least, at_most
from benchmarks.page import BEGIN, DOCS, END, PAGE, number, picture, read, table, with_block, write
from benchmarks.peers.environments import PACKAGES
from benchmarks.peers.protocol import ANSWER, answer
from benchmarks.wire import Messages, command_of
from harness.proxy import Proxy

FINDING = Finding("steps", "steps/s", (10.0, 90.0, 30.0), "tasks", (10.0, 30.0, 20.0), at_least(2), {"broker": "none"})


def found(*findings: Finding) -> dict[str, object]:
    """What a benchmark writes."""
    at = {"at": "2026-01-02T03:04:05+00:00", "cpus": 2, "load": 0.5, "python": "3", "ray": "2", "choreography-ray": "1"}
    return {"conditions": at, "seconds": 60.0, "findings": [each.as_json() for each in findings]}


def test_a_ratio_is_the_median_of_the_pairs_not_the_ratio_of_medians() -> None:
    assert FINDING.ratios == (1.0, 3.0, 1.5)
    assert FINDING.value == 1.5
    assert FINDING.is_met is False


@pytest.mark.parametrize(
    ("command", "kind"),
    [
        ("ray::HostActor.tell", "hosts"),
        ("ray::0a1b/step4-2.14:HostActor.__init__", "hosts"),
        ("ray::job/0a1b:JobActor.__init__", "job actor"),
        ("/lib/ray/core/src/ray/gcs/gcs_server --log_dir=/tmp/ray", "GCS"),
        ("/lib/ray/core/src/ray/raylet/raylet --python_worker_command=python workers/default_worker.py", "raylet"),
        ("python workers/default_worker.py --raylet-name=/tmp/ray/sockets/raylet --node-id=1", OTHERS),
        ("ray::ThrottleActor.exchange", OTHERS),
        ("", OTHERS),
    ],
)
def test_processes_are_known_by_their_commands(command: str, kind: str) -> None:
    assert kind_of(command) == kind


def test_without_another_side_the_median_of_ours_is_judged() -> None:
    memory = Finding("memory", "B", (150.0, 250.0, 190.0), target=at_most(200))
    assert memory.value == 190.0
    assert memory.is_met is True
    assert Finding("seconds", "s", (1.0,)).is_met is None


def test_pairs_that_are_none_are_refused() -> None:
    with pytest.raises(ValueError, match="1 of ours beside 2"):
        Finding("steps", "steps/s", (1.0,), "tasks", (1.0, 2.0))
    with pytest.raises(ValueError, match="0 of ours"):
        Finding("steps", "steps/s", ())


def test_a_finding_comes_back_from_its_json() -> None:
    told = json.loads(json.dumps(FINDING.as_json()))
    assert Finding.from_json(told) == FINDING
    assert told["value"] == 1.5
    assert told["is_met"] is False


def test_the_table_tells_both_sides_the_target_and_the_settings() -> None:
    text = table([found(FINDING)])
    assert "| steps | 30.0 steps/s | tasks | 20.0 steps/s | 1.50 | ≥ 2 | missed |" in text
    assert "- steps: broker: none" in text
    assert "on 2 cores" in text


def test_numbers_keep_three_digits_that_count() -> None:
    assert [number(each) for each in (0.0, 0.01234, 1.5, 12.34, 1234.5, 5678901.0)] == [
        "0.0",
        "0.0123",
        "1.50",
        "12.3",
        "1,230",
        "5,680,000",
    ]


def test_the_picture_has_a_bar_and_a_mark_for_each_ratio_alone() -> None:
    drawn = picture([found(FINDING, Finding("no ratio", "s", (1.0,)))])
    assert drawn.count("<rect") == 2  # its ground and one bar
    assert "no ratio" not in drawn
    assert drawn.count("<line") == 2  # where both sides are equal, and the target


def test_a_block_is_replaced_between_its_marks() -> None:
    page = f"before\n{BEGIN}\nold\n{END}\nafter\n"
    assert with_block(page, "new") == f"before\n{BEGIN}\n\nnew\n\n{END}\nafter\n"
    assert with_block(with_block(page, "old"), "new") == with_block(page, "new")
    with pytest.raises(ValueError, match="no lines"):
        with_block("a page without marks", "new")


def test_what_was_not_measured_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "warm_steps.json").write_text(json.dumps(found(FINDING)))
    assert len(read(tmp_path, NAMES)) == 1
    write(tmp_path, NAMES, docs=False)
    assert "1.50" in (tmp_path / "results.md").read_text()


def test_the_page_tells_of_every_benchmark_and_has_a_place_for_results() -> None:
    page = (DOCS / PAGE).read_text(encoding="utf-8")
    assert with_block(page, "results")
    for name in NAMES:
        assert f"`{name}`" in page
        assert benchmark_of(name).name == name


def test_every_peer_has_packages_of_its_own() -> None:
    from benchmarks.durable_peers import PEERS
    from benchmarks.plain_peers import DASK

    assert {peer.name for peer in (*PEERS, DASK)} == set(PACKAGES)


def test_a_peers_answer_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    answer(2.0, broker="none")
    line = capsys.readouterr().out.strip().removeprefix(ANSWER)
    assert json.loads(line) == {"seconds": 2.0, "settings": {"broker": "none"}}


def message(command: dict[str, object]) -> bytes:
    body = b"\0\0\0\0\0" + bson.encode(command)
    return struct.pack("<iiii", 16 + len(body), 1, 0, 2013) + body


def test_messages_are_put_together_however_they_were_cut() -> None:
    sent = [message({"insert": "jobs", "n": n}) for n in range(3)]
    stream = b"".join(sent)
    for width in (1, 7, 16, len(stream)):
        seen: list[bytes] = []
        messages = Messages(seen.append)
        for begin in range(0, len(stream), width):
            messages(stream[begin : begin + width])
        assert seen == sent
    assert command_of(sent[1])["n"] == 1
    assert command_of(struct.pack("<iiii", 16, 1, 0, 2012)) == {}


def test_what_passes_a_proxy_arrives_whole_and_is_seen() -> None:
    sent = bytes(range(256)) * 4_000
    seen: list[bytes] = []

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while piece := await reader.read(65_536):
            writer.write(piece)
        writer.close()

    async def story() -> bytes:
        server = await asyncio.start_server(echo, "127.0.0.1", 0)
        proxy = Proxy(server.sockets[0].getsockname()[1], watch=lambda: seen.append)
        proxy.delay = 0.001
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        writer.write(sent)
        received = await reader.readexactly(len(sent))
        writer.close()
        await asyncio.to_thread(proxy.close)
        server.close()
        return received

    assert asyncio.run(story()) == sent
    assert b"".join(seen) == sent
