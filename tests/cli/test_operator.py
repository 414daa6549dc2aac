import pytest
from leadsman_cli.main import main


def test_without_a_way_to_an_api_server_the_command_says_so(tmp_path, capsys):
    nowhere = str(tmp_path / "kubeconfig")

    status = main(["operator", "--kubeconfig", nowhere, "--health", "127.0.0.1:0"])

    assert status == 1
    assert "leadsman operator: no way to an API server" in capsys.readouterr().err


def test_a_lease_without_a_namespace_is_refused(capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["operator", "--lease", "leadsman"])

    assert stopped.value.code == 2
    assert "NAMESPACE/NAME, not 'leadsman'" in capsys.readouterr().err
