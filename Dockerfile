# docker build --tag vitreous .
# docs/deploy.md says how to run it.

FROM python:3.11-slim AS build
# pip reads this by itself: for a CPU-only build of torch, give the address of an index that has one.
ARG PIP_EXTRA_INDEX_URL=
WORKDIR /build
RUN python -m venv /opt/vitreous
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY src ./src
RUN /opt/vitreous/bin/pip install --no-cache-dir --constraint constraints.txt '.[serve,openvino]'

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
