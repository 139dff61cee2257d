# Untested, for want of a container engine. NVIDIA's image contains torch, triton and
# TransformerEngine.
#   docker build -t triton-study . && docker run --gpus all --ipc=host triton-study
ARG IMAGE=nvcr.io/nvidia/pytorch:26.06-py3
FROM ${IMAGE}
RUN pip install nox rich jinja2 pygments pytest msgspec watchfiles
COPY . /study
WORKDIR /study
RUN python -m common.commands.peers
CMD ["nox", "--no-venv", "--no-install", "-s", "bench", "leaderboard"]
