# docker build --tag vitreous .
# docs/deploy.md says how to run it.

FROM python:3.11-slim AS build
# pip reads this by itself; this index has builds of torch for CPUs. Empty: those of PyPI, with the libraries for CUDA.
ARG PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu
WORKDIR /build
RUN python -m venv /opt/vitreous
COPY pyproject.toml constraints.txt README.md LICENSE ./
# First what it needs, with an empty package: an edit of the sources installs nothing of that again.
RUN mkdir -p src/vitreous && touch src/vitreous/__init__.py && \
    /opt/vitreous/bin/pip install --no-cache-dir --constraint constraints.txt '.[serve,openvino]'
COPY src ./src
RUN /opt/vitreous/bin/pip install --no-cache-dir --no-deps --force-reinstall .

FROM python:3.11-slim
RUN useradd --system --uid 10001 --no-create-home vitreous && install --directory --owner=vitreous /cache
COPY --from=build /opt/vitreous /opt/vitreous
ENV PATH=/opt/vitreous/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    VITREOUS_CACHE=/cache
USER vitreous
VOLUME /cache
EXPOSE 8000
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=120s \
    CMD ["python", "-c", "import urllib.request as web; web.urlopen('http://127.0.0.1:8000/v2/health/ready', timeout=4)"]
# Other machines reach a container, so the server insists on a token: docker run --env VITREOUS_TOKEN ...
ENTRYPOINT ["vitreous", "serve", "--host", "0.0.0.0"]
CMD ["/model"]
