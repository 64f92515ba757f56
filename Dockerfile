# The image of the node agent and of the controller (and of the kubemend command): docker build -t REGISTRY/kubemend:0.1.0 .

FROM python:3.11-slim-bookworm AS build
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY agent agent
COPY cli cli
COPY common common
COPY controller controller
RUN python -m pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .
RUN python -m venv --without-pip /opt/kubemend \
    && python -m pip --python /opt/kubemend/bin/python install --no-cache-dir /wheels/*.whl

# glibc, not musl: the driver's library, which comes from the host, is built for it.
FROM python:3.11-slim-bookworm
RUN python -m pip uninstall --yes --quiet --root-user-action=ignore wheel setuptools pip
COPY --from=build /opt/kubemend /opt/kubemend

# libnvidia-ml.so.1 belongs to the driver and stays on the host; the DaemonSet mounts where drivers are installed below
# /host. Found there it is the right one also after an upgrade of the driver, and while the NVIDIA container toolkit
# starts nothing (a GPU is lost). One folder per place, each with one link: the host's own folders hold its libc, too.
# Links that lead nowhere are passed over.
RUN arch="$(uname -m)"; number=0; for place in \
        /run/nvidia/driver/usr/lib/$arch-linux-gnu \
        /run/nvidia/driver/usr/lib64 \
        /usr/lib/$arch-linux-gnu \
        /usr/lib/$arch-linux-gnu/nvidia/current \
        /usr/lib64 \
        /home/kubernetes/bin/nvidia/lib64 \
    ; do \
        number=$((number + 1)); \
        mkdir -p /opt/nvml/$number; \
        ln -s /host$place/libnvidia-ml.so.1 /opt/nvml/$number/libnvidia-ml.so.1; \
    done
ENV LD_LIBRARY_PATH=/opt/nvml/1:/opt/nvml/2:/opt/nvml/3:/opt/nvml/4:/opt/nvml/5:/opt/nvml/6

ENV PATH=/opt/kubemend/bin:$PATH
ENTRYPOINT ["kubemend"]
CMD ["agent"]
