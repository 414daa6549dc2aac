import json
import logging
import re

import pytest
from leadsman_cli.logs import JsonLines
from leadsman_cli.main import COMMANDS, main


def test_without_a_command_the_commands_are_listed(capsys):
    status = main([])

    assert status == 0
    assert set(re.findall(r"^  (\S+)", capsys.readouterr().out, re.MULTILINE)) == set(COMMANDS)


def test_a_command_that_does_not_exist_is_a_mistake(capsys):
    status = main(["sail"])

    assert status == 2
    assert "no command 'sail'" in capsys.readouterr().err


def test_the_version_is_said(capsys):
    status = main(["version"])

    assert status == 0
    assert re.fullmatch(r"\d+\.\d+\.\d+\n", capsys.readouterr().out)


def test_a_command_gets_the_arguments_behind_its_name(capsys):
    status = main(["simulate-engine", "--list-presets"])

    assert status == 0
    assert capsys.readouterr().out


def test_a_log_line_is_a_message_and_fields():
    record = logging.makeLogRecord(
        {"name": "leadsman", "levelname": "INFO", "msg": "serving", "port": 9002}
    )

    line = json.loads(JsonLines().format(record))

    assert line["message"] == "serving"
    assert line["level"] == "info"
    assert line["port"] == 9002
    assert "args" not in line


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("endpoints: [{url: 'http://a:1', ulr: 1}]", "endpoints[0].ulr: unknown"),
        ("endpoints: [{url: a}]", "endpoints[0].url: 'a' is no http://host:port"),
        (
            "endpoints: []\nmodels: [{name: m, path: /nowhere}]",
            "models[0].path: [Errno 2] No such file or directory",
        ),
    ],
)
def test_a_wrong_file_is_told_with_its_place(tmp_path, capsys, text, problem):
    config = tmp_path / "fleet.yaml"
    config.write_text(text)

    status = main(["serve", "--config", str(config)])

    assert status == 2
    assert f"{config}: {problem}" in capsys.readouterr().err


def test_a_file_that_is_not_there_is_told(tmp_path, capsys):
    status = main(["serve", "--config", str(tmp_path / "nothing.yaml")])

    assert status == 2
    assert "No such file" in capsys.readouterr().err
