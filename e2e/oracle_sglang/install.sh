#!/usr/bin/env bash
# Put SGLang's wheel, and what its scheduling code imports on a CPU, into an environment of its own.
#   install.sh VENV        needs Python 3.11 on x86-64 Linux, some 6 GB of disk, about 5 minutes
# The wheel is installed without what it requires: its kernels need a GPU, and no model is run here.
set -euo pipefail
venv=${1:?usage: install.sh VENV}
[ -e "$venv/.installed" ] && exit 0
python3 -m venv "$venv"
"$venv/bin/pip" install -q torch==2.14.1 torchvision --no-deps
"$venv/bin/pip" install -q torch==2.14.1 transformers==5.19.0 tokenizers==0.23.2 numba==0.65.1 \
    numpy msgspec pyzmq psutil requests aiohttp orjson packaging pydantic uvloop uvicorn fastapi \
    prometheus-client pillow tqdm xxhash pybase64 setproctitle einops dill sniffio distro \
    sentencepiece python-multipart partial_json_parser
"$venv/bin/pip" install -q --no-deps openai==2.8.0 openai-harmony==0.0.4 xgrammar==0.2.7 \
    apache-tvm-ffi==0.1.11 "sglang==${SGLANG_VERSION:-0.5.23}"
touch "$venv/.installed"
