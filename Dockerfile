# The operator's image: no compiler, no shell needed, not root, and nothing that it would have to write.
# For a build that is the same tomorrow, name its digest: --build-arg PYTHON=python:3.11-slim@sha256:...
ARG PYTHON=python:3.11-slim
FROM ${PYTHON} AS build
WORKDIR /src
COPY requirements.lock ./
# All wheels, each held against its hash. What the operator needs of them is installed from here below, and nothing from anywhere else.
RUN pip download --disable-pip-version-check --require-hashes --only-binary :all: --dest /wheels --requirement requirements.lock
COPY pyproject.toml README.md LICENSE ./
COPY operator operator
RUN python -m venv /opt/gpupartition \
 && /opt/gpupartition/bin/pip install --disable-pip-version-check --no-cache-dir --no-index --find-links /wheels . \
 && /opt/gpupartition/bin/pip uninstall --yes pip

FROM ${PYTHON}
COPY --from=build /opt/gpupartition /opt/gpupartition
ENV PATH=/opt/gpupartition/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER 65532:65532
EXPOSE 8080
ENTRYPOINT ["python", "-m", "gpupartition"]
CMD ["run"]
