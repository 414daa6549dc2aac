import json
import signal
import subprocess
import sys
import urllib.request

import pytest
from leadsman_engines.simulated.command import main

RUN = (
    "import sys; from leadsman_engines.simulated.command import main; sys.exit(main(sys.argv[1:]))"
)


@pytest.mark.parametrize("told", [signal.SIGTERM, signal.SIGINT])
def test_an_engine_says_its_ports_serves_and_stops_when_told(told):
    command = [sys.executable, "-c", RUN, "--preset", "llama-3.1-8b-a100", "--block-size", "32"]

    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        ready = json.loads(process.stdout.readline())
        with urllib.request.urlopen(f"http://127.0.0.1:{ready['port']}/metrics") as response:
            page = response.read().decode()
        process.send_signal(told)
        status = process.wait(10)
        complaints = process.stderr.read()

    assert status == 0
    assert complaints == b""
    assert 'block_size="32"' in page
    assert ready["kv_events"].startswith("tcp://127.0.0.1:")


def test_events_can_be_off():
    command = [sys.executable, "-c", RUN, "--events", "off"]

    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        ready = json.loads(process.stdout.readline())
        process.terminate()

    assert ready["kv_events"] is None


def test_presets_are_listed(capsys):
    status = main(["--list-presets"])

    lines = capsys.readouterr().out.splitlines()
    assert status == 0
    assert len(lines) >= 5
    assert any(line.startswith("deepseek-v4-flash-4xh100: ") for line in lines)


@pytest.mark.parametrize(
    "given", [["--num-blocks", "3"], ["--policy", "lifo"], ["--max-num-seqs", "100000"]]
)
def test_settings_that_cannot_be_are_refused(capsys, given):
    status = main(given)

    assert status == 2
    assert capsys.readouterr().out.startswith("simulate-engine: ")
