# autotune in an image, for the command line or as a service. Of a checkout, with its root as the context:
#
#   docker build -t autotune .                              the command line
#   docker build -t autotune-service --target service .     the service (docs/server.md)
#
#   docker run --rm --gpus all --shm-size 8g --user "$(id -u):$(id -g)" -v "$PWD:/work" -v autotune:/cache \
#       autotune run job.yaml
#
# The base has the CUDA of the locked torch: DeepSpeed compiles its kernel with nothing else. Where
# there is no GPU, and for plans: --build-arg BASE=python:3.11-slim
ARG BASE=nvidia/cuda:13.0.3-devel-ubuntu24.04
FROM ${BASE} AS installed

# A CUDA base brings no Python, python:3.11-slim no compiler (DeepSpeed builds a kernel with it).
RUN apt-get update \
    && apt-get install -y --no-install-recommends g++ \
    && if ! command -v python3 >/dev/null; then \
        apt-get install -y --no-install-recommends python3 python3-dev python3-venv; fi \
    && rm -rf /var/lib/apt/lists/*

COPY . /src
RUN /src/scripts/service/install /opt/autotune && rm -rf /src
ENV PATH=/opt/autotune/venv/bin:$PATH PYTHONUNBUFFERED=1


# Its tokens: docker run --rm -v autotune-service:/var/lib/autotune autotune-service --add-token NAME
#
#   docker run --read-only --tmpfs /tmp --cap-drop ALL --security-opt no-new-privileges \
#       --stop-timeout 150 -p 127.0.0.1:8642:8642 -v autotune-service:/var/lib/autotune \
#       -v ./server.yaml:/etc/autotune/server.yaml:ro -v /data:/data:ro [--gpus all] autotune-service
FROM installed AS service
RUN useradd --system --create-home --home-dir /var/lib/autotune --shell /usr/sbin/nologin autotune \
    && mkdir -p /etc/autotune && printf 'host: 0.0.0.0\n' >/etc/autotune/server.yaml
USER autotune
WORKDIR /var/lib/autotune
ENV HOME=/var/lib/autotune XDG_CACHE_HOME=/var/lib/autotune/cache
VOLUME /var/lib/autotune
EXPOSE 8642
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=30s --timeout=10s --start-period=60s CMD ["/opt/autotune/venv/bin/python", "-c", \
    "import urllib.request as u; u.urlopen('http://127.0.0.1:8642/api/v1/health', timeout=5)"]
ENTRYPOINT ["/opt/autotune/venv/bin/autotune", "serve", "--runs", "/var/lib/autotune/service", "--config", "/etc/autotune/server.yaml"]


FROM installed AS command
# Whoever `--user` says has a home and a name: torch asks for both.
RUN mkdir -m 1777 /cache /work
WORKDIR /work
ENV HOME=/cache XDG_CACHE_HOME=/cache USER=autotune
VOLUME /cache
STOPSIGNAL SIGINT
ENTRYPOINT ["/opt/autotune/venv/bin/autotune"]
