# The image of the node agent and of the controller (and of the kubemend command): docker build -t REGISTRY/kubemend:0.1.0 .
# Without Docker and without a registry: make image, which passes a base built from Debian's packages as PYTHON.
# For a reproducible image, name the base by its digest, and give all files one date:
#   docker buildx build --build-arg PYTHON=python:3.11-slim-bookworm@sha256:… --build-arg REVISION=$(git rev-parse HEAD) \
#     --build-arg SOURCE_DATE_EPOCH=$(git log -1 --format=%ct) --output type=image,rewrite-timestamp=true …
ARG PYTHON=python:3.11-slim-bookworm

FROM ${PYTHON} AS build
ARG SOURCE_DATE_EPOCH=1767225600
WORKDIR /src
COPY pyproject.toml requirements.lock requirements-build.lock README.md LICENSE ./
COPY agent agent
COPY cli cli
COPY common common
COPY controller controller
COPY kubemend kubemend
# All packages, those that build the wheel too, in the versions and with the hashes of the locks (`make lock`). Bytecode
# is valid for its source's hash, because the dates of files are not those of the build.
RUN python -m pip install --no-cache-dir --require-hashes --root-user-action=ignore -r requirements-build.lock \
    && python -m pip wheel --no-cache-dir --no-build-isolation --no-deps --wheel-dir /wheels .
RUN python -m venv --without-pip /opt/kubemend \
    && python -m pip --python /opt/kubemend/bin/python install --no-cache-dir --no-compile --require-hashes -r requirements.lock \
    && python -m pip --python /opt/kubemend/bin/python install --no-cache-dir --no-compile --no-deps --no-index /wheels/*.whl \
    && python -m pip --python /opt/kubemend/bin/python check \
    && python -m compileall -q -f --invalidation-mode=unchecked-hash /opt/kubemend
# For the pods that mount this image as a volume (daemonset/components/launcher): the launcher, for their own Python.
# Any user can read it, also where the checkout's umask has made it its owner's.
COPY launcher/kubemend_run.py ./
RUN install -D --mode=0644 kubemend_run.py /launcher/kubemend_run.py

# glibc, not musl: the driver's library, which comes from the host, is built for it.
FROM ${PYTHON}
RUN python -m pip uninstall --yes --quiet --root-user-action=ignore wheel setuptools pip
COPY --from=build /opt/kubemend /opt/kubemend
COPY --from=build /launcher /launcher

# libnvidia-ml.so.1 belongs to the driver and stays on the host, and so do libcuda.so.1 and its compiler, which prove
# GPUs. The DaemonSet mounts the usual driver directories below /host. The libraries found there are the right ones also
# after an upgrade of the driver, and while the NVIDIA container toolkit starts nothing (a GPU is lost). Each directory
# gets a folder with links, because the host's directories also contain its libc. The loader ignores dangling links.
RUN set -eu; arch="$(uname -m)"; number=0; for place in \
        /run/nvidia/driver/usr/lib/$arch-linux-gnu \
        /run/nvidia/driver/usr/lib64 \
        /usr/lib/$arch-linux-gnu \
        /usr/lib/$arch-linux-gnu/nvidia/current \
        /usr/lib64 \
        /home/kubernetes/bin/nvidia/lib64 \
    ; do \
        number=$((number + 1)); \
        mkdir -p /opt/nvml/$number; \
        for library in libnvidia-ml.so.1 libcuda.so.1 libnvidia-ptxjitcompiler.so.1; do \
            ln -s /host$place/$library /opt/nvml/$number/$library; \
        done; \
    done
ENV LD_LIBRARY_PATH=/opt/nvml/1:/opt/nvml/2:/opt/nvml/3:/opt/nvml/4:/opt/nvml/5:/opt/nvml/6

# Nothing is written to the root file system at run time: it is read-only, and Python's bytecode is compiled already.
ENV PATH=/opt/kubemend/bin:$PATH PYTHONDONTWRITEBYTECODE=1

# Labels for scanners and registries, which read the content from dpkg's list and the *.dist-info of /opt/kubemend.
ARG PYTHON
ARG VERSION=0.1.0
ARG REVISION=
ARG CREATED=
LABEL org.opencontainers.image.title="kubemend" \
      org.opencontainers.image.description="Fast, device-aware, in-place recovery of GPU workloads on Kubernetes." \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.created="${CREATED}" \
      org.opencontainers.image.base.name="${PYTHON}"

# The controller and the command need no root. The agent's DaemonSet sets root for the agent, which needs it.
USER 65532:65532
ENTRYPOINT ["kubemend"]
CMD ["agent"]
