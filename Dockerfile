# The picker and the operator as an image, without the demo's and the tests' extras.
# The build stage has a C compiler: see docs/adr/0030. Run it with a read-only root file system if
# you like; it needs a writable /tmp for a socket.
FROM python:3.11 AS build
COPY . /src
RUN python -m venv /opt/leadsman \
    && /opt/leadsman/bin/pip install --no-cache-dir --constraint /src/requirements.lock '/src[operator,redis,lmcache,otel,grade]'

FROM python:3.11-slim
COPY --from=build /opt/leadsman /opt/leadsman
ENV PATH="/opt/leadsman/bin:$PATH" PYTHONUNBUFFERED=1
USER 65532:65532
# ext_proc, access log and health; health alone; metrics; the operator's fleet stream.
EXPOSE 9002 9003 9090 9100
ENTRYPOINT ["leadsman"]
CMD ["serve", "--config", "/etc/leadsman/fleet.yaml"]
