# The picker as an image: `leadsman serve`, without the demo's, the tests' and the operator's extras.
# Run it with a read-only root file system if you like; it needs a writable /tmp for a socket.
FROM python:3.11-slim AS build
COPY . /src
RUN python -m venv /opt/leadsman \
    && /opt/leadsman/bin/pip install --no-cache-dir --constraint /src/requirements.lock /src

FROM python:3.11-slim
COPY --from=build /opt/leadsman /opt/leadsman
ENV PATH="/opt/leadsman/bin:$PATH" PYTHONUNBUFFERED=1
USER 65532:65532
# ext_proc, access log and health; the metrics page, where metrics_port says so.
EXPOSE 9002 9090
ENTRYPOINT ["leadsman"]
CMD ["serve", "--config", "/etc/leadsman/fleet.yaml"]
